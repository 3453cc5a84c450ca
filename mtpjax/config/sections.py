"""The sections of an experiment, but for decoding: frozen dataclasses."""

import dataclasses

from mtpjax.config.checks import (
  check_kinds,
  field,
  require,
  require_not_negative,
  require_one_of,
  require_positive,
)

REMAT_POLICIES = ("none", "full", "dots")
LOSS_MODES = ("fused", "remat", "unrolled")
DTYPES = ("float32", "bfloat16", "float64")
UNEMBEDDINGS = ("shared", "copied")
ROPE_SCALINGS = ("none", "linear", "llama3")
ATTENTION = ("auto", "blocks", "full", "cudnn")


@dataclasses.dataclass(frozen=True)
class Tap:
  """Where extra heads read the trunk.

  Attributes:
    is_inside: before the last layer.
    is_normed: after the final norm, which then does not follow the heads.
  """

  is_inside: bool = False
  is_normed: bool = False


TAPS = {
  "before_last": Tap(is_inside=True),
  "last": Tap(),
  "normed": Tap(is_normed=True),
}


@dataclasses.dataclass(frozen=True)
class Model:
  """The trunk: a decoder-only transformer, Llama style."""

  vocab_size: int = field(0, "token ids; 0 takes the tokenizer's")
  d_model: int = field(256, "width of the hidden states")
  n_layers: int = field(6, "layers, those spent on matched heads included")
  n_attention_heads: int = field(8, "query attention heads per layer")
  n_kv_heads: int = field(4, "key/value heads per layer; divides the above")
  d_head: int = field(32, "width of one attention head")
  d_ff: int = field(768, "width of the gated MLP")
  rope_theta: float = field(10_000.0, "base of the rotary frequencies")
  rope_scaling: str = field(
    "none", "stretching of rotary frequencies: none, linear or llama3"
  )
  rope_factor: float = field(1.0, "how far linear and llama3 stretch")
  rope_low_freq_factor: float = field(
    1.0, "llama3: below so many turns within the original length, stretch"
  )
  rope_high_freq_factor: float = field(
    4.0, "llama3: above so many turns within the original length, leave as is"
  )
  rope_original_length: int = field(
    8192, "llama3: positions the model was first trained on"
  )
  sliding_window: int = field(
    0, "positions a query looks back on, its own included; 0 is all"
  )
  qkv_bias: bool = field(False, "biases of query, key and value (Qwen2)")
  qk_norm: bool = field(
    False, "RMSNorm of every query and key head before rotation (Qwen3)"
  )
  norm_eps: float = field(1e-5, "epsilon of RMSNorm")
  tied_embeddings: bool = field(False, "unembedding = embedding transposed")
  dtype: str = field("bfloat16", "dtype of activations and products")
  param_dtype: str = field("float32", "dtype parameters are stored in")
  remat: str = field("none", "rematerialisation: none, full or dots", True)
  attention: str = field(
    "auto", "attention: auto, blocks, full, or cudnn (of training)", True
  )

  def __post_init__(self):
    check_kinds("model", self)
    require_positive(
      "model", self, "d_model", "n_layers", "n_attention_heads",
      "n_kv_heads", "d_head", "d_ff", "rope_theta", "norm_eps",
    )  # fmt: skip
    require_not_negative("model", self, "vocab_size", "sliding_window")
    require_one_of("model.rope_scaling", self.rope_scaling, ROPE_SCALINGS)
    require_positive(
      "model", self, "rope_factor", "rope_low_freq_factor",
      "rope_original_length",
    )  # fmt: skip
    require(
      self.rope_high_freq_factor > self.rope_low_freq_factor,
      "model.rope_high_freq_factor", self.rope_high_freq_factor,
      "must be greater than model.rope_low_freq_factor = "
      f"{self.rope_low_freq_factor}",
    )  # fmt: skip
    require(
      self.n_attention_heads % self.n_kv_heads == 0,
      "model.n_kv_heads", self.n_kv_heads,
      f"does not divide model.n_attention_heads = {self.n_attention_heads}",
    )  # fmt: skip
    require(
      self.d_head % 2 == 0, "model.d_head", self.d_head,
      "must be even (rotary positions turn pairs)",
    )  # fmt: skip
    require_one_of("model.remat", self.remat, REMAT_POLICIES)
    if self.attention == "xla":  # its name in runs of earlier versions
      object.__setattr__(self, "attention", "full")
    require_one_of("model.attention", self.attention, ATTENTION)
    require_one_of("model.dtype", self.dtype, DTYPES)
    require_one_of("model.param_dtype", self.param_dtype, DTYPES)


