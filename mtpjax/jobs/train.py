"""`mtpjax train`: train an experiment, or go on where it stopped."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import rich.console

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
  tokenizer_of_run,
)
from mtpjax.errors import UserError
from mtpjax.evals import make_evaluator
from mtpjax.heads import EVERYTHING, MultiTokenModel, Trained
from mtpjax.losses import check_target
from mtpjax.progress import Progress, print_line
from mtpjax.train import (
  Hook,
  Program,
  Reporter,
  Run,
  TrainState,
  about_schedule,
  cache_states,
  describe_model,
  describe_run,
  flatten,
  train,
)


@dataclasses.dataclass(frozen=True)
class _Parts:
  """What a run is put together from, before anything is written.

  Attributes:
    config: the experiment, completed by its base and its tokenizer.
    tokenizer: of the rows and of the base.
    fingerprint: of the prepared rows.
    base: the pretrained model; None trains from scratch.
    program: what trains it.
    train_rows: rows to learn from.
    validation_rows: rows to evaluate on; may be none.
  """

  config: Config
  tokenizer: Tokenizer
  fingerprint: dict[str, Any]
  base: Base | None
  program: Program
  train_rows: Any
  validation_rows: Any

  @classmethod
  def of(cls, config: Config, place: WorkDir) -> "_Parts":
    """Opens everything that an experiment names, and checks it."""
    check_target(config)
    data = config.data
    tokenizer = load_tokenizer(data.tokenizer, data.bos_token, data.eos_tokens)
    fingerprint = require_prepared_for(data, tokenizer)
    base = None
    if config.base.path:
      base = _base(config, place)
      config = _on_base(config, base, tokenizer)
    config = with_vocabulary(config, tokenizer)
    mesh = parallel.make_mesh(config.mesh)
    parallel.check_batch(
      config.train.batch_size // config.train.accumulation, mesh,
      "train.batch_size / train.accumulation",
    )  # fmt: skip
    trained = Trained(("heads",)) if config.base.is_frozen else EVERYTHING
    program = Program.build(config, mesh, trained)
    rows = [open_rows(data.path, split) for split in ("train", "validation")]
    for split in rows:
      require_within(split, tokenizer, config.model.vocab_size)
    return cls(config, tokenizer, fingerprint, base, program, *rows)

  def with_states(self, lm: Any, console: rich.console.Console) -> "_Parts":
    """Returns the same with the base's states beside its rows, if asked for."""
    if not self.config.base.states:
      return self
    train, validation = (
      _with_states(self, lm, rows, console)
      for rows in (self.train_rows, self.validation_rows)
    )
    return dataclasses.replace(
      self, train_rows=train, validation_rows=validation
    )

  def metadata(self, base: Base | None) -> dict[str, Any]:
    """Returns what is saved with every checkpoint."""
    return {
      "config": self.config.to_dict(),
      "data": self.fingerprint["id"],
      "tokenizer": self.tokenizer.fingerprint,
    } | ({"base": base.reference} if base is not None else {})


def run(
  config: Config,
  workdir: str | pathlib.Path,
  console: rich.console.Console,
  hooks: Sequence[Hook] = (),
) -> dict[str, Any]:
  """Trains `config` in `workdir`, from its latest checkpoint if it has one.

  Args:
    config: the experiment.
    workdir: see `mtpjax.checkpoint.workdir`.
    console: gets one line per window of steps, and the time left.
    hooks: what else to do between steps.

  Returns:
    {"step", "workdir", "metrics"}: the last step, and its last metrics.

  Raises:
    UserError: the data is not prepared, the work directory is another run's
      or in use, or the run diverged.
  """
  place = WorkDir(workdir)
  parts = _Parts.of(config, place)
  config, program = parts.config, parts.program
  say = functools.partial(print_line, console)
  place.make()
  with place.hold(say), Store(place.checkpoints, config.train.keep) as store:
    place.claim(config, parts.fingerprint)
    parts.tokenizer.save(place.path)
    state, frozen, base, decay_steps = _begin(
      program, parts.base, place, store, say, console
    )
    start = int(state.step)
    if start >= config.train.steps:
      say(
        f"{place.path} is at step {start} of {config.train.steps}: nothing to "
        "do; raise --train.steps to go on"
      )
      return {"step": start, "workdir": str(place.path), "metrics": {}}
    say(describe_run(program.model.mesh, config, parts.fingerprint))
    for line in about_schedule(config, start, decay_steps):
      say(line)
    parts = parts.with_states(frozen.get("lm"), console)
    with Reporter(place, config, start, console) as report:
      state = train(
        Run(
          config=config,
          model=program.model,
          train_step=program.step(frozen),
          loader=Loader(
            parts.train_rows, config.train.batch_size, config.train.seed,
            jax.process_index(), jax.process_count(),
          ),
          store=store,
          metadata=parts.metadata(base),
          evaluate=_evaluator(parts, frozen, say),
          report=report,
          hooks=hooks,
          say=say,
          note=report.note,
        ),
        state,
      )  # fmt: skip
    say(f"saved in {place.path}")
  return {
    "step": int(state.step),
    "workdir": str(place.path),
    "metrics": report.last,
  }


