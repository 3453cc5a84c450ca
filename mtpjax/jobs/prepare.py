"""`mtpjax prepare`: tokenise and pack the data of an experiment."""

from typing import Any

import rich.console
import rich.progress
import rich.table

from mtpjax.config import Config
from mtpjax.data import InvalidText, load_tokenizer, prepare
from mtpjax.errors import UserError


def run(config: Config, console: rich.console.Console) -> dict[str, Any]:
  """Prepares the data folder `config.data.path`.

  Args:
    config: its `data` section says all.
    console: gets a progress line and a summary.

  Returns:
    The fingerprint and `kept`; see `mtpjax.data.prepare`.

  Raises:
    UserError: see `mtpjax.data.prepare`.
  """
  data = config.data
  tokenizer = load_tokenizer(data.tokenizer, data.bos_token, data.eos_tokens)
  columns = (
    rich.progress.SpinnerColumn(),
    rich.progress.TextColumn("{task.description}", markup=False),
    rich.progress.TimeElapsedColumn(),
  )
  with rich.progress.Progress(
    *columns, console=console, transient=True
  ) as progress:
    task = progress.add_task(f"preparing {data.path}", total=None)

    def report(documents: int, tokens: int) -> None:
      progress.update(
        task,
        description=f"preparing {data.path}: {documents:,} documents, "
        f"{tokens:,} tokens",
      )

    try:
      result = prepare(data, tokenizer, report)
    except InvalidText as error:
      raise UserError(
        f"{error}; --data.replace-invalid-utf8 true reads it as U+FFFD"
      ) from error
  console.print(_summary(data.path, result))
  if result["kept"]:
    console.print(
      f"{data.path} already holds exactly this; nothing written",
      soft_wrap=True,
      markup=False,
    )
  return result


def _summary(path: str, result: dict[str, Any]) -> rich.table.Table:
  title = f"{path}, fingerprint {result['id'][:12]}"
  table = rich.table.Table(title=title)
  table.add_column("split")
  for name in ("documents", "tokens", "targets", "rows", "fill"):
    table.add_column(name, justify="right")
  for split, counts in result["splits"].items():
    table.add_row(
      split,
      *(f"{counts[n]:,}" for n in ("documents", "tokens", "targets", "rows")),
      f"{counts['fill']:.1%}",
    )
  skipped = result["skipped_documents"]
  if skipped:
    table.caption = f"{skipped:,} documents without text to train on skipped"
  return table
