"""For use as a library: load a run and generate with it.

The loss for somebody else's training loop is `mtpjax.losses`; the README shows
both at work.
"""

import dataclasses
import functools
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax

from mtpjax import config as config_lib
from mtpjax import decode, parallel
from mtpjax.checkpoint import Store, WorkDir
from mtpjax.data import (
  Rows,
  TextStream,
  Tokenizer,
  load_fingerprint,
  load_tokenizer,
  open_rows,
)
from mtpjax.errors import UserError
from mtpjax.heads import MultiTokenModel

Prompt = str | Sequence[int]


@dataclasses.dataclass(frozen=True)
class Generation:
  """What a prompt has brought.

  Attributes:
    ids: generated ids; an EOS that ended them is the last one.
    text: the same as text, special tokens left out.
    finish_reason: "eos" or "length".
    logprobs: log-probability of each id under the model, at temperature 1.
    passes: trunk passes that committed them, the prompt's own included.
  """

  ids: list[int]
  text: str
  finish_reason: str
  logprobs: list[float]
  passes: int


@dataclasses.dataclass(frozen=True, eq=False)
class Loaded:
  """A trained model, ready to use.

  Attributes:
    config: the experiment it was trained with.
    model: applies the parameters.
    params: {"lm": ..., "heads": ...}.
    tokenizer: the run's own.
    step: completed steps of the checkpoint.
    data_id: id of the rows it was trained on.
  """

  config: config_lib.Config
  model: MultiTokenModel
  params: Any
  tokenizer: Tokenizer
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
      UserError: nothing is prepared there, it is of another tokenizer, or the
        run's own folder holds other rows by now.
    """
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
    return open_rows(path, split)

  def encode(self, prompt: Prompt) -> list[int]:
    """Returns the ids of a prompt: a text as a document begins, ids as is."""
    if not isinstance(prompt, str):
      return [int(i) for i in prompt]
    ids = self.tokenizer.encode(prompt)
    bos = self.tokenizer.bos_id
    if self.config.data.add_bos and bos is not None:
      ids = [bos, *ids]
    return ids

  def generate(
    self,
    prompts: Sequence[Prompt],
    ignore_eos: bool = False,
    on_text: Callable[[int, str], None] | None = None,
    **overrides: Any,
  ) -> list[Generation]:
    """Continues prompts.

    Args:
      prompts: texts, or lists of ids.
      ignore_eos: go on to `max_new_tokens` whatever comes.
      on_text: called with the index of a prompt and its next piece of text as
        tokens are committed; the pieces join to the text.
      **overrides: fields of `config.Decode`, such as `mode="next"`,
        `temperature=0.8`, `seed=1`, `max_new_tokens=64`. The output does not
        depend on `mode`, nor on the other prompts.

    Returns:
      A `Generation` per prompt, in their order.

    Raises:
      UserError: a prompt without tokens or longer than the cache, an id
        outside the vocabulary, or a setting unknown or out of range.
    """
    if not prompts:
      return []
    changes = {f"decode.{name}": value for name, value in overrides.items()}
    settings = config_lib.override(self.config, changes).decode
    tree = decode.Tree.for_mode(settings.mode, self.config.heads)
    spec = decode.Spec(self.model, tree, settings.temperature > 0)
    eos_ids = () if ignore_eos else self.tokenizer.eos_ids
    requests = [
      self._request(settings, self.encode(prompt), index)
      for index, prompt in enumerate(prompts)
    ]
    batch = min(settings.batch_size, len(requests))
    results: list[decode.Result] = []
    for first in range(0, len(requests), batch):
      group = requests[first : first + batch]
      streams = [TextStream(self.tokenizer) for _ in group]
      seen = [0] * len(group)
      latest: list[decode.Result] = []
      for latest in decode.generate(
        spec, self.decode_params, group, eos_ids, batch, settings.chunk_passes
      ):
        if on_text is None:
          continue
        for i, result in enumerate(latest):
          piece = streams[i].push(result.ids[seen[i] :])
          seen[i] = len(result.ids)
          if result.finish_reason != "running":
            piece += streams[i].flush()
          if piece:
            on_text(first + i, piece)
      results += latest
    return [
      Generation(
        list(result.ids),
        self.tokenizer.decode(result.ids),
        result.finish_reason,
        list(result.logprobs),
        result.passes,
      )
      for result in results
    ]

  def _request(
    self, settings: config_lib.Decode, ids: list[int], index: int
  ) -> decode.Request:
    room, new = settings.cache_tokens, settings.max_new_tokens
    if room and len(ids) >= room:
      raise UserError(
        f"prompt {index}: {len(ids)} tokens leave no room in a cache of "
        f"{room}; raise decode.cache_tokens or shorten the prompt"
      )
    if room:
      new = min(new, room - len(ids))
    return decode.Request(
      tuple(ids), new, settings.temperature, settings.seed, index
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
    UserError: no such work directory or checkpoint, or it is damaged.
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
  with Store(place.checkpoints) as store:
    state, metadata = store.restore(
      {"params": abstract}, step, partial=True, log=_warn
    )
  place.require_own_checkpoint(config, metadata)
  return Loaded(
    config,
    model,
    state["params"],
    tokenizer,
    metadata["step"],
    metadata["data"],
  )


def _warn(line: str) -> None:
  # Standard output is for the text.
  print(line, file=sys.stderr)
