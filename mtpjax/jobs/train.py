"""`mtpjax train`: train an experiment, or go on where it stopped."""

import dataclasses
import pathlib
import time
from typing import Any

import jax
import rich.console
import rich.progress

from mtpjax import parallel
from mtpjax.checkpoint import Base, Store, WorkDir, model_on_base
from mtpjax.config import Config
from mtpjax.data import (
  Loader,
  Tokenizer,
  load_tokenizer,
  open_rows,
  require_prepared_for,
  require_within,
)
from mtpjax.errors import UserError
from mtpjax.evals import make_evaluator
from mtpjax.heads import MultiTokenModel, count_params
from mtpjax.train import (
  JsonLines,
  Run,
  TensorBoard,
  abstract_state,
  cache_states,
  create_state,
  flatten,
  make_optimizer,
  make_train_step,
  train,
)

# Between lines of progress of what takes minutes.
_TELL_SECS = 15


def run(
  config: Config, workdir: str | pathlib.Path, console: rich.console.Console
) -> dict[str, Any]:
  """Trains `config` in `workdir`, from its latest checkpoint if it has one.

  Args:
    config: the experiment.
    workdir: see `mtpjax.checkpoint.workdir`.
    console: gets one line per window of steps, and the time left.

  Returns:
    {"step", "workdir", "metrics"}: the last step, and its last metrics.

  Raises:
    UserError: the data is not prepared, the work directory is another run's,
      or the run diverged.
  """
  data = config.data
  tokenizer = load_tokenizer(data.tokenizer, data.bos_token, data.eos_tokens)
  fingerprint = require_prepared_for(data, tokenizer)
  base = None
  if config.base.path:
    base = Base.open(config.base.path)
    config = _on_base(config, base, tokenizer)
  config = with_vocabulary(config, tokenizer)
  mesh = parallel.make_mesh(config.mesh)
  parallel.check_batch(
    config.train.batch_size // config.train.accumulation, mesh,
    "train.batch_size / train.accumulation",
  )  # fmt: skip
  model = MultiTokenModel(config.model, config.heads, mesh)
  only_heads = base is not None and not config.base.is_trained
  boxes = model.abstract()
  if only_heads:
    boxes = {"heads": boxes["heads"]}
  optimizer = make_optimizer(config.optim, boxes)
  train_rows: Any = open_rows(data.path, "train")
  validation_rows: Any = open_rows(data.path, "validation")
  for rows in (train_rows, validation_rows):
    require_within(rows, tokenizer, config.model.vocab_size)
  place = WorkDir(workdir)
  place.claim(config, fingerprint)
  tokenizer.save(place.path)

  def say(text: str) -> None:
    console.print(text, soft_wrap=True, markup=False, highlight=False)

  with Store(place.checkpoints, config.train.keep) as store:
    is_fresh = store.latest_step() is None
    if not is_fresh:
      state, metadata = store.restore(
        abstract_state(model, optimizer, only_heads), log=say
      )
      place.require_own_checkpoint(config, metadata)
      if base is not None and only_heads:
        base = Base.open(config.base.path, metadata["base"]["step"])
        base.require(metadata["base"], place.path)
    lm = None
    if base is not None and (is_fresh or only_heads):
      lm = base.restore(
        parallel.abstract_arrays(model.abstract(), mesh)["lm"], say
      )
    if is_fresh:
      state = create_state(
        model, optimizer, jax.random.key(config.train.seed), lm, only_heads
      )
      say(_describe(model, config))
    else:
      say(f"resuming {place.path} from step {int(state.step)}")
    frozen = {"lm": lm} if only_heads else {}
    del lm
    start = int(state.step)
    if start >= config.train.steps:
      say(
        f"{place.path} is at step {start} of {config.train.steps}: nothing to "
        "do; raise --train.steps to go on"
      )
      return {"step": start, "workdir": str(place.path), "metrics": {}}

    if config.base.states:
      assert base is not None
      train_rows, validation_rows = (
        _with_states(model, frozen["lm"], rows, config, base, fingerprint, say)
        for rows in (train_rows, validation_rows)
      )
    loader = Loader(
      train_rows, config.train.batch_size, config.train.seed,
      jax.process_index(), jax.process_count(),
    )  # fmt: skip

    evaluate = None
    if len(validation_rows) and config.train.eval_every:
      per_offset = make_evaluator(
        model, config.loss, validation_rows, config.train.batch_size,
        config.train.eval_batches, say,
      )  # fmt: skip

      def evaluate(params: Any) -> dict[str, float]:
        return flatten(per_offset(frozen | params), config.heads.offsets)

    with _Reporter(place, config, start, console) as report:
      state = train(
        Run(
          config=config,
          model=model,
          train_step=make_train_step(model, optimizer, config, frozen),
          loader=loader,
          store=store,
          metadata={
            "config": config.to_dict(),
            "data": fingerprint["id"],
            "tokenizer": tokenizer.fingerprint,
          }
          | ({"base": base.reference} if base is not None else {}),
          evaluate=evaluate,
          report=report,
          say=say,
        ),
        state,
      )
  step = int(state.step)
  if step < config.train.steps:
    say(f"stopped at step {step}, saved; the same command goes on from here")
  return {"step": step, "workdir": str(place.path), "metrics": report.last}


