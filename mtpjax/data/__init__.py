"""Sources, tokenizers, packing to rows on disk, and the loader.

In the order of the work: `sources` are read into a `document` each,
`tokenizers` (or one trained by `bpe`), with what lies beside their files
(`companions`) and their `chat` templates, make ids of it, `corpus` holds all,
`packing` makes rows of them, `rows` and `fingerprint` are what is on disk,
and `loader` reads batches from there. `text_stream` goes the way back, and
`stops` finds what ends a text.
"""

from mtpjax.data.bpe import train_bpe
from mtpjax.data.chat import ChatTemplate
from mtpjax.data.document import (
  Document,
  InvalidText,
  Message,
  decode_utf8,
  is_conversation,
  read_messages,
  require_unicode,
)
from mtpjax.data.fingerprint import load_fingerprint, require_prepared_for
from mtpjax.data.loader import Loader, evaluation_batches
from mtpjax.data.packing import prepare
from mtpjax.data.rows import Rows, open_rows
from mtpjax.data.sources import read_documents
from mtpjax.data.text_stream import TextStream
from mtpjax.data.tokenizers import (
  Tokenizer,
  load_tokenizer,
  require_chat_template,
)

__all__ = [
  "ChatTemplate",
  "Document",
  "InvalidText",
  "Loader",
  "Message",
  "Rows",
  "TextStream",
  "Tokenizer",
  "decode_utf8",
  "evaluation_batches",
  "is_conversation",
  "load_fingerprint",
  "load_tokenizer",
  "open_rows",
  "prepare",
  "read_documents",
  "read_messages",
  "require_chat_template",
  "require_prepared_for",
  "require_unicode",
  "train_bpe",
]
