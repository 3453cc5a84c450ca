"""A trained model, ready to generate with."""

import collections
import dataclasses
import functools
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax

from mtpjax import config as config_lib
from mtpjax import decode, parallel
from mtpjax.api.prompts import (
  Asked,
  Prompt,
  RequestMaker,
  list_prompts,
  override_settings,
  read_prompt,
)
from mtpjax.api.stream import Stream
from mtpjax.checkpoint import Base, Store, WorkDir
from mtpjax.data import (
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
  with_bos,
)
from mtpjax.decode.budget import Calibration, Governor
from mtpjax.errors import UserError
from mtpjax.heads import MultiTokenModel


@dataclasses.dataclass(frozen=True)
class Generation:
  """What a prompt has brought.

  Attributes:
    ids: generated ids; what ended them (an EOS, a stop) belongs to them.
    text: the same as text, without special tokens and the stop string; that of
      the prompt and this are the whole.
    finish_reason: "eos", "stop" or "length".
    logprobs: log-probability of each id under the model at temperature 1,
      before penalties and masks.
    passes: trunk passes that committed them, the prompt's own included.
    proposed: drafts that those passes verified.
    accepted: drafts that became text.
  """

  ids: list[int]
  text: str
  finish_reason: str
  logprobs: list[float]
  passes: int
  proposed: int
  accepted: int


@dataclasses.dataclass(frozen=True, eq=False)
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
  """

  config: config_lib.Config
  model: MultiTokenModel
  params: Any
  tokenizer: Tokenizer
  workdir: pathlib.Path
  step: int
  data_id: str

  @functools.cached_property
  def decode_params(self) -> Any:
    """The parameters as decoding wants them; see `decode.decode_params`."""
    return decode.decode_params(self.model, self.params)

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
    path = data_path or self.config.data.path
    fingerprint = load_fingerprint(path)
    tokenizer = fingerprint["identity"]["tokenizer"]
    if tokenizer != self.tokenizer.fingerprint:
      raise UserError(
        f"{path}: was prepared with another tokenizer than the run's; prepare "
        f"it with {self.config.data.tokenizer}"
      )
    if not data_path and fingerprint["id"] != self.data_id:
      # Held-out rows may be training rows of what is there now.
      raise UserError(
        f"{path}: is not the data this run was trained on any more; give "
        "--data-path to evaluate on other rows"
      )
    rows = open_rows(path, split)
    require_within(rows, self.tokenizer, self.model.config.vocab_size)
    return rows

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
    prompts: Sequence[Prompt],
    ignore_eos: bool = False,
    on_text: Callable[[int, str], None] | None = None,
    **overrides: Any,
  ) -> list[Generation]:
    """Continues prompts.

    Args:
      prompts: texts; lists of ids; or mappings with "text", "ids" or
        "messages" (a chat: [{"role": "user", "content": "a"}]) and settings
        of their own, as {"text": "a", "temperature": 0.8, "seed": 3}. A
        prompt with its own seed does not depend on its place among them.
      ignore_eos: no EOS ends a text.
      on_text: called with the index of a prompt and its next piece of text as
        tokens are committed; the pieces join to the text.
      **overrides: fields of `config.Decode`, such as `mode="next"`,
        `temperature=0.8`, `seed=1`, `max_new_tokens=64`. Of `stop`,
        `stop_ids`, `bad_words` and `logit_bias` a string is one, exactly as it
        is, and a list has several. The output does not depend on `mode`, nor
        on the other prompts; with the verifiers `rejection` and `block` its
        distribution does not (`typical` is lossy).

    Returns:
      A `Generation` per prompt, in their order.

    Raises:
      UserError: a prompt in place of a list of them, one without tokens or
        longer than `cache_tokens`, a chat that the tokenizer has no template
        for, an id outside the vocabulary, settings
        unknown, out of range or in conflict, a grammar that admits nothing.
    """
    prompts = list_prompts(prompts)
    if not prompts:
      return []
    config = override_settings(self.config, overrides)
    settings = config.decode
    size = self.model.config.vocab_size
    # A tokenizer may have ids that its model does not, which never come.
    eos_ids = tuple(i for i in self.tokenizer.eos_ids if i < size)
    if ignore_eos:
      eos_ids = ()
    maker = RequestMaker(self.tokenizer, eos_ids, size)
    asked, requests = [], []
    for index, prompt in enumerate(prompts):
      where = f"prompt {index}"
      asked.append(read_prompt(prompt, config, where))
      ids = self.encode(asked[-1].content, where, asked[-1].template_fields)
      requests.append(maker.make(asked[-1], ids, index, where))
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
    for latest in decode.generate(
      specs,
      self.decode_params,
      requests,
      eos_ids,
      batch,
      settings.chunk_passes,
      lambda number, ids: streams[number].find_stop(ids),
      governor,
    ):
      for number, result in latest.items():
        results[number] = result
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
    stages = decode.Stages.of(requests)
    if settings.mode != "auto":
      return [decode.Spec.for_mode(self.model, settings, stages)], None
    path = WorkDir(self.workdir).calibration
    calibration = Calibration.load(path)
    calibration.require_device(path)
    if calibration.step != self.step:
      _warn(
        f"{path} is of step {calibration.step}, this is step {self.step}; "
        f"`mtpjax calibrate {self.workdir}` measures anew"
      )
    temperatures = collections.Counter(r.temperature for r in requests)
    [(usual, _)] = temperatures.most_common(1)
    entry = calibration.nearest(batch, usual)
    # Greedy rows are judged alike by all verifiers.
    verifier = settings.verifier if stages.is_sampled else "coupled"
    apart = entry.apart_from(batch, usual, verifier)
    if apart:
      _warn(
        f"mode auto: {path} was measured with {apart}, and its choice may be "
        f"slow here; `mtpjax calibrate {self.workdir} --batches {batch} "
        f"--temperatures {usual:g}` measures anew, with verifier coupled"
      )
    levels = entry.levels
    return decode.Spec.for_levels(self.model, settings, stages, levels), (
      Governor(levels)
    )


def load(
  workdir: str | pathlib.Path,
  step: int | None = None,
  mesh: jax.sharding.Mesh | None = None,
) -> Loaded:
  """Loads the parameters of a run.

  Args:
    workdir: a work directory of `mtpjax train`.
    step: the checkpoint; None takes the latest sound one.
    mesh: where parameters go; None takes one device.

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
  portable = dataclasses.replace(config.model, attention="xla")
  model = MultiTokenModel(portable, config.heads, mesh)
  tokenizer = load_tokenizer(
    place.tokenizer_spec(config), config.data.bos_token, config.data.eos_tokens
  )
  abstract = parallel.abstract_arrays(model.abstract(), mesh)
  is_on_base = bool(config.base.path) and not config.base.is_trained
  abstract_lm = abstract.pop("lm") if is_on_base else None
  with Store(place.checkpoints) as store:
    state, metadata = store.restore(
      {"params": abstract}, step, partial=True, log=_warn
    )
  place.require_own_checkpoint(config, metadata)
  params = state["params"]
  if is_on_base:
    base = Base.open(config.base.path, metadata["base"]["step"])
    base.require(metadata["base"], place.path)
    params = {"lm": base.restore(abstract_lm, _warn)} | params
  return Loaded(
    config,
    model,
    params,
    tokenizer,
    place.path,
    metadata["step"],
    metadata["data"],
  )


def _warn(line: str) -> None:
  # Standard output is for the text.
  print(line, file=sys.stderr)