def _on_base(config: Config, base: Base, tokenizer: Tokenizer) -> Config:
  """Returns the configuration with the model and vocabulary of its base."""
  there = base.config
  theirs = load_tokenizer(
    base.place.tokenizer_spec(there),
    there.data.bos_token,
    there.data.eos_tokens,
  )
  size = there.model.vocab_size
  if theirs.fingerprint_within(size) != tokenizer.fingerprint_within(size):
    raise UserError(
      f"data.tokenizer: {config.data.tokenizer!r} is not the tokenizer of "
      f"base.path = {config.base.path!r} (vocabulary of {tokenizer.vocab_size} "
      f"and {theirs.vocab_size}, or other special tokens); give "
      f"--data.tokenizer {base.place.tokenizer_spec(there)}"
    )
  mesh = parallel.single_device_mesh()
  layers = MultiTokenModel(there.model, there.heads, mesh).trunk_layers
  return model_on_base(config, base, layers)


def _with_states(
  model: MultiTokenModel,
  lm: Any,
  rows: Any,
  config: Config,
  base: Base,
  fingerprint: dict[str, Any],
  say: Any,
) -> Any:
  """Returns the rows with the frozen base's states; see `cache_states`."""
  told = time.monotonic()

  def report(done: int, of: int) -> None:
    nonlocal told
    if done == of or time.monotonic() - told > _TELL_SECS:
      told = time.monotonic()
      say(f"base.states: {done} of {of} {rows.split} rows run through the base")

  return cache_states(
    model, lm, rows, config.base.states,
    {"base": base.digest, "data": fingerprint["id"]},
    config.train.batch_size, report,
  )  # fmt: skip


def with_vocabulary(config: Config, tokenizer: Tokenizer) -> Config:
  """Fills `model.vocab_size` in from the tokenizer, where it is left open."""
  size = config.model.vocab_size or tokenizer.vocab_size
  return dataclasses.replace(
    config, model=dataclasses.replace(config.model, vocab_size=size)
  )


def _describe(model: MultiTokenModel, config: Config) -> str:
  params = count_params(model)
  depth, difference = model.matching()
  total = params["lm"] + params["heads"]
  text = (
    f"{total / 1e6:.2f} M parameters ({params['heads'] / 1e6:.2f} M in "
    f"{config.heads.n_extra} extra {config.heads.kind} heads), trunk of "
    f"{depth} layers"
  )
  if config.heads.n_extra and config.heads.matched:
    text += (
      f", {difference:+,} parameters against the next-token baseline of "
      f"{config.model.n_layers} layers"
    )
  return text


class _Reporter:
  """Sends metrics to the file, the console and TensorBoard."""

  def __init__(
    self,
    place: WorkDir,
    config: Config,
    start: int,
    console: rich.console.Console,
  ):
    self.config = config
    self.console = console
    self.last: dict[str, float] = {}
    # Only process 0 writes; the others compute the same numbers.
    self.writers: list[Any] = []
    if jax.process_index() == 0:
      self.writers.append(JsonLines(place.metrics, start))
      if config.train.tensorboard:
        self.writers.append(TensorBoard(place.path / "tensorboard", start))
    self.progress = rich.progress.Progress(
      rich.progress.TextColumn("training"),
      rich.progress.BarColumn(),
      rich.progress.MofNCompleteColumn(),
      rich.progress.TimeElapsedColumn(),
      rich.progress.TextColumn("left"),
      rich.progress.TimeRemainingColumn(),
      console=console,
      transient=True,
      disable=not console.is_terminal,
    )
    self.task = self.progress.add_task(
      "training", total=config.train.steps, completed=start
    )

  def __enter__(self) -> "_Reporter":
    self.progress.start()
    return self

  def __exit__(self, *_: Any) -> None:
    self.progress.stop()
    for writer in self.writers:
      writer.close()

  def __call__(self, step: int, kind: str, values: dict[str, float]) -> None:
    for writer in self.writers:
      writer.write(step, kind, values)
    self.last |= {f"{kind}/{name}": value for name, value in values.items()}
    self.progress.update(self.task, completed=step)
    offsets = self.config.heads.offsets

    def series(name: str, form: str) -> str:
      return " ".join(f"{values[f'{name}/offset_{o}']:{form}}" for o in offsets)

    text = (
      f"step {step:>6}  {kind:<5}  loss {series('loss', '.3f')}  "
      f"accuracy {series('accuracy', '.3f')}"
    )
    if kind == "train":
      left = (self.config.train.steps - step) * values["step_secs"]
      text += (
        f"  norm {values['grad_norm']:.2f}  "
        f"{values['tokens_per_sec']:,.0f} tokens/s"
      )
      if "mfu" in values:
        text += f"  MFU {values['mfu']:.1%}"
      text += f"  {left / 60:.1f} min left"
    if jax.process_index() == 0:
      self.console.print(text, soft_wrap=True, markup=False, highlight=False)
