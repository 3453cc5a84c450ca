"""What an experiment is: frozen dataclasses, files and typed overrides.

An experiment file defines `config() -> Config` (or `config(variant)`), which
returns a complete configuration. The command line overrides single fields by
their path, `--optim.peak-lr 3e-4`; a name that does not exist is an error.

A field marked `may_change` may differ when a run is resumed. All others are
the identity of a run: with another value it would be another run.
"""

import dataclasses
import difflib
import importlib.util
import inspect
import json
import pathlib
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from mtpjax.errors import UserError

REMAT_POLICIES = ("none", "full", "dots")
LOSS_MODES = ("fused", "remat", "unrolled")
DTYPES = ("float32", "bfloat16", "float64")
HEAD_KINDS = ("block", "linear", "medusa")
DECODE_MODES = ("next", "chain")
TAPS = ("before_last", "last")
ATTENTION = ("xla", "cudnn")


def _field(default: Any, help: str, may_change: bool = False) -> Any:
  return dataclasses.field(
    default=default, metadata={"help": help, "may_change": may_change}
  )


def _require(claim: bool, name: str, value: Any, way_out: str) -> None:
  if not claim:
    raise UserError(f"{name}: {value!r} {way_out}")


def _require_one_of(name: str, value: str, allowed: Sequence[str]) -> None:
  _require(value in allowed, name, value, f"is not one of {', '.join(allowed)}")


def _require_positive(section: str, config: Any, *names: str) -> None:
  for name in names:
    value = getattr(config, name)
    _require(value > 0, f"{section}.{name}", value, "must be greater than 0")


def _require_not_negative(section: str, config: Any, *names: str) -> None:
  for name in names:
    value = getattr(config, name)
    _require(value >= 0, f"{section}.{name}", value, "must be >= 0")


@dataclasses.dataclass(frozen=True)
class Model:
  """The trunk: a decoder-only transformer, Llama style."""

  vocab_size: int = _field(0, "token ids; 0 takes the tokenizer's")
  d_model: int = _field(256, "width of the hidden states")
  n_layers: int = _field(6, "layers, those spent on matched heads included")
  n_attention_heads: int = _field(8, "query attention heads per layer")
  n_kv_heads: int = _field(4, "key/value heads per layer; divides the above")
  d_head: int = _field(32, "width of one attention head")
  d_ff: int = _field(768, "width of the gated MLP")
  rope_theta: float = _field(10_000.0, "base of the rotary frequencies")
  norm_eps: float = _field(1e-5, "epsilon of RMSNorm")
  tied_embeddings: bool = _field(False, "unembedding = embedding transposed")
  dtype: str = _field("bfloat16", "dtype of activations and products")
  param_dtype: str = _field("float32", "dtype parameters are stored in")
  remat: str = _field("none", "rematerialisation: none, full or dots", True)
  attention: str = _field("xla", "training attention: xla or cudnn", True)

  def __post_init__(self):
    _require_positive(
      "model", self, "d_model", "n_layers", "n_attention_heads",
      "n_kv_heads", "d_head", "d_ff", "rope_theta", "norm_eps",
    )  # fmt: skip
    _require_not_negative("model", self, "vocab_size")
    _require(
      self.n_attention_heads % self.n_kv_heads == 0,
      "model.n_kv_heads", self.n_kv_heads,
      f"does not divide model.n_attention_heads = {self.n_attention_heads}",
    )  # fmt: skip
    _require(
      self.d_head % 2 == 0, "model.d_head", self.d_head,
      "must be even (rotary positions turn pairs)",
    )  # fmt: skip
    _require_one_of("model.remat", self.remat, REMAT_POLICIES)
    _require_one_of("model.attention", self.attention, ATTENTION)
    _require_one_of("model.dtype", self.dtype, DTYPES)
    _require_one_of("model.param_dtype", self.param_dtype, DTYPES)


@dataclasses.dataclass(frozen=True)
class Heads:
  """Which future tokens are predicted, and by what kind of head."""

  kind: str = _field("block", "kind of the extra heads: block, linear, medusa")
  offsets: tuple[int, ...] = _field(
    (1, 2, 3, 4), "offsets predicted; offset 1 is the model's own output"
  )
  tap: str = _field(
    "before_last",
    "what the extra heads read: the hidden state before the last layer "
    "(training from scratch) or after it (a pretrained model)",
  )
  matched: bool = _field(
    True, "take layers from the trunk so that parameters equal the baseline's"
  )

  def __post_init__(self):
    _require_one_of("heads.kind", self.kind, HEAD_KINDS)
    _require_one_of("heads.tap", self.tap, TAPS)
    rising = all(
      a < b for a, b in zip(self.offsets, self.offsets[1:], strict=False)
    )
    _require(
      len(self.offsets) > 0 and self.offsets[0] == 1 and rising,
      "heads.offsets", self.offsets,
      "must rise strictly and begin with 1, as in 1,2,3,4",
    )  # fmt: skip

  @property
  def n_extra(self) -> int:
    """Heads beside the model's own next-token output."""
    return len(self.offsets) - 1

  @property
  def chain_length(self) -> int:
    """Tokens a chain can draft: the unbroken run of offsets after 1."""
    run = 1
    while run < len(self.offsets) and self.offsets[run] == run + 1:
      run += 1
    return run - 1


