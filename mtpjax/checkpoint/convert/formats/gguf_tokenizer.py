"""The tokenizer inside a GGUF file, rebuilt as the usual JSON files.

Byte-level BPE ("gpt2") is stored with its merges, and with the name of the rule
that splits a text into words before. SentencePiece BPE ("llama") is stored with
scores, from which merges follow as in the usual fast converter: every way to
put a piece together from two others, the best score first.
"""

import collections
import json
from typing import Any

import numpy as np

from mtpjax.checkpoint.convert.containers.gguf import Container
from mtpjax.errors import UserError

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_GPT2_WORDS = (
  r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)
_CASELESS_WORDS = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The rules of tokenizer.ggml.pre: patterns, applied one after the other;
# whether a word that is a token as a whole stays whole; Unicode normalisation.
_LLAMA3: tuple[tuple[str, ...], bool, str] = (
  (_CASELESS_WORDS % "{1,3}",), True, "",
)  # fmt: skip
_WORD_RULES: dict[str, tuple[tuple[str, ...], bool, str]] = {
  "default": (
    (r"[\p{P}$+<=>^~|]+", _GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]"), False, "",
  ),
  "gpt-2": ((_GPT2_WORDS,), False, ""),
  "llama-bpe": _LLAMA3,
  "llama-v3": _LLAMA3,
  "llama3": _LLAMA3,
  "qwen2": ((_CASELESS_WORDS % "",), False, "NFC"),
  "smollm": ((r"\p{N}", _GPT2_WORDS), False, ""),
}  # fmt: skip
# Tokens that end a turn, also where the file names only the end of a text; the
# same that llama.cpp takes for such.
_ENDS_OF_TURN = (
  "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>",
  "<|endoftext|>", "<|end_of_text|>", "<|return|>", "<|call|>", "<EOT>",
  "_<EOT>", "<end_of_utterance>",
)  # fmt: skip


def tokenizer_files(container: Container) -> dict[str, str]:
  """Rebuilds the tokenizer of a GGUF file.

  Args:
    container: the file.

  Returns:
    Texts of tokenizer.json, of tokenizer_config.json (`bos_token`, `eos_token`,
    `add_bos_token`, `chat_template`) and of generation_config.json
    (`eos_token_id`, those that end a turn included).

  Raises:
    UserError: a kind of tokenizer or a rule for words that is not known, or a
      vocabulary that contradicts itself.
  """
  path = container.path
  fields = container.read("tokenizer.ggml.")
  kind, tokens = fields.text("model"), fields.items("tokens")
  for token, n in collections.Counter(tokens).items():
    if n > 1:
      raise UserError(
        f"{path}: tokenizer.ggml.tokens has {token!r} {n} times; convert the "
        "model to GGUF again"
      )
  types = _of_each(container, "tokenizer.ggml.token_type", len(tokens))
  if kind == "gpt2":
    definition = _byte_level(container, tokens)
  elif kind == "llama":
    definition = _sentence_piece(container, tokens, types)
  else:
    raise UserError(
      f"{path}: tokenizer.ggml.model is {kind!r}; only gpt2 (byte-level BPE) "
      "and llama (SentencePiece) are read; give the model's Hugging Face folder"
    )
  definition["added_tokens"] = [
    _added(i, token, types[i] != _USER_DEFINED)
    for i, token in enumerate(tokens)
    if types[i] in (_UNKNOWN, _CONTROL, _USER_DEFINED)
  ]

  def named(key: str) -> int | None:
    i = fields.integer(f"{key}_token_id", -1, least=-1)
    if i >= len(tokens):
      raise fields.error(
        f"{key}_token_id", f"is not of a vocabulary of {len(tokens)} tokens"
      )
    return None if i < 0 else i

  ids = {token: i for i, token in enumerate(tokens)}
  ends = [named(key) for key in ("eos", "eot", "eom")] + [
    ids[token]
    for token in _ENDS_OF_TURN
    if token in ids and types[ids[token]] in (_CONTROL, _USER_DEFINED)
  ]
  settings: dict[str, Any] = {
    # SentencePiece models and Llama 3 expect BOS unless the file denies it.
    "add_bos_token": fields.claim(
      "add_bos_token",
      kind == "llama" or _WORD_RULES[fields.get("pre")] is _LLAMA3,
    )
  }
  for name in ("bos", "eos"):
    if (i := named(name)) is not None:
      settings[f"{name}_token"] = tokens[i]
  if template := container.read().text("tokenizer.chat_template", ""):
    settings["chat_template"] = template
  generation = {
    "eos_token_id": list(dict.fromkeys(i for i in ends if i is not None))
  }
  return {
    "tokenizer.json": json.dumps(definition, ensure_ascii=False),
    "tokenizer_config.json": json.dumps(
      settings, ensure_ascii=False, indent=2, sort_keys=True
    ),
    "generation_config.json": json.dumps(generation),
  }


