"""A trained model, ready to generate with."""

import contextlib
import dataclasses
import functools
import pathlib
import secrets
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import jax

from mtpjax import budget, decode, parallel
from mtpjax import config as config_lib
from mtpjax.api.generation import Clock, Decoding, Generation
from mtpjax.api.prompts import Asked, Prompt, list_prompts, read_prompt
from mtpjax.api.requests import RequestMaker
from mtpjax.api.settings import override_settings
from mtpjax.api.stream import Stream
from mtpjax.budget import Governor
from mtpjax.checkpoint import Base, Store, WorkDir, imported_length, places
from mtpjax.data import (
  FINGERPRINT,
  Message,
  Rows,
  TemplateFields,
  Tokenizer,
  is_conversation,
  last_of_text,
  load_fingerprint,
  load_tokenizer,
  open_rows,
  read_messages,
  require_chat_template,
  require_within,
  tokenizer_of_run,
  with_bos,
)
from mtpjax.errors import UserError
from mtpjax.heads import MultiTokenModel, count_params


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Loaded:
  """A trained model, ready to use.

  Attributes:
    config: the experiment it was trained with.
    model: applies the parameters.
    params: {"lm": ..., "heads": ...}.
    tokenizer: the run's own.
    workdir: where it was loaded from.
    step: completed steps of the checkpoint.
    data_id: id of the rows it was trained on.
    base: the pretrained model it was trained on, if it is known where.
  """

  config: config_lib.Config
  model: MultiTokenModel
  params: Any
  tokenizer: Tokenizer
  workdir: pathlib.Path
  step: int
  data_id: str
  base: Base | None = None

  def __repr__(self) -> str:
    params = count_params(self.model)
    heads = self.config.heads
    return (
      f"Loaded({str(self.workdir)!r}, step {self.step}, "
      f"{(params['lm'] + params['heads']) / 1e6:.2f} M parameters, "
      f"{heads.kind} heads of offsets {heads.offsets}, "
      f"vocabulary of {self.model.config.vocab_size})"
    )

  @functools.cached_property
  def decode_params(self) -> Any:
    """The parameters as decoding wants them; see `decode.decode_params`."""
    return decode.decode_params(self.model, self.params)

  @property
  def eos_ids(self) -> tuple[int, ...]:
    """Ids that end a text: the tokenizer's that the model has, too."""
    size = self.model.config.vocab_size
    return tuple(i for i in self.tokenizer.eos_ids if i < size)

  @functools.cached_property
  def missing_ids(self) -> frozenset[int]:
    """Ids of the model that the tokenizer lacks; never to be generated."""
    return frozenset(range(self.model.config.vocab_size)) - self.tokenizer.ids

  @property
  def max_length(self) -> int:
    """Tokens the model sees at most.

    The positions that an imported model, or the imported base of heads, was
    made for, where they are known; else the length of the rows trained on.
    """
    # Where it was found, which may not be where the run says it is.
    base = self.config.base.path if self.base is None else self.base.place.path
    length = imported_length(self.workdir)
    if not length and base:
      length = imported_length(base)
    return length or self.config.data.row_length

  def open_rows(self, split: str, data_path: str = "") -> Rows:
    """Opens prepared rows that this model can be judged by.

    Args:
      split: "train" or "validation".
      data_path: prepared rows; empty takes those of the run.

    Returns:
      The rows.

    Raises:
      UserError: nothing is prepared there, it is of another tokenizer, has
        ids that the model does not, or the run's own folder holds other rows
        by now.
    """
    if not self.data_id and not data_path:
      raise UserError(
        f"{self.workdir}: was imported and has no rows of its own; give "
        "--data-path, prepared with its tokenizer"
      )
    path = data_path or self._own_rows()
    fingerprint = load_fingerprint(path)
    tokenizer = fingerprint["identity"]["tokenizer"]
    if tokenizer != self.tokenizer.fingerprint:
      own = tokenizer_of_run(
        self.config.data.tokenizer, WorkDir(self.workdir).path
      )
      raise UserError(
        f"{path}: was prepared with another tokenizer than the run's; prepare "
        f"it with --data.tokenizer {own}"
      )
    rows = open_rows(path, split)
    require_within(rows, self.tokenizer, self.model.config.vocab_size)
    return rows

  def _own_rows(self) -> pathlib.Path:
    """Returns where the rows lie that this model was trained on."""
    path = self.config.data.path
    others = 0
    damaged: UserError | None = None
    for place in places(path, self.workdir):
      # Held-out rows may be training rows of what is there now.
      try:
        if load_fingerprint(place)["id"] == self.data_id:
          return place
        others += 1
      except UserError as error:
        if (place / FINGERPRINT).exists():
          damaged = damaged or error
    if damaged is not None and not others:
      raise damaged
    raise UserError(
      f"{path}: "
      + (
        "is not the data this run was trained on any more; give --data-path "
        "to evaluate on other rows"
        if others
        else "no prepared data is there, nor near the run; say where it is "
        "with --data-path"
      )
    )

  def encode(
    self,
    prompt: str | Sequence[int] | Sequence[Message],
    where: str = "prompt",
    template_fields: TemplateFields | None = None,
  ) -> list[int]:
    """Returns the ids of a prompt.

    Args:
      prompt: a text, which begins as a document does; ids, taken as they are;
        or messages, which the tokenizer's chat template makes a text of that
        ends where the assistant begins.
      where: names the prompt in errors.
      template_fields: what the chat template is given besides messages.

    Returns:
      The ids; a text that spells BOS out itself gets no second one.

    Raises:
      UserError: messages, and there is no chat template or it fails.
    """
    if is_conversation(prompt):
      template = require_chat_template(self.tokenizer, where)
      text = template.render(
        read_messages(prompt, where), where, True, template_fields or {}
      )
      # The template writes BOS where the model expects it.
      return self.tokenizer.encode(text)
    if not isinstance(prompt, str):
      return [int(i) for i in cast(Sequence[int], prompt)]
    bos_id = self.tokenizer.bos_id if self.config.data.add_bos else None
    return with_bos(self.tokenizer.encode(prompt), bos_id)

  def generate(
    self,
    prompts: Prompt | Iterable[Prompt],
    ignore_eos: bool = False,
    on_text: Callable[[int, str], None] | None = None,
    on_progress: Callable[[Decoding], None] | None = None,
    capacity: int = 0,
    **overrides: Any,
  ) -> list[Generation]:
    """Continues prompts, one or any number.

    Args:
      prompts: one, or a list of them: texts; lists of ids; or mappings with
        "text", "ids" or "messages" (a chat: [{"role": "user", "content": "a"}])
        and settings of their own, as {"text": "a", "temperature": 0.8, "seed":
        3}. A prompt with its own seed does not depend on its place among them.
      ignore_eos: no EOS ends a text.
      on_text: called with the index of a prompt and its next piece of text as
        tokens are committed; the pieces join to the text.
      on_progress: called when everything is compiled for the prompts that come
        first, and after every chunk of passes.
      capacity: positions that the programs are laid out for at least. Calls
        with one capacity share their programs, however long texts of up to so
        many tokens are; 0 lays them out for the texts of this call.
      **overrides: fields of `config.Decode`, such as `mode="next"`,
        `temperature=0.8`, `seed=1`, `max_new_tokens=64`. Of `stop`,
        `stop_ids`, `bad_words` and `logit_bias` a string is one, exactly as it
        is, and a list has several. The output does not depend on `mode`, nor
        on the other prompts; with the verifiers `rejection` and `block` its
        distribution does not (`typical` is lossy).

    Returns:
      A `Generation` per prompt, in their order; a list of one for a prompt
      alone. Where no seed is given, neither here nor by a prompt or the
      experiment, what is sampled takes a new one, and says which.

    Raises:
      UserError: what is no prompt, a prompt without tokens or longer than
        `cache_tokens`, a chat that the tokenizer has no template for, an id
        outside the vocabulary, settings unknown, out of range or in conflict, a
        grammar that admits nothing.
    """
    prompts = list_prompts(prompts)
    if not prompts:
      return []
    config = override_settings(self.config, overrides)
    if "seed" not in overrides and not config.decode.seed:
      config = override_settings(config, {"seed": _new_seed()})
    settings = config.decode
    eos_ids = () if ignore_eos else self.eos_ids
    maker = RequestMaker(
      self.tokenizer, eos_ids, self.missing_ids, self.model.config.vocab_size
    )
    asked, requests = [], []
    for index, prompt in enumerate(prompts):
      where = f"prompt {index}"
      asked.append(read_prompt(prompt, config, where))
      ids = self.encode(asked[-1].content, where, asked[-1].template_fields)
      requests.append(maker.make(asked[-1], ids, index, where, capacity))
    batch = min(settings.batch_size, len(requests))
    specs, governor = self._programs(settings, requests, batch)
    streams = [
      Stream(
        self.tokenizer, a.settings.stop, on_text, index,
        requests[index].min_new_tokens, self._before(a, requests[index].ids),
      )
      for index, a in enumerate(asked)
    ]  # fmt: skip
    results: dict[int, decode.Result] = {}
    rounds = decode.generate(
      specs,
      self.decode_params,
      requests,
      eos_ids,
      batch,
      settings.chunk_passes,
      lambda number, ids: streams[number].find_stop(ids),
      governor,
    )
    clock = Clock(len(requests))
    for latest in clock.rounds(rounds):
      results |= latest
      if on_progress is not None:
        on_progress(clock.reading)
      for number, result in latest.items():
        streams[number].push(result)
    return [
      Generation(
        list(result.ids),
        streams[number].text(result.ids),
        result.finish_reason,
        list(result.logprobs),
        result.passes,
        result.proposed,
        result.accepted,
        requests[number].seed if requests[number].temperature else None,
      )
      for number, result in sorted(results.items())
    ]

  def _before(self, asked: Asked, ids: Sequence[int]) -> tuple[int, ...]:
    """Returns what the text goes on from; an answer begins a text."""
    if is_conversation(asked.content):
      return ()
    return last_of_text(self.tokenizer, ids)

  def _programs(
    self,
    settings: config_lib.Decode,
    requests: Sequence[decode.Request],
    batch: int,
  ) -> tuple[list[decode.Spec], Governor | None]:
    """Returns the programs of a mode, and what chooses between them."""
    if decode.mode_of(settings).tree is not None:
      stages = decode.Stages.of(requests)
      return [decode.Spec.for_mode(self.model, settings, stages)], None
    return budget.automatic(
      WorkDir(self.workdir).calibration, self.step, self.model, settings,
      requests, batch, _warn,
    )  # fmt: skip


