"""Small corpora, and the way back from rows to documents."""

import collections
import json

import numpy as np

from mtpjax.config import Data
from mtpjax.data import load_tokenizer, open_rows, prepare

# Lengths around the row length (16): single byte, exact fits, several rows.
TEXTS = [
  "a",
  "bb",
  "x" * 14,
  "y" * 15,
  "z" * 16,
  "".join(chr(97 + i % 26) for i in range(100)),
  "日本語 🙂 é",
  "",
  # No two stretches of these are alike, so that all rows differ.
  *("".join(f"{i}:{j} " for j in range(1 + i % 9)) for i in range(40)),
]


def write_texts(folder, texts=TEXTS):
  folder.mkdir(exist_ok=True)
  for i, text in enumerate(texts):
    (folder / f"{i:03}.txt").write_text(text, encoding="utf-8")
  return f"text:{folder}/*.txt"


def write_jsonl(path, records):
  path.write_text("".join(json.dumps(r) + "\n" for r in records))
  return path


def prepared(tmp_path, **changes):
  """Prepares a small corpus; returns (config, result)."""
  if "sources" not in changes:
    changes["sources"] = (write_texts(tmp_path / "texts"),)
  options = {"path": str(tmp_path / "data"), "row_length": 16}
  config = Data(**(options | {"validation_fraction": 0.3} | changes))
  tokenizer = load_tokenizer(config.tokenizer)
  return config, prepare(config, tokenizer)


def pieces_of(row):
  """Yields (tokens, positions, loss mask) of each segment of a row."""
  for segment in range(1, row["segments"].max() + 1):
    at = row["segments"] == segment
    yield tuple(
      row[n][at].tolist() for n in ("tokens", "positions", "loss_mask")
    )


def all_pieces(path, split):
  return [piece for row in open_rows(path, split) for piece in pieces_of(row)]


def cut(ids, row_length):
  return [
    tuple(ids[i : i + row_length]) for i in range(0, len(ids), row_length)
  ]


def multiset(pieces):
  return collections.Counter(map(tuple, pieces))


def stacked(rows):
  return np.stack([row["tokens"] for row in rows])