@dataclasses.dataclass(frozen=True)
class Heads:
  """Which future tokens are predicted, and by what kind of head."""

  kind: str = field(
    "block",
    "kind of the extra heads: block, linear, medusa, sequential, none",
  )
  offsets: tuple[int, ...] = field(
    (1, 2, 3, 4), "offsets predicted; offset 1 is the model's own output"
  )
  tap: str = field(
    "before_last",
    "what the extra heads read: the hidden state before the last layer "
    "(training from scratch), after it (last), or after the final norm, which "
    "then does not follow the heads (normed; Medusa's own wiring)",
  )
  matched: bool = field(
    True, "take layers from the trunk so that parameters equal the baseline's"
  )
  n_layers: int = field(1, "residual layers of a medusa head")
  unembedding: str = field(
    "shared",
    "of the extra heads: shared with the model, or copied: one of its own for "
    "each medusa head, which begins as the model's",
  )

  def __post_init__(self):
    check_kinds("heads", self)
    require_one_of("heads.tap", self.tap, tuple(TAPS))
    require_one_of("heads.unembedding", self.unembedding, UNEMBEDDINGS)
    require_positive("heads", self, "n_layers")
    rising = all(
      a < b for a, b in zip(self.offsets, self.offsets[1:], strict=False)
    )
    require(
      len(self.offsets) > 0 and self.offsets[0] == 1 and rising,
      "heads.offsets", self.offsets,
      "must rise strictly and begin with 1, as in 1,2,3,4",
    )  # fmt: skip

  @classmethod
  def none(cls) -> "Heads":
    """Returns those of a plain next-token model."""
    return cls(kind="none", offsets=(1,), tap="normed", matched=False)

  @property
  def tapped(self) -> Tap:
    """What `tap` stands for."""
    return TAPS[self.tap]

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
class Base:
  """The pretrained model that heads are trained on, if there is one."""

  path: str = field(
    "", "work directory of the base; empty trains everything from scratch", True
  )
  is_trained: bool = field(
    False, "train the base too; otherwise it is frozen and only referred to"
  )
  states: str = field(
    "",
    "folder for the frozen base's hidden states of all rows, so that the trunk "
    "runs once over them; empty runs it at every step",
    True,
  )

  @property
  def is_frozen(self) -> bool:
    """Whether there is a base that does not learn."""
    return bool(self.path) and not self.is_trained

  def __post_init__(self):
    check_kinds("base", self)
    require(
      not self.is_trained or bool(self.path), "base.is_trained",
      self.is_trained, "needs a base; give --base.path",
    )  # fmt: skip
    require(
      not self.states or self.is_frozen,
      "base.states", self.states, "needs a base that is frozen",
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Loss:
  """The multi-offset loss."""

  mode: str = field(
    "fused", "fused or remat (both flat in memory), or unrolled", True
  )
  chunk_tokens: int = field(
    1024, "tokens per device whose logits are alive at a time", True
  )
  targets: str = field(
    "labels",
    "what the extra heads learn: labels (the text), teacher_argmax (the "
    "model's own next-token choice there) or teacher_soft (its distribution)",
  )
  weights: tuple[float, ...] = field((), "one per offset; empty means all 1")
  z_loss: float = field(0.0, "coefficient of the squared log-normaliser")

  def __post_init__(self):
    check_kinds("loss", self)
    require_one_of("loss.mode", self.mode, LOSS_MODES)
    require_positive("loss", self, "chunk_tokens")
    require_not_negative("loss", self, "z_loss")
    require(
      all(w >= 0 for w in self.weights), "loss.weights", self.weights,
      "must all be >= 0",
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Data:
  """Where text comes from and how it is packed into rows."""

  path: str = field("runs/data", "folder of the prepared rows", True)
  sources: tuple[str, ...] = field(
    ("python-stdlib",),
    "python-stdlib, python-package:NAME, text:GLOB, jsonl:PATH:FIELD (texts, "
    "or chats as lists of messages), jsonl:PATH:PROMPT,COMPLETION or "
    "tfds:NAME:SPLIT[:FIELD]",
  )
  validation_sources: tuple[str, ...] = field(
    (),
    "sources of their own for validation; empty holds out a share of the "
    "documents of data.sources",
  )
  tokenizer: str = field(
    "bytes",
    "bytes, a tokenizer.json, or a folder with one and what belongs to it",
    True,
  )
  row_length: int = field(512, "tokens per row")
  validation_fraction: float = field(
    0.05, "share of documents held out; of a single document, its end"
  )
  add_bos: bool = field(True, "begin every document with the BOS id")
  add_eos: bool = field(True, "end every document with the EOS id")
  bos_token: str = field("", "BOS token; empty takes the tokenizer's own")
  eos_tokens: tuple[str, ...] = field(
    (), "EOS tokens, first one is written; empty takes the tokenizer's own"
  )
  max_documents: int = field(0, "stop after so many documents; 0 takes all")
  replace_invalid_utf8: bool = field(
    False, "read bytes that are not UTF-8 as U+FFFD instead of stopping"
  )
  seed: int = field(0, "decides which documents are held out")

  def __post_init__(self):
    check_kinds("data", self)
    require(
      len(self.sources) > 0, "data.sources", self.sources,
      "is empty; try --data.sources python-stdlib",
    )  # fmt: skip
    require(
      self.row_length >= 2, "data.row_length", self.row_length, "must be >= 2"
    )
    require_not_negative("data", self, "max_documents")
    require(
      0 <= self.validation_fraction < 1, "data.validation_fraction",
      self.validation_fraction, "must be at least 0 and below 1",
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Optim:
  """AdamW with linear warm-up and cosine decay."""

  peak_lr: float = field(3e-4, "learning rate after the warm-up")
  final_lr_fraction: float = field(0.1, "last learning rate over the peak")
  warmup_steps: int = field(100, "steps of linear warm-up")
  decay_steps: int = field(
    1000,
    "step at which the cosine ends; the last rate holds from there. A resumed "
    "run may have another, to be stretched",
    True,
  )
  weight_decay: float = field(0.1, "decoupled decay of matrices")
  b1: float = field(0.9, "decay of the first moment")
  b2: float = field(0.95, "decay of the second moment")
  eps: float = field(1e-8, "epsilon of Adam")
  clip_norm: float = field(1.0, "largest global gradient norm; 0 is no limit")
  clips_apart: bool = field(
    False, "clip the model's and the heads' gradients each by their own norm"
  )
  heads_lr_ratio: float = field(
    1.0, "learning rate of the extra heads over that of the model"
  )
  heads_only_steps: int = field(
    0,
    "steps at first in which only the extra heads learn; the model's own "
    "warm-up begins after them",
  )

  def __post_init__(self):
    check_kinds("optim", self)
    require_positive(
      "optim", self, "peak_lr", "decay_steps", "eps", "heads_lr_ratio"
    )
    require_not_negative(
      "optim", self, "final_lr_fraction", "weight_decay", "clip_norm",
      "heads_only_steps",
    )  # fmt: skip
    require(
      self.heads_only_steps + self.warmup_steps < self.decay_steps
      or not self.heads_only_steps,
      "optim.heads_only_steps", self.heads_only_steps,
      f"and optim.warmup_steps = {self.warmup_steps} leave nothing of "
      f"optim.decay_steps = {self.decay_steps}",
    )  # fmt: skip
    for name in ("b1", "b2"):
      value = getattr(self, name)
      require(
        0 <= value < 1, f"optim.{name}", value, "must be at least 0 and below 1"
      )
    require(
      0 <= self.warmup_steps < self.decay_steps, "optim.warmup_steps",
      self.warmup_steps,
      f"must be below optim.decay_steps = {self.decay_steps}",
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Mesh:
  """Devices along each axis; their product is the number of devices used."""

  data: int = field(1, "copies of the model; -1 takes what is left", True)
  fsdp: int = field(1, "shards of parameters and optimizer state", True)
  model: int = field(1, "tensor parallelism", True)

  def __post_init__(self):
    check_kinds("mesh", self)
    sizes = (self.data, self.fsdp, self.model)
    require(
      all(s > 0 or s == -1 for s in sizes) and sizes.count(-1) <= 1,
      "mesh", sizes, "needs sizes > 0, at most one of them -1",
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Train:
  """The run: length, batch, and how often things happen."""

  steps: int = field(1000, "optimizer steps in all", True)
  batch_size: int = field(16, "rows per step, over all devices")
  accumulation: int = field(1, "parts a step's batch is run in", True)
  seed: int = field(0, "parameters and the order of the rows")
  log_every: int = field(10, "steps between lines of metrics", True)
  eval_every: int = field(250, "steps between evaluations; 0 is never", True)
  eval_batches: int = field(8, "batches per evaluation", True)
  save_every: int = field(250, "steps between checkpoints", True)
  keep: int = field(3, "checkpoints kept", True)
  peak_tflops: float = field(
    0.0, "device peak for MFU, in TFLOP/s; 0 looks the device up", True
  )
  tensorboard: bool = field(False, "also write event files (extra: tb)", True)

  def __post_init__(self):
    check_kinds("train", self)
    require_positive(
      "train", self, "steps", "batch_size", "accumulation", "log_every",
      "eval_batches", "save_every", "keep",
    )  # fmt: skip
    require_not_negative("train", self, "eval_every", "peak_tflops")
    require(
      self.batch_size % self.accumulation == 0, "train.batch_size",
      self.batch_size,
      f"does not divide by train.accumulation = {self.accumulation}",
    )  # fmt: skip
