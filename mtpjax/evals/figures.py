"""Figures of decoding, drawn with matplotlib (extra: figures).

Nothing here needs a screen: figures go straight to PNG files.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from mtpjax.errors import UserError

_MARKERS = "osD^vP*X"
_DPI = 150


def require_matplotlib() -> None:
  """Raises UserError if there is no matplotlib to draw with."""
  try:
    import matplotlib  # noqa: F401
  except ImportError:
    raise UserError(
      "figures: matplotlib is not installed; pip install 'mtpjax[figures]'"
    ) from None


def save_acceptance_figure(
  path: str | pathlib.Path,
  panels: Mapping[str, Mapping[str, Sequence[float | None]]],
) -> None:
  """Draws how often drafts are accepted, by offset.

  Args:
    path: the PNG file.
    panels: title -> name of a line, such as "code, chain" -> shares for the
      offsets 2, 3, ...; of None nothing is drawn.

  Raises:
    UserError: no matplotlib.
  """
  figure = _figure(len(panels))
  for axes, (title, lines) in zip(figure.axes, panels.items(), strict=True):
    for i, (name, shares) in enumerate(lines.items()):
      offsets = range(2, 2 + len(shares))
      axes.plot(offsets, shares, marker=_marker(i), label=name)
    axes.set_title(title)
    axes.set_xlabel("offset")
    axes.set_ylabel("accepted, of the passes that drafted it")
    axes.set_ylim(0, 1)
    axes.xaxis.get_major_locator().set_params(integer=True)
    _legend(axes, lines)
  _save(figure, path)


def save_cost_figure(
  path: str | pathlib.Path,
  costs: Mapping[str, Sequence[tuple[int, float]]],
) -> None:
  """Draws what a pass costs by its nodes, over a plain pass.

  Args:
    path: the PNG file.
    costs: name of a line, such as "batch 1" -> (nodes, secs), from
      `measure_pass_costs`; 1 node must be there.

  Raises:
    UserError: no matplotlib.
  """
  figure = _figure(1)
  (axes,) = figure.axes
  for i, (name, points) in enumerate(costs.items()):
    plain = dict(points)[1]
    nodes, secs = zip(*sorted(points), strict=True)
    axes.plot(nodes, [s / plain for s in secs], marker=_marker(i), label=name)
  _nodes_axis(axes)
  axes.set_ylabel("time of a pass over that of a plain one")
  axes.set_ylim(bottom=0)
  _legend(axes, costs)
  _save(figure, path)


def save_budget_figure(
  path: str | pathlib.Path, entries: Sequence[Mapping[str, Any]]
) -> None:
  """Draws the speed that trees of each size are predicted to have.

  Args:
    path: the PNG file.
    entries: a panel each, with `batch`, `temperature`, `curve` (from
      `budget.curve`) and `chosen` (a `Choice`, as `to_dict` gives it),
      which is marked.

  Raises:
    UserError: no matplotlib.
  """
  figure = _figure(len(entries))
  for axes, entry in zip(figure.axes, entries, strict=True):
    curve, chosen = entry["curve"], entry["chosen"]
    nodes, speed = len(chosen["tree"]["parents"]), chosen["speed_over_plain"]
    axes.axhline(1, color="grey", linewidth=1, label="plain decoding")
    axes.plot(
      [row["nodes"] for row in curve],
      [row["speed_over_plain"] for row in curve],
      label="tree grown to the size",
    )
    axes.plot(
      [nodes],
      [speed],
      marker="o",
      linestyle="none",
      label=f"chosen: {nodes} nodes, {speed:.2f}x",
    )
    _nodes_axis(axes)
    axes.set_ylabel("tokens per second over plain decoding")
    axes.set_ylim(bottom=0)
    axes.set_title(
      f"batch {entry['batch']}, temperature {entry['temperature']:g}"
    )
    axes.legend(fontsize="small")
  _save(figure, path)


def _figure(panels: int) -> Any:
  require_matplotlib()
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  figure = Figure(figsize=(6 * panels, 4.5), layout="constrained")
  FigureCanvasAgg(figure)
  figure.subplots(1, panels, squeeze=False)
  return figure


def _nodes_axis(axes: Any) -> None:
  axes.set_xscale("log", base=2)
  axes.set_xlabel("nodes of a pass")
  axes.xaxis.set_major_formatter("{x:.0f}")
  axes.grid(alpha=0.3)


def _marker(i: int) -> str:
  return _MARKERS[i % len(_MARKERS)]


def _legend(axes: Any, lines: Mapping[str, Any]) -> None:
  axes.grid(alpha=0.3)
  if lines:
    axes.legend(fontsize="small")


def _save(figure: Any, path: str | pathlib.Path) -> None:
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(path, format="png", dpi=_DPI)
