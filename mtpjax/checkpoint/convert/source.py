"""What every format offers: a model, its parameters, and what comes along."""

import dataclasses
from collections.abc import Callable
from typing import Any

from mtpjax import config as config_lib


@dataclasses.dataclass(frozen=True)
class Source:
  """A checkpoint of another format, opened but not yet read.

  Attributes:
    model: its architecture.
    heads: its extra heads; `NO_HEADS` where there are none.
    load: reads the parameters {"lm": ...} and, with extra heads, "heads", in
      the dtype and onto the mesh of the `MultiTokenModel` it is given; an
      `on_read` is called with the number of values read so far.
    files: texts by file name, to lie beside the parameters: tokenizer.json and
      those of tokenizer_config.json, special_tokens_map.json,
      generation_config.json and chat_template.jinja that are there.
    data: fields of `config.Data` that follow from the source, as `add_bos`.
    origin: where it came from, in words JSON can hold.
    notes: what is odd about it, and does not stop it; one line each.
  """

  model: config_lib.Model
  heads: config_lib.Heads
  load: Callable[..., dict[str, Any]]
  files: dict[str, str]
  data: dict[str, Any]
  origin: dict[str, Any]
  notes: tuple[str, ...] = ()


NO_HEADS = config_lib.Heads(
  kind="medusa", offsets=(1,), tap="normed", matched=False
)
