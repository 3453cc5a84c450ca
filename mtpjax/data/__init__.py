"""Sources, tokenizers, packing to rows on disk, and the loader.

In the order of the work: `sources` are read into a `document` each,
`tokenizers` (or one trained by `bpe`) make ids of it, `corpus` holds all ids,
`packing` makes rows of them, `rows` and `fingerprint` are what is on disk,
and `loader` reads batches from there. `text_stream` goes the way back, and
`stops` finds what ends a text.
"""

from mtpjax.data.bpe import train_bpe
from mtpjax.data.document import (
  Document,
  InvalidText,
  decode_utf8,
  require_unicode,
)
from mtpjax.data.fingerprint import load_fingerprint, require_prepared_for
from mtpjax.data.loader import Loader, evaluation_batches
from mtpjax.data.packing import prepare
from mtpjax.data.rows import Rows, open_rows
from mtpjax.data.sources import read_documents
from mtpjax.data.text_stream import TextStream
from mtpjax.data.tokenizers import Tokenizer, load_tokenizer

__all__ = [
  "Document",
  "InvalidText",
  "Loader",
  "Rows",
  "TextStream",
  "Tokenizer",
  "decode_utf8",
  "evaluation_batches",
  "load_fingerprint",
  "load_tokenizer",
  "open_rows",
  "prepare",
  "read_documents",
  "require_prepared_for",
  "require_unicode",
  "train_bpe",
]
