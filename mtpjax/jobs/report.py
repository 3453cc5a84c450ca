"""What every bench prints and writes beside its rows."""

import importlib.metadata
import platform
from collections.abc import Callable, Sequence
from typing import Any

import jax
import rich.box
import rich.console
import rich.table

from mtpjax._version import __version__
from mtpjax.config import Config

# Gets a report whenever there is more of it.
OnReport = Callable[[dict[str, Any]], None]

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")


def make_report(
  rows: list[dict[str, Any]], config: Config, settings: dict[str, Any]
) -> dict[str, Any]:
  """Returns rows beside device, versions, configuration and settings."""
  device = jax.devices()[0]
  return {
    "rows": rows,
    "device": {
      "platform": device.platform,
      "kind": device.device_kind,
      "count": jax.device_count(),
      "machine": platform.machine(),
    },
    "versions": {
      "python": platform.python_version(),
      "mtpjax": __version__,
      **{name: importlib.metadata.version(name) for name in _PACKAGES},
    },
    "config": config.to_dict(),
    "settings": settings,
  }


def print_rows(
  console: rich.console.Console,
  title: str,
  rows: Sequence[dict[str, Any]],
  headers: dict[str, str],
) -> None:
  """Prints the named columns of rows, numbers with four significant digits.

  Args:
    console: where to.
    title: of the table.
    rows: at least one; a column that a row lacks stays empty.
    headers: column -> what stands above it.
  """
  # So that eleven columns fit a terminal of 80 characters.
  table = rich.table.Table(title=title, box=rich.box.SIMPLE, padding=0)
  for header in headers.values():
    table.add_column(header, justify="right")
  for row in rows:
    table.add_row(*(_cell(row.get(name, "")) for name in headers))
  console.print(table)


def _cell(value: Any) -> str:
  if isinstance(value, bool):
    return "yes" if value else "NO"
  if isinstance(value, int):
    return f"{value:,}"
  if isinstance(value, float):
    return f"{value:.4g}" if value < 1e3 else f"{value:,.0f}"
  return str(value)
