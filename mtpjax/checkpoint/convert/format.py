"""What every format offers: how it is opened, and how it is written."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from mtpjax import config as config_lib
from mtpjax.heads import MultiTokenModel


@dataclasses.dataclass(frozen=True)
class Source:
  """A checkpoint of another format, opened but not yet read.

  Attributes:
    heads: its extra heads; `Heads.none()` where there are none.
    load: reads the parameters {"lm": ...} and, with extra heads, "heads", in
      the dtype and onto the mesh of the `MultiTokenModel` it is given; an
      `on_read` is called with the number of values read so far.
    origin: where it came from, in words JSON can hold.
    model: its architecture; None for heads alone, which belong to a model
      that was converted before.
    tokenizer: the folder with tokenizer.json and what lies beside it, or the
      texts of these files by name.
    notes: what is odd about it, and does not stop it; one line each.
  """

  heads: config_lib.Heads
  load: Callable[..., dict[str, Any]]
  origin: dict[str, Any]
  model: config_lib.Model | None = None
  tokenizer: pathlib.Path | Mapping[str, str] = dataclasses.field(
    default_factory=dict
  )
  notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Target:
  """A checkpoint of ours, as a format is given it to write.

  Attributes:
    model: what the parameters are of.
    params: {"lm": ...} and, if they are to be written, "heads".
    dtype: to write in.
    max_length: positions the model was made for.
    ids: `bos_token_id` and `eos_token_id`, as config.json has them.
    name: of the folder that is made, for what refers to it.
    max_shard_bytes: the most bytes of a file; a larger tensor has its own.
    progress: called with the number of values in all; gives a function that
      is called with the number written so far.
  """

  model: MultiTokenModel
  params: Mapping[str, Any]
  dtype: str
  max_length: int
  ids: Mapping[str, Any]
  name: str
  max_shard_bytes: int
  progress: Callable[[int], Callable[[int], None]]


@dataclasses.dataclass(frozen=True)
class Written:
  """What a format has written.

  Attributes:
    params: how many values of the model.
    architecture: its name there.
    note: what else to say of it, empty or a clause.
  """

  params: int
  architecture: str
  note: str = ""


@dataclasses.dataclass(frozen=True)
class Format:
  """A format of checkpoints: a line of `formats.FORMATS`.

  Attributes:
    help: what `open` reads, for the command line.
    metavar: what `open` is given: DIR, FILE.
    open: opens a path; None for a format that is only written.
    is_on_base: it holds heads alone, to be put on a converted model.
    export_help: what `write` makes, for the command line.
    check: raises UserError for heads it cannot hold, given the model's
      `config.Heads` and the work directory to name.
    write: writes a `Target` to an empty folder; None for a format that is
      only read.
  """

  help: str = ""
  metavar: str = "DIR"
  open: Callable[[pathlib.Path], Source] | None = None
  is_on_base: bool = False
  export_help: str = ""
  check: Callable[[config_lib.Heads, str], None] = lambda heads, where: None
  write: Callable[[pathlib.Path, Target], Written] | None = None