@dataclasses.dataclass(frozen=True)
class Loss:
  """The multi-offset loss."""

  mode: str = _field(
    "fused", "fused or remat (both flat in memory), or unrolled", True
  )
  chunk_tokens: int = _field(
    1024, "tokens per device whose logits are alive at a time", True
  )
  weights: tuple[float, ...] = _field((), "one per offset; empty means all 1")
  z_loss: float = _field(0.0, "coefficient of the squared log-normaliser")

  def __post_init__(self):
    _require_one_of("loss.mode", self.mode, LOSS_MODES)
    _require_positive("loss", self, "chunk_tokens")
    _require_not_negative("loss", self, "z_loss")
    _require(
      all(w >= 0 for w in self.weights), "loss.weights", self.weights,
      "must all be >= 0",
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Data:
  """Where text comes from and how it is packed into rows."""

  path: str = _field("runs/data", "folder of the prepared rows", True)
  sources: tuple[str, ...] = _field(
    ("python-stdlib",),
    "python-stdlib, text:GLOB, jsonl:PATH:FIELD, jsonl:PATH:PROMPT,COMPLETION "
    "or tfds:NAME:SPLIT[:FIELD]",
  )
  tokenizer: str = _field("bytes", "bytes, or the path of a tokenizer.json")
  row_length: int = _field(512, "tokens per row")
  validation_fraction: float = _field(0.05, "share of documents held out")
  add_bos: bool = _field(True, "begin every document with the BOS id")
  add_eos: bool = _field(True, "end every document with the EOS id")
  bos_token: str = _field("", "BOS token; empty takes the tokenizer's own")
  eos_tokens: tuple[str, ...] = _field(
    (), "EOS tokens, first one is written; empty takes the tokenizer's own"
  )
  max_documents: int = _field(0, "stop after so many documents; 0 takes all")
  replace_invalid_utf8: bool = _field(
    False, "read bytes that are not UTF-8 as U+FFFD instead of stopping"
  )
  seed: int = _field(0, "decides which documents are held out")

  def __post_init__(self):
    _require(
      len(self.sources) > 0, "data.sources", self.sources,
      "is empty; try --data.sources python-stdlib",
    )  # fmt: skip
    _require(
      self.row_length >= 2, "data.row_length", self.row_length, "must be >= 2"
    )
    _require_not_negative("data", self, "max_documents")
    _require(
      0 <= self.validation_fraction < 1, "data.validation_fraction",
      self.validation_fraction, "must be at least 0 and below 1",
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Optim:
  """AdamW with linear warm-up and cosine decay."""

  peak_lr: float = _field(3e-4, "learning rate after the warm-up")
  final_lr_fraction: float = _field(0.1, "last learning rate over the peak")
  warmup_steps: int = _field(100, "steps of linear warm-up")
  decay_steps: int = _field(
    1000, "step at which the cosine ends; the last rate holds from there"
  )
  weight_decay: float = _field(0.1, "decoupled decay of matrices")
  b1: float = _field(0.9, "decay of the first moment")
  b2: float = _field(0.95, "decay of the second moment")
  eps: float = _field(1e-8, "epsilon of Adam")
  clip_norm: float = _field(1.0, "largest global gradient norm; 0 is no limit")

  def __post_init__(self):
    _require_positive("optim", self, "peak_lr", "decay_steps", "eps")
    _require_not_negative(
      "optim", self, "final_lr_fraction", "weight_decay", "clip_norm"
    )
    for name in ("b1", "b2"):
      value = getattr(self, name)
      _require(
        0 <= value < 1, f"optim.{name}", value, "must be at least 0 and below 1"
      )
    _require(
      0 <= self.warmup_steps < self.decay_steps, "optim.warmup_steps",
      self.warmup_steps,
      f"must be below optim.decay_steps = {self.decay_steps}",
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Mesh:
  """Devices along each axis; their product is the number of devices used."""

  data: int = _field(1, "copies of the model; -1 takes what is left", True)
  fsdp: int = _field(1, "shards of parameters and optimizer state", True)
  model: int = _field(1, "tensor parallelism", True)

  def __post_init__(self):
    sizes = (self.data, self.fsdp, self.model)
    _require(
      all(s > 0 or s == -1 for s in sizes) and sizes.count(-1) <= 1,
      "mesh", sizes, "needs sizes > 0, at most one of them -1",
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Train:
  """The run: length, batch, and how often things happen."""

  steps: int = _field(1000, "optimizer steps in all", True)
  batch_size: int = _field(16, "rows per step, over all devices")
  accumulation: int = _field(1, "parts a step's batch is run in", True)
  seed: int = _field(0, "parameters and the order of the rows")
  log_every: int = _field(10, "steps between lines of metrics", True)
  eval_every: int = _field(250, "steps between evaluations; 0 is never", True)
  eval_batches: int = _field(8, "batches per evaluation", True)
  save_every: int = _field(250, "steps between checkpoints", True)
  keep: int = _field(3, "checkpoints kept", True)
  peak_tflops: float = _field(
    0.0, "device peak for MFU, in TFLOP/s; 0 looks the device up", True
  )
  tensorboard: bool = _field(False, "also write event files (extra: tb)", True)

  def __post_init__(self):
    _require_positive(
      "train", self, "steps", "batch_size", "accumulation", "log_every",
      "eval_batches", "save_every", "keep",
    )  # fmt: skip
    _require_not_negative("train", self, "eval_every", "peak_tflops")
    _require(
      self.batch_size % self.accumulation == 0, "train.batch_size",
      self.batch_size,
      f"does not divide by train.accumulation = {self.accumulation}",
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Decode:
  """Defaults of `generate`."""

  mode: str = _field("chain", "next or chain", True)
  max_new_tokens: int = _field(256, "tokens generated per prompt", True)
  temperature: float = _field(0.0, "0 is greedy", True)
  seed: int = _field(0, "with the position, all there is to randomness", True)
  chunk_passes: int = _field(16, "passes between looks of the host", True)
  batch_size: int = _field(8, "prompts decoded together at most", True)
  cache_tokens: int = _field(
    0, "prompt and new tokens a cache holds; 0 makes it fit the request", True
  )

  def __post_init__(self):
    _require_one_of("decode.mode", self.mode, DECODE_MODES)
    _require_positive(
      "decode", self, "max_new_tokens", "chunk_passes", "batch_size"
    )
    _require_not_negative("decode", self, "temperature", "seed", "cache_tokens")


@dataclasses.dataclass(frozen=True)
class Config:
  """A complete experiment."""

  model: Model = Model()
  heads: Heads = Heads()
  loss: Loss = Loss()
  data: Data = Data()
  optim: Optim = Optim()
  mesh: Mesh = Mesh()
  train: Train = Train()
  decode: Decode = Decode()

  def __post_init__(self):
    weights, offsets = self.loss.weights, self.heads.offsets
    _require(
      not weights or len(weights) == len(offsets), "loss.weights", weights,
      f"needs one weight for each of heads.offsets = {offsets}",
    )  # fmt: skip
    _require(
      self.data.row_length > offsets[-1], "data.row_length",
      self.data.row_length,
      f"must be longer than the largest of heads.offsets = {offsets}",
    )  # fmt: skip
    if self.heads.n_extra and self.heads.tap == "before_last":
      _require(
        self.model.n_layers >= 2, "model.n_layers", self.model.n_layers,
        "leaves no layer before the last; take 2 or more, or --heads.tap last",
      )  # fmt: skip

  def to_dict(self) -> dict[str, Any]:
    """The configuration as plain JSON values."""
    return json.loads(json.dumps(dataclasses.asdict(self)))

  def save(self, path: pathlib.Path) -> None:
    """Writes the configuration to `path` as JSON, whole or not at all."""
    write_json(path, self.to_dict())


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes a JSON file, whole or not at all."""
  part = path.with_suffix(".tmp")
  part.write_text(json.dumps(value, indent=2) + "\n")
  part.replace(path)


def fields(config: Any = Config) -> Iterator[tuple[str, dataclasses.Field]]:
  """Yields ("section.name", field) for every field of a configuration."""
  for section in dataclasses.fields(config):
    for field in dataclasses.fields(typing.cast(Any, section.type)):
      yield f"{section.name}.{field.name}", field


def nearest(name: str, names: Sequence[str]) -> str:
  """Returns " (did you mean ...?)" for the closest of `names`, or ""."""
  close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
  return f"; did you mean {close[0]}?" if close else ""


def parse_value(text: str, kind: Any) -> Any:
  """Reads the command-line form of a field's value.

  Args:
    text: "3e-4", "true", "1,2,3", "text;text", ...
    kind: the field's type: int, float, bool, str, or a tuple of one of them.

  Returns:
    The value.

  Raises:
    ValueError: the text is not of that kind.
  """
  if typing.get_origin(kind) is tuple:
    inner = typing.get_args(kind)[0]
    # Texts may hold commas themselves: "jsonl:chat.jsonl:prompt,answer".
    parts = text.split(";" if inner is str else ",")
    return tuple(parse_value(p.strip(), inner) for p in parts if p.strip())
  if kind is bool:
    if text.lower() not in ("true", "false"):
      raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"
  return kind(text)


def _check_kind(value: Any, kind: Any) -> None:
  """Raises ValueError unless the value is of the kind; ints are floats."""
  if typing.get_origin(kind) is tuple:
    if not isinstance(value, tuple):
      raise ValueError
    for item in value:
      _check_kind(item, typing.get_args(kind)[0])
  elif type(value) is not kind and (kind, type(value)) != (float, int):
    raise ValueError


def kind_name(kind: Any) -> str:
  """Returns how a value is written, for help and errors: "int,..."."""
  if isinstance(kind, types.GenericAlias):
    inner = typing.get_args(kind)[0]
    return f"{inner.__name__}{';' if inner is str else ','}..."
  return "true|false" if kind is bool else kind.__name__


def override(config: Config, changes: dict[str, Any]) -> Config:
  """Returns `config` with fields replaced.

  Args:
    config: the configuration to start from.
    changes: values by path; "optim.peak_lr" and "optim.peak-lr" are the same.
      A string is read as on the command line.

  Returns:
    The new configuration, checked.

  Raises:
    UserError: a path that does not exist, or a value of the wrong type.
  """
  known = dict(fields())
  by_section: dict[str, dict[str, Any]] = {}
  for path, value in changes.items():
    path = path.replace("-", "_")
    if path not in known:
      raise UserError(
        f"{path}: no such configuration field{nearest(path, list(known))}"
      )
    kind = known[path].type
    try:
      if isinstance(value, str):
        value = parse_value(value, kind)
      _check_kind(value, kind)
    except ValueError as error:
      raise UserError(
        f"{path}: {value!r} is not of the form {kind_name(kind)}"
      ) from error
    section, name = path.split(".")
    by_section.setdefault(section, {})[name] = value
  sections = {
    name: dataclasses.replace(getattr(config, name), **values)
    for name, values in by_section.items()
  }
  return dataclasses.replace(config, **sections)


def load_experiment(path: str | pathlib.Path, variant: str = "") -> Config:
  """Runs an experiment file and returns its configuration.

  Args:
    path: a Python file that defines `config()` or `config(variant)`.
    variant: passed to `config`; empty calls it without.

  Returns:
    The configuration.

  Raises:
    UserError: no such file, no `config` in it, or it returns something else.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise UserError(f"experiment {path}: no such file; see experiments/")
  spec = importlib.util.spec_from_file_location(path.stem, path)
  if spec is None or spec.loader is None:
    raise UserError(f"experiment {path}: not a Python file (.py)")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  make = getattr(module, "config", None)
  if not callable(make):
    raise UserError(f"experiment {path}: defines no function config()")
  parameters = inspect.signature(make).parameters.values()
  if variant and not parameters:
    raise UserError(f"experiment {path}: config() takes no variant")
  if not variant and any(
    p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
    for p in parameters
  ):
    raise UserError(
      f"experiment {path}: config(variant) has no default; give --variant"
    )
  result = make(variant) if variant else make()
  if not isinstance(result, Config):
    raise UserError(
      f"experiment {path}: config() returned {type(result).__name__}, "
      "not a mtpjax.config.Config"
    )
  return result


def load_config(path: pathlib.Path) -> Config:
  """Reads a configuration that `Config.save` wrote.

  Args:
    path: a `config.json`.

  Returns:
    The configuration.

  Raises:
    UserError: the file is missing, is not JSON, or has unknown fields.
  """
  if not path.is_file():
    raise UserError(
      f"{path}: no such file; is {path.parent} a work directory of "
      "`mtpjax train`?"
    )
  try:
    return config_from_dict(json.loads(path.read_text()))
  except json.JSONDecodeError as error:
    raise UserError(f"{path}: not valid JSON ({error})") from error


def config_from_dict(values: dict[str, Any]) -> Config:
  """Returns the configuration of `Config.to_dict`; see `load_config`."""
  if not isinstance(values, dict) or not all(
    isinstance(entries, dict) for entries in values.values()
  ):
    raise UserError("configuration: must be an object of sections of fields")
  return override(
    Config(),
    {
      f"{section}.{name}": tuple(value) if isinstance(value, list) else value
      for section, entries in values.items()
      for name, value in entries.items()
    },
  )


def differences(old: Config, new: Config) -> list[tuple[str, Any, Any]]:
  """Lists the identity fields that differ, as (path, old, new)."""
  rows = []
  for path, field in fields():
    section, name = path.split(".")
    before = getattr(getattr(old, section), name)
    after = getattr(getattr(new, section), name)
    if before != after and not field.metadata["may_change"]:
      rows.append((path, before, after))
  return rows
