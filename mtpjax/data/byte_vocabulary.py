"""The vocabulary of bytes as a tokenizer.json, for programs that read those.

Its ids are those of `tokenizers.ByteTokenizer`: 0 to 255 the bytes of UTF-8,
then BOS and EOS. One thing cannot be said there: such programs take the names
of BOS and EOS in a text for the tokens.
"""

import json
from typing import Any

BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"


def definition() -> dict[str, Any]:
  """Returns the contents of the tokenizer.json."""
  letters = {"add_prefix_space": False, "trim_offsets": True}
  names = [*_names_of_bytes(), BOS, EOS]
  return {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
      {
        "id": i, "content": names[i], "single_word": False, "lstrip": False,
        "rstrip": False, "normalized": False, "special": True,
      }
      for i in (256, 257)
    ],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", **letters, "use_regex": False},
    "post_processor": {
      "type": "TemplateProcessing",
      "single": [
        {"SpecialToken": {"id": BOS, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
      ],
      "pair": [
        {"SpecialToken": {"id": BOS, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"Sequence": {"id": "B", "type_id": 1}},
      ],
      "special_tokens": {BOS: {"id": BOS, "ids": [256], "tokens": [BOS]}},
    },
    "decoder": {"type": "ByteLevel", **letters, "use_regex": False},
    "model": {
      "type": "BPE",
      "dropout": None,
      "unk_token": None,
      "continuing_subword_prefix": None,
      "end_of_word_suffix": None,
      "fuse_unk": False,
      "byte_fallback": False,
      "ignore_merges": False,
      "vocab": {name: i for i, name in enumerate(names)},
      "merges": [],
    },
  }  # fmt: skip


def is_definition(text: str) -> bool:
  """Returns whether a tokenizer.json is that of bytes."""
  try:
    return json.loads(text) == definition()
  except (ValueError, RecursionError):
    return False


def _names_of_bytes() -> list[str]:
  """Returns the letter that byte-level BPE writes for each byte (GPT-2)."""
  own = {*range(33, 127), *range(161, 173), *range(174, 256)}
  others = iter(range(256, 512))
  return [chr(byte if byte in own else next(others)) for byte in range(256)]