def _evaluator(
  parts: _Parts, frozen: dict[str, Any], say: Callable[[str], None]
) -> Callable[[Any], dict[str, float]] | None:
  """Returns what evaluates the parts that learn; None if that is not asked."""
  config, rows = parts.config, parts.validation_rows
  if not len(rows) or not config.train.eval_every:
    return None
  per_offset = make_evaluator(
    parts.program.model, config.loss, rows, config.train.batch_size,
    config.train.eval_batches, say,
  )  # fmt: skip
  return lambda params: flatten(
    per_offset(frozen | params), config.heads.offsets
  )


def _base(config: Config, place: WorkDir) -> Base:
  """Returns the base: where it is said to be or, on a resume, near the run."""
  with Store(place.checkpoints) as store:
    metadata = store.read_metadata() if store.steps() else {}
  # What a whole model was made from need not be the same any more.
  is_looked_for = not config.base.is_trained or not os.path.isdir(
    config.base.path
  )
  if "base" in metadata and is_looked_for:
    return Base.find(config.base.path, metadata["base"], place.path)
  return Base.open(config.base.path)


def _on_base(config: Config, base: Base, tokenizer: Tokenizer) -> Config:
  """Returns the configuration with the model and vocabulary of its base."""
  there = base.config
  own = tokenizer_of_run(there.data.tokenizer, base.place.path)
  theirs = load_tokenizer(
    own,
    there.data.bos_token,
    there.data.eos_tokens,
  )
  size = there.model.vocab_size
  if theirs.fingerprint_within(size) != tokenizer.fingerprint_within(size):
    raise UserError(
      f"data.tokenizer: {config.data.tokenizer!r} is not the tokenizer of "
      f"base.path = {config.base.path!r} (vocabulary of {tokenizer.vocab_size} "
      f"and {theirs.vocab_size}, or other special tokens); give "
      f"--data.tokenizer {own}"
    )
  mesh = parallel.single_device_mesh()
  layers = MultiTokenModel(there.model, there.heads, mesh).trunk_layers
  return model_on_base(config, base, layers)


def _with_states(
  parts: _Parts, lm: Any, rows: Any, console: rich.console.Console
) -> Any:
  """Returns the rows with the frozen base's states; see `cache_states`."""
  config, base = parts.config, parts.base
  assert base is not None
  run = 0

  def report(done: int, of: int) -> None:
    nonlocal run
    run = done
    progress.update(done)

  text = f"base.states: running {rows.split} rows through the base"
  with Progress(console, text, len(rows)) as progress:
    with_states = cache_states(
      parts.program.model, lm, rows, config.base.states,
      {"base": base.digest, "data": parts.fingerprint["id"]},
      config.train.batch_size, report,
    )  # fmt: skip
  if run:
    print_line(
      console,
      f"base.states: {run} of {len(rows)} {rows.split} rows run through the "
      "base",
    )
  return with_states


def with_vocabulary(config: Config, tokenizer: Tokenizer) -> Config:
  """Fills `model.vocab_size` in from the tokenizer, where it is left open."""
  size = config.model.vocab_size or tokenizer.vocab_size
  return dataclasses.replace(
    config, model=dataclasses.replace(config.model, vocab_size=size)
  )


def _begin(
  program: Program,
  base: Base | None,
  place: WorkDir,
  store: Store,
  say: Callable[[str], None],
  console: rich.console.Console,
) -> tuple[TrainState, dict[str, Any], Base | None, int]:
  """Restores the latest checkpoint, or makes a state.

  Returns:
    The state, the parts that do not learn, the base at the step that they are
    of, and the decay steps that the schedule had so far.
  """
  config, model = program.config, program.model
  is_frozen = config.base.is_frozen
  is_fresh = store.latest_step() is None
  decay_steps = config.optim.decay_steps
  if not is_fresh:
    with Progress(console, "restoring the checkpoint"):
      state, metadata = store.restore(program.abstract_state(), log=say)
    place.require_own_checkpoint(config, metadata)
    decay_steps = metadata["config"]["optim"]["decay_steps"]
    if base is not None and is_frozen:
      base = Base.open(base.place.path, metadata["base"]["step"])
      base.require(metadata["base"], place.path)
  lm = None
  if base is not None and (is_fresh or is_frozen):
    with Progress(console, "loading the base"):
      lm = base.restore(
        parallel.abstract_arrays(model.abstract(), model.mesh)["lm"], say
      )
  if is_fresh:
    given = {} if lm is None else {"lm": lm}
    with Progress(console, "making the parameters"):
      state = jax.block_until_ready(program.create_state(given))
    say(describe_model(model, config))
  else:
    say(f"resuming {place.path} from step {int(state.step)}")
  frozen = {"lm": lm} if is_frozen else {}
  return state, frozen, base, decay_steps
