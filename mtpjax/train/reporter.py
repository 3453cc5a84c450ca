"""What is said of a run: at its start, and as it goes."""

import dataclasses
from typing import Any

import jax
import rich.console

from mtpjax.checkpoint import WorkDir
from mtpjax.config import Config
from mtpjax.heads import MultiTokenModel, count_params
from mtpjax.model import chosen_for
from mtpjax.progress import Progress, print_line
from mtpjax.train.metrics import JsonLines, TensorBoard, per_target_names
from mtpjax.train.optimizer import make_schedule


def describe_model(model: MultiTokenModel, config: Config) -> str:
  """Says how large a model is, and of what."""
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


def describe_run(
  mesh: jax.sharding.Mesh, config: Config, fingerprint: dict[str, Any]
) -> str:
  """Says where the run runs, on what, and how much of it at a step."""
  kind = mesh.devices.flat[0].device_kind
  axes = " x ".join(f"{name} {size}" for name, size in mesh.shape.items())
  split = fingerprint["splits"]["train"]
  length = config.data.row_length
  return (
    f"{mesh.size} {kind} device{'s' * (mesh.size > 1)}, mesh {axes}; data "
    f"{config.data.path}: {split['rows']:,} rows of {length:,}, "
    f"{split['tokens']:,} tokens; {config.train.batch_size * length:,} tokens "
    f"per step; attention: {chosen_for(config.model.attention, length)}"
  )


def about_schedule(config: Config, start: int, decay_steps: int) -> list[str]:
  """Says what is unusual about the schedule of this start.

  Args:
    config: the experiment.
    start: steps done.
    decay_steps: those of the checkpoint that was restored.

  Returns:
    Lines; none if nothing is.
  """
  optim, steps = config.optim, config.train.steps
  lines = []
  is_frozen = config.base.is_frozen  # only the heads learn, by their schedule
  rate = make_schedule(optim, of_heads=is_frozen)
  if optim.decay_steps != decay_steps:
    before = dataclasses.replace(optim, decay_steps=decay_steps)
    old = float(make_schedule(before, of_heads=is_frozen)(start))
    lines.append(
      f"optim.decay_steps is {optim.decay_steps} and was {decay_steps}: at "
      f"step {start} the learning rate changes from {old:.3g} to "
      f"{float(rate(start)):.3g}"
    )
  if steps > optim.decay_steps and optim.final_lr_fraction < 1:
    first = max(start, optim.decay_steps) + 1
    lines.append(
      f"WARNING: the schedule ends at optim.decay_steps = {optim.decay_steps}, "
      f"before train.steps = {steps}: steps {first} to {steps} run at its last "
      f"learning rate, {float(rate(steps)):.3g} "
      f"({optim.final_lr_fraction:g} of the peak); to stretch it, give "
      f"--optim.decay-steps {steps}"
    )
  return lines


class Reporter:
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
    self.progress = Progress(console, "training", config.train.steps, start)

  def __enter__(self) -> "Reporter":
    self.progress.__enter__()
    return self

  def __exit__(self, *exception: Any) -> None:
    self.progress.__exit__(*exception)
    for writer in self.writers:
      writer.close()

  def note(self, text: str) -> None:
    """Shows what is happening now."""
    self.progress.update(text=text)

  def __call__(self, step: int, kind: str, values: dict[str, float]) -> None:
    """Writes metrics, and prints a line of them."""
    for writer in self.writers:
      writer.write(step, kind, values)
    self.last |= {f"{kind}/{name}": value for name, value in values.items()}
    self.progress.update(step)
    offsets = self.config.heads.offsets

    def series(name: str) -> str:
      found = (values.get(f"{name}/offset_{o}") for o in offsets)
      return " ".join("none" if v is None else f"{v:.3f}" for v in found)

    text = f"step {step:>6}  {kind:<5}"
    for name in per_target_names(values):
      text += f"  {name} {series(name)}"
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
      print_line(self.console, text)
