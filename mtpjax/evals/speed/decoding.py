"""Speed of decoding modes on the same requests, measured side by side."""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mtpjax.decode import Request, Result, Spec, committed
from mtpjax.decode.batch import Packer
from mtpjax.evals.drafts.acceptance import Acceptance, count_acceptance
from mtpjax.evals.speed.pass_parts import PassParts, measure_parts
from mtpjax.evals.speed.trial import Trial

CHUNK_PASSES = 16  # the default of `generate`


@dataclasses.dataclass(frozen=True)
class Details:
  """What `measure` finds out when there is time for it.

  Attributes:
    token_p50_secs: median time per token, the host looking after every pass;
      each token of a pass has the pass's seconds over its row's tokens.
    token_p95_secs: 95 in 100 tokens take no longer.
    parts: of a pass; medians.
  """

  token_p50_secs: float
  token_p95_secs: float
  parts: PassParts


@dataclasses.dataclass(frozen=True)
class ModeSpeed:
  """What a mode did with the requests of a class.

  Attributes:
    kind: the class.
    mode: its name.
    tokens_per_sec: of a whole batch, the prompts' passes excluded, the host
      looking every `CHUNK_PASSES` passes as `decode.generate` does; median.
    speed_over_first: median of tokens/s over that of the first mode, pair by
      pair.
    pass_secs: of a pass in a loop that nobody looks at; median.
    kept: speed_over_first over what the passes promise: tokens per pass of the
      batch times the first mode's pass over this one's. Near 1 if nothing is
      lost outside the passes.
    rows_running: share of the rows that still ran in a pass: rows that are
      done wait for the others here, though not in `decode.generate`.
    outputs_identical: every token equals the first mode's; None where that is
      not promised, as the verifier draws tokens of its own.
    acceptance: what became of the drafts.
    details: None if they weren't asked for.
  """

  kind: str
  mode: str
  tokens_per_sec: float
  speed_over_first: float
  pass_secs: float
  kept: float
  rows_running: float
  outputs_identical: bool | None
  acceptance: Acceptance
  details: Details | None

  def to_dict(self) -> dict[str, Any]:
    """Returns one level of fields, `kind` as "class"; ready for JSON."""
    values = dataclasses.asdict(self)
    details = values.pop("details") or {}
    acceptance = values.pop("acceptance")
    kind = values.pop("kind")
    parts = details.pop("parts", {})
    row = {"class": kind, **values, **acceptance, **details, **parts}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in row.items()}


@dataclasses.dataclass
class _Record:
  """What the rounds of one mode on one class have measured."""

  trials: list[Trial]
  loop_secs: list[float] = dataclasses.field(default_factory=list)
  served_secs: list[float] = dataclasses.field(default_factory=list)
  token_secs: list[float] = dataclasses.field(default_factory=list)
  results: list[list[Result]] = dataclasses.field(default_factory=list)

  @property
  def loop_passes(self) -> int:
    """Passes of the loop; the slowest row of a batch counts them."""
    return sum(max(r.passes - 1 for r in batch) for batch in self.results)

  @property
  def rows(self) -> list[Result]:
    return [result for batch in self.results for result in batch]

  @property
  def ids(self) -> list[tuple[int, ...]]:
    return [result.ids for result in self.rows]


