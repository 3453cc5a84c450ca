"""Sources, tokenizers, packing to rows on disk, and the loader.

In the order of the work: `sources` (files through `text_files`) are read into a
`document` each, `tokenizers` (or one trained by `bpe`), with what lies beside
their files (`companions`) and their `chat` templates, make `document_ids` of
it, of a long one in `blocks`, `corpus` holds all, `packing` makes rows of them,
`rows` and `fingerprint` are what is on disk, and `loader` reads batches from
there. `text_stream` goes the way back, and `stops` finds what ends a text.
"""

from mtpjax.data.blocks import cut_between_words
from mtpjax.data.bpe import train_bpe
from mtpjax.data.chat import ChatTemplate
from mtpjax.data.document import (
  TEMPLATE_FIELDS,
  Document,
  InvalidText,
  Message,
  TemplateFields,
  decode_utf8,
  is_conversation,
  read_messages,
  read_template_fields,
  require_unicode,
)
from mtpjax.data.document_ids import encode_parts, with_bos
from mtpjax.data.fingerprint import FILE as FINGERPRINT
from mtpjax.data.fingerprint import load_fingerprint, require_prepared_for
from mtpjax.data.loader import Loader, evaluation_batches
from mtpjax.data.packing import prepare
from mtpjax.data.rows import Rows, longest_reach, open_rows, require_within
from mtpjax.data.sources import SOURCES, read_documents, size_of
from mtpjax.data.text_stream import TextStream, decode_after, last_of_text
from mtpjax.data.tokenizer import Tokenizer, require_chat_template
from mtpjax.data.tokenizers import TOKENIZERS, load_tokenizer, tokenizer_of_run

__all__ = [
  "TOKENIZERS",
  "SOURCES",
  "tokenizer_of_run",
  "FINGERPRINT",
  "TEMPLATE_FIELDS",
  "ChatTemplate",
  "Document",
  "InvalidText",
  "Loader",
  "Message",
  "Rows",
  "TemplateFields",
  "TextStream",
  "Tokenizer",
  "cut_between_words",
  "decode_after",
  "decode_utf8",
  "encode_parts",
  "evaluation_batches",
  "is_conversation",
  "last_of_text",
  "load_fingerprint",
  "load_tokenizer",
  "longest_reach",
  "open_rows",
  "prepare",
  "read_documents",
  "read_messages",
  "read_template_fields",
  "require_chat_template",
  "require_prepared_for",
  "require_unicode",
  "require_within",
  "size_of",
  "train_bpe",
  "with_bos",
]
