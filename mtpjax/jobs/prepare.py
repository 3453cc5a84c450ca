"""`mtpjax prepare`: tokenise and pack the data of an experiment."""

from collections.abc import Iterator, Sequence
from typing import Any

import rich.console
import rich.table
import rich.text

from mtpjax.config import Config, Data
from mtpjax.data import (
  InvalidText,
  load_tokenizer,
  longest_reach,
  prepare,
)
from mtpjax.errors import UserError
from mtpjax.jobs.reading import Reading
from mtpjax.progress import print_line


def run(config: Config, console: rich.console.Console) -> dict[str, Any]:
  """Prepares the data folder `config.data.path`.

  Warns of what the splits lack for the experiment's heads.

  Args:
    config: its `data` section says all; `heads.offsets` decides the warnings.
    console: gets progress and a summary.

  Returns:
    The fingerprint and `kept`; see `mtpjax.data.prepare`.

  Raises:
    UserError: see `mtpjax.data.prepare`.
  """
  data = config.data
  tokenizer = load_tokenizer(data.tokenizer, data.bos_token, data.eos_tokens)
  sources = (*data.sources, *data.validation_sources)
  with Reading(console, f"preparing {data.path}", sources) as progress:

    def report(documents: int, tokens: int) -> None:
      progress.update(
        text=f"preparing {data.path} (MB): {documents:,} documents, "
        f"{tokens:,} tokens"
      )

    try:
      result = prepare(data, tokenizer, report, progress.count)
    except InvalidText as error:
      raise UserError(
        f"{error}; --data.replace-invalid-utf8 true reads it as U+FFFD"
      ) from error
  console.print(_summary(data.path, result))
  lines = list(_warnings(data, config.heads.offsets, result))
  if result["kept"]:
    lines.append(f"{data.path} already holds exactly this; nothing written")
  for line in lines:
    print_line(console, line)
  return result


def _warnings(
  data: Data, offsets: Sequence[int], result: dict[str, Any]
) -> Iterator[str]:
  """Yields a line for each thing that a split lacks."""
  if result["identity"].get("held_out") == "tail":
    held_out = result["splits"]["validation"]["tokens"]
    yield (
      f"WARNING: {data.path}: there is one document only; its end is held out "
      f"for validation ({held_out:,} tokens, --data.validation-fraction "
      f"{data.validation_fraction:g})"
    )
  validation = result["splits"]["validation"]
  if validation.get("shared"):
    yield (
      f"WARNING: {data.path}: {validation['shared']:,} of "
      f"{validation['documents']:,} documents of --data.validation-sources are "
      "in --data.sources too, so an evaluation would see what was trained on; "
      "take them out of one of the two"
    )
  for split, counts in result["splits"].items():
    if counts["rows"] == 0:
      yield (
        f"WARNING: {data.path}: the {split} split has no rows, so nothing can "
        "be evaluated on it; prepare more text, or give "
        "--data.validation-fraction or --data.validation-sources"
      )
      continue
    reach = longest_reach(data.path, split)
    missing = ", ".join(str(m) for m in offsets if m > reach)
    if counts["targets"] == 0:
      yield (
        f"WARNING: {data.path}: the {split} split has no targets; are its "
        "completions empty?"
      )
    elif missing:
      yield (
        f"WARNING: {data.path}: the {split} split has no targets for offsets "
        f"{missing}; its texts reach no further than offset {reach}: prepare "
        "longer ones, or rows longer than --data.row-length "
        f"{data.row_length}"
      )


def _summary(path: str, result: dict[str, Any]) -> rich.table.Table:
  title = rich.text.Text(f"{path}, fingerprint {result['id'][:12]}")
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