def measure(
  params: Any,
  requests: Sequence[Request],
  specs: Mapping[str, Spec],
  batch: int = 1,
  repeats: int = 5,
  with_details: bool = True,
  on_round: Callable[[], None] | None = None,
) -> list[ModeSpeed]:
  """Decodes the same requests with every mode, in turn, several times.

  Each mode runs to the end of all budgets (no EOS ends a text), in one
  program, so that all modes commit the same number of tokens. All classes and
  modes have caches of one size. The parts of a pass depend on shapes alone and
  are measured once for all classes.

  Args:
    params: from `decode_params`.
    requests: of any classes, see `Request.kind`. Those of a class are decoded
      `batch` at a time; its first ones fill the last batch up.
    specs: the modes by name, all of the same stages; others are compared with
      the first.
    batch: rows decoded together.
    repeats: rounds; medians are over them.
    with_details: see `Details`; they take several times as long.
    on_round: called after each round of a mode: `repeats` + 1 times for each.

  Returns:
    Per class, in the order they come in, a `ModeSpeed` per mode.
  """
  room = max(spec.tree.max_depth for spec in specs.values()) + 1
  specs = {
    mode: dataclasses.replace(spec, room=room) for mode, spec in specs.items()
  }
  first = next(iter(specs))
  packer = Packer.of(specs[first], requests, ())
  batches = _batches(requests, batch)
  records = {
    (kind, mode): _Record(
      [Trial(spec, params, packer, rows) for rows in batches[kind]]
    )
    for kind in batches
    for mode, spec in specs.items()
  }
  parts: dict[str, list[PassParts]] = {mode: [] for mode in specs}
  for round_ in range(repeats + 1):
    for mode in specs:
      for kind in batches:
        _round(records[kind, mode], round_, with_details)
      if with_details:
        measured = measure_parts(records[next(iter(batches)), mode].trials[0])
        if round_:  # the first round compiles
          parts[mode].append(measured)
      if on_round is not None:
        on_round()
  return [
    _speed(
      kind,
      mode,
      records[kind, mode],
      records[kind, first],
      parts[mode] if with_details else None,
    )
    for kind in batches
    for mode in specs
  ]


def _batches(
  requests: Sequence[Request], batch: int
) -> dict[str, list[list[Request]]]:
  by_kind: dict[str, list[Request]] = {}
  for request in requests:
    by_kind.setdefault(request.kind, []).append(request)
  return {
    kind: [
      [own[i % len(own)] for i in range(start, start + batch)]
      for start in range(0, len(own), batch)
    ]
    for kind, own in by_kind.items()
  }


def _round(record: _Record, round_: int, with_details: bool) -> None:
  if not round_:  # compiles
    for trial in record.trials:
      record.results.append(trial.results(trial.run(trial.start())[1]))
    return
  loop_secs = served_secs = 0.0
  for trial in record.trials:
    loop_secs += trial.run(trial.start())[0]
    served_secs += trial.served_secs(CHUNK_PASSES)
  record.loop_secs.append(loop_secs)
  record.served_secs.append(served_secs)
  if with_details:
    # Slow, so each round looks at another batch.
    trial = record.trials[round_ % len(record.trials)]
    record.token_secs += trial.token_secs()


def _speed(
  kind: str,
  mode: str,
  own: _Record,
  first: _Record,
  parts: list[PassParts] | None,
) -> ModeSpeed:
  spec = own.trials[0].spec
  details = None
  if parts is not None:
    p50, p95 = np.percentile(own.token_secs, [50, 95]).tolist()
    fields = [field.name for field in dataclasses.fields(PassParts)]
    details = Details(
      token_p50_secs=p50,
      token_p95_secs=p95,
      parts=PassParts(
        *(statistics.median(getattr(p, f) for p in parts) for f in fields)
      ),
    )
  rows = own.rows
  tokens, row_passes = committed(rows)  # in the timed loop
  return ModeSpeed(
    kind=kind,
    mode=mode,
    tokens_per_sec=tokens / statistics.median(own.served_secs),
    speed_over_first=_median_ratio(first.served_secs, own.served_secs),
    pass_secs=statistics.median(own.loop_secs) / own.loop_passes,
    # As many tokens: fewer passes and their cost are the time of the loop.
    kept=_median_ratio(first.served_secs, own.served_secs)
    / _median_ratio(first.loop_secs, own.loop_secs),
    rows_running=row_passes * len(own.results) / (own.loop_passes * len(rows)),
    outputs_identical=own.ids == first.ids if _is_coupled(spec) else None,
    acceptance=count_acceptance(spec.tree, rows),
    details=details,
  )


def _median_ratio(a: Sequence[float], b: Sequence[float]) -> float:
  return statistics.median(x / y for x, y in zip(a, b, strict=True))


def _is_coupled(spec: Spec) -> bool:
  """Does the program promise the very tokens of plain decoding?"""
  return (
    not spec.stages.is_sampled
    or spec.verifier.shares_noise
    or spec.tree.max_depth == 0
  )