def _new_seed() -> int:
  return 1 + secrets.randbelow((1 << 31) - 1)


def load(
  workdir: str | pathlib.Path,
  step: int | None = None,
  mesh: jax.sharding.Mesh | None = None,
  base: str | pathlib.Path = "",
) -> Loaded:
  """Loads the parameters of a run.

  Args:
    workdir: a work directory of `mtpjax train`.
    step: the checkpoint; None takes the latest sound one.
    mesh: where parameters go; None takes one device.
    base: where the pretrained model is that heads were trained on; empty takes
      the path of the run, seen from here and then from the run.

  Returns:
    A `Loaded`.

  Raises:
    UserError: no such work directory or checkpoint, or it is damaged; its base
      is not there, or is not the one it was trained on.
  """
  place = WorkDir(workdir)
  config = place.load_config()
  mesh = parallel.single_device_mesh() if mesh is None else mesh
  # A run trained with cuDNN's attention loads where there is no GPU, too.
  portable = dataclasses.replace(config.model, attention="auto")
  model = MultiTokenModel(portable, config.heads, mesh)
  tokenizer = load_tokenizer(
    tokenizer_of_run(config.data.tokenizer, place.path),
    config.data.bos_token,
    config.data.eos_tokens,
  )
  abstract = parallel.abstract_arrays(model.abstract(), mesh)
  is_on_base = config.base.is_frozen
  abstract_lm = abstract.pop("lm") if is_on_base else None
  with Store(place.checkpoints) as store:
    state, metadata = store.restore(
      {"params": abstract}, step, partial=True, log=_warn
    )
  place.require_own_checkpoint(config, metadata)
  params = state["params"]
  found = None
  if config.base.is_trained and "base" in metadata:
    # Its weights are not needed, and what is known of it may help.
    with contextlib.suppress(UserError):
      found = Base.find(config.base.path, metadata["base"], place.path)
  if is_on_base:
    found = Base.find(config.base.path, metadata["base"], place.path, base)
    params = {"lm": found.restore(abstract_lm, _warn)} | params
  elif base:
    raise UserError(
      f"base.path: {str(base)!r} is not needed, {place.path} has all its "
      "weights; leave it out"
    )
  return Loaded(
    config,
    model,
    params,
    tokenizer,
    place.path,
    metadata["step"],
    metadata["data"],
    found,
  )


def _warn(line: str) -> None:
  # Standard output is for the text.
  print(line, file=sys.stderr)