def _of_each(container: Container, key: str, n: int) -> list:
  """Reads a list with a number for each token."""
  values = np.asarray(container.fields.get(key, ()))
  if values.shape != (n,) or (n and values.dtype.kind not in "iuf"):
    raise UserError(
      f"{container.path}: {key} has {values.size} entries for {n} tokens, or "
      "not numbers; convert the model to GGUF again"
    )
  return values.tolist()


def _added(i: int, token: str, is_special: bool) -> dict[str, Any]:
  return {
    "id": i, "content": token, "single_word": False, "lstrip": False,
    "rstrip": False, "normalized": False, "special": is_special,
  }  # fmt: skip


def _byte_level(container: Container, tokens: list[str]) -> dict[str, Any]:
  """GPT-2's byte-level BPE, as tokenizer.json has it."""
  path = container.path
  fields = container.read("tokenizer.ggml.")
  rule = fields.text("pre", "") or None
  if rule not in _WORD_RULES:
    said = "missing" if rule is None else repr(rule)
    raise UserError(
      f"{path}: tokenizer.ggml.pre, the rule that splits a text into words, is "
      f"{said}; known are {', '.join(_WORD_RULES)}; give the model's Hugging "
      "Face folder"
    )
  patterns, keeps_whole_words, normalisation = _WORD_RULES[rule]
  pairs = [merge.split(" ") for merge in fields.items("merges")]
  known = set(tokens)
  for pair in pairs:
    if len(pair) != 2 or not known.issuperset((*pair, "".join(pair))):
      raise UserError(
        f"{path}: tokenizer.ggml.merges has {' '.join(pair)!r}, which is not "
        "two tokens that make a third; convert the model to GGUF again"
      )
  steps: list[dict[str, Any]] = [
    {
      "type": "Split",
      "pattern": {"Regex": pattern},
      "behavior": "Isolated",
      "invert": False,
    }
    for pattern in patterns
  ]
  letters = {"add_prefix_space": False, "trim_offsets": True}
  steps.append({"type": "ByteLevel", **letters, "use_regex": False})
  return {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "normalizer": {"type": normalisation} if normalisation else None,
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
    "post_processor": None,
    "decoder": {"type": "ByteLevel", **letters, "use_regex": True},
    "model": {
      "type": "BPE",
      "dropout": None,
      "unk_token": None,
      "continuing_subword_prefix": None,
      "end_of_word_suffix": None,
      "fuse_unk": False,
      "byte_fallback": False,
      "ignore_merges": keeps_whole_words,
      "vocab": {token: i for i, token in enumerate(tokens)},
      "merges": pairs,
    },
  }


def _sentence_piece(
  container: Container, tokens: list[str], types: list[int]
) -> dict[str, Any]:
  """SentencePiece BPE with byte fallback, as tokenizer.json has it."""
  scores = _of_each(container, "tokenizer.ggml.scores", len(tokens))
  unknown = [
    t for t, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN
  ]
  has_bytes = sum(kind == _BYTE for kind in types) == 256
  if len(unknown) != 1:
    raise UserError(
      f"{container.path}: the vocabulary has {len(unknown)} unknown-tokens "
      "where SentencePiece has one; convert the model to GGUF again"
    )
  fields = container.read("tokenizer.ggml.")
  fields.require("remove_extra_whitespaces", False)
  begins_with_space = fields.claim("add_space_prefix", True)
  space = [{"type": "Prepend", "prepend": "▁"}] if begins_with_space else []
  strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
  return {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "normalizer": {
      "type": "Sequence",
      "normalizers": [
        *space,
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
      ],
    },
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": {
      "type": "Sequence",
      "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *([strip] if begins_with_space else []),
      ],
    },
    "model": {
      "type": "BPE",
      "dropout": None,
      "unk_token": unknown[0],
      "continuing_subword_prefix": None,
      "end_of_word_suffix": None,
      "fuse_unk": True,
      "byte_fallback": has_bytes,
      "ignore_merges": False,
      "vocab": {token: i for i, token in enumerate(tokens)},
      "merges": _merges(tokens, types, scores),
    },
  }


def _merges(
  tokens: list[str], types: list[int], scores: list[float]
) -> list[tuple[str, str]]:
  """All pairs of pieces that make a piece, the best score first."""
  ordinary = {
    token: i
    for i, token in enumerate(tokens)
    if types[i] not in (_UNKNOWN, _CONTROL, _BYTE)
  }
  found = []
  for token, i in ordinary.items():
    for cut in range(1, len(token)):
      left, right = token[:cut], token[cut:]
      if left in ordinary and right in ordinary:
        rank = (-scores[i], -len(left), -len(right), i, ordinary[left])
        found.append((rank, (left, right)))
  return [pair for _, pair in sorted(found)]
