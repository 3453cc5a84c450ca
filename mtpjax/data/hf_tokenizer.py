"""Any `tokenizer.json`, with what lies beside it."""

import functools
import json
import pathlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mtpjax.data.chat import ChatTemplate
from mtpjax.data.companions import (
  CONFIG,
  GENERATION,
  Companions,
  with_ends,
)
from mtpjax.data.document import decode_utf8
from mtpjax.data.tokenizer import identity_digest
from mtpjax.errors import UserError

# Looked up among a tokenizer's added tokens when none are named. For EOS all
# that are there count, and the first is the one written after a document.
BOS_TOKENS = (
  "<s>",
  "<|begin_of_text|>",
  "<bos>",
  "<|startoftext|>",
  "<｜begin▁of▁sentence｜>",
  "<|endoftext|>",
)
EOS_TOKENS = (
  "</s>",
  "<|end_of_text|>",
  "<eos>",
  "<|endoftext|>",
  "<｜end▁of▁sentence｜>",
  "<|eot_id|>",
  "<|eom_id|>",
  "<|im_end|>",
  "<end_of_turn>",
  "<|end|>",
)


class HfTokenizer:
  """A `tokenizer.json`, run by the `tokenizers` library, and companions.

  As everywhere with that library, the name of a special token in a text
  ("<|im_start|>") is read as that token; chat templates rely on it.
  """

  def __init__(
    self,
    path: pathlib.Path,
    companions: Companions,
    bos_token: str,
    eos_tokens: Sequence[str],
  ):
    import tokenizers

    self._path = path
    self._companions = companions
    self._json = decode_utf8(path.read_bytes(), str(path))
    self._tokenizer = tokenizers.Tokenizer.from_str(self._json)
    # Some files carry the settings of a past training run, which would cut
    # long documents or pad short ones.
    self._tokenizer.no_truncation()
    self._tokenizer.no_padding()
    vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
    added = self._tokenizer.get_added_tokens_decoder()
    names = {token.content for token in added.values()}
    self.ids = frozenset(vocabulary.values())
    self.vocab_size = max(self.ids, default=-1) + 1
    self.bos_id = self._find_bos(bos_token, vocabulary, names)
    self.eos_ids = self._find_eos(eos_tokens, vocabulary, names)
    self.adds_bos = (
      self._writes_bos() if companions.adds_bos is None else companions.adds_bos
    )
    self._special_ids = {i for i, token in added.items() if token.special}
    definition = json.loads(self._json)
    self._merges = definition["model"].get("type") == "BPE"
    self.fallback_ids: frozenset[int] = frozenset()
    if definition["model"].get("byte_fallback"):
      bytewise = [f"<0x{byte:02X}>" for byte in range(256)]
      self.fallback_ids = (
        frozenset(vocabulary[name] for name in bytewise if name in vocabulary)
        | self._special_ids
      )
    self.chat_template = self._make_chat_template()
    self.fingerprint = identity_digest(
      definition, self.bos_id, self.eos_ids, companions.chat_template
    )

  def fingerprint_within(self, vocab_size: int) -> str:
    """Returns the fingerprint without added tokens from `vocab_size` on."""
    definition = json.loads(self._json)
    definition["added_tokens"] = [
      token
      for token in definition.get("added_tokens") or ()
      if token["id"] < vocab_size
    ]
    # Who adds a token for padding may have padded with it; it is not read.
    definition |= {"truncation": None, "padding": None}
    bos_id = self.bos_id
    return identity_digest(
      definition,
      None if bos_id is None or bos_id >= vocab_size else bos_id,
      [i for i in self.eos_ids if i < vocab_size],
      self._companions.chat_template,
    )

  def encode(self, text: str) -> list[int]:
    """Returns the ids of the text; nothing is added at either end."""
    return self._tokenizer.encode(text, add_special_tokens=False).ids

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the ids of each text, tokenised on all cores."""
    found = self._tokenizer.encode_batch_fast(
      list(texts), add_special_tokens=False
    )
    return [np.array(encoding.ids, np.uint32) for encoding in found]

  def split_ids(
    self, before: str, after: str
  ) -> tuple[list[int], list[int]] | None:
    """Returns the ids of each of two texts in a row; see `Tokenizer`."""
    both = self._tokenizer.encode(before + after, add_special_tokens=False)
    first = self.encode(before)
    n = len(first)
    if both.ids[:n] != first:
      return None
    words = both.word_ids[max(n - 1, 0) : n + 1]
    # What one merge makes of two neighbours depends on no other.
    if not self._merges and len(words) == 2 and words[0] == words[1]:
      return None
    return first, both.ids[n:]

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids; invalid UTF-8 gives U+FFFD."""
    return self._tokenizer.decode(
      [int(i) for i in ids], skip_special_tokens=True
    )

  def token_bytes(self) -> dict[int, bytes]:
    """Returns what each ordinary id adds to a text, as the decoder has it.

    Raises:
      UserError: the decoder is none of byte-level BPE, byte fallback and
        metaspace.
    """
    decoder = json.loads(self._json).get("decoder") or {"type": "none"}
    steps = decoder.get("decoders", [decoder])
    found = {}
    for token, i in self._tokenizer.get_vocab(with_added_tokens=True).items():
      if i not in self._special_ids:
        found[i] = _bytes_of(token, steps, self._path)
    return found

  def save(self, folder: pathlib.Path) -> None:
    """Writes `tokenizer.json` and its companions, exactly as they were read.

    The EOS ids that only a model's config.json names go to the
    generation_config.json: a run has a config.json of its own.
    """
    (folder / "tokenizer.json").write_bytes(self._json.encode())
    files = dict(self._companions.files)
    further = [
      i
      for i in self._companions.model_eos_ids
      if i in self.ids and i not in self._companions.eos_ids
    ]
    if further:
      files[GENERATION] = with_ends(
        files.get(GENERATION), further, str(self._path.with_name(GENERATION))
      )
    for name, raw in files.items():
      (folder / name).write_bytes(raw)

  def _find_bos(
    self, named: str, vocabulary: Mapping[str, int], added: Collection[str]
  ) -> int | None:
    """Returns the BOS id: what is named, else the folder's, else the usual."""
    if named:
      where, tokens = "data.bos_token", [named]
    elif self._companions.bos_tokens is not None:
      where = f"{self._path.with_name(CONFIG)}: bos_token"
      tokens = [*self._companions.bos_tokens]
    else:
      usual = [vocabulary[t] for t in BOS_TOKENS if t in added]
      return usual[0] if usual else None
    return next(iter(self._ids_of(tokens, where, vocabulary, added)), None)

  def _find_eos(
    self,
    named: Sequence[str],
    vocabulary: Mapping[str, int],
    added: Collection[str],
  ) -> tuple[int, ...]:
    """Returns the EOS ids, in the order of `_find_bos`."""
    if named:
      return self._ids_of(named, "data.eos_tokens", vocabulary, added)
    tokens, ids = self._companions.eos_tokens, self._companions.eos_ids
    self._require_ids(ids)
    where = f"{self._path.with_name(CONFIG)}: eos_token"
    written = self._ids_of(tokens, where, vocabulary, added)
    further = [i for i in self._companions.model_eos_ids if i in self.ids]
    found = tuple(dict.fromkeys((*written, *ids, *further)))
    return found or tuple(vocabulary[t] for t in EOS_TOKENS if t in added)

  def _ids_of(
    self,
    tokens: Iterable[str],
    where: str,
    vocabulary: Mapping[str, int],
    added: Collection[str],
  ) -> tuple[int, ...]:
    found = []
    for token in tokens:
      if token not in vocabulary:
        raise UserError(
          f"{where}: {token!r} is not in the vocabulary of {self._path}; its "
          f"added tokens are {', '.join(sorted(added)[:20]) or 'none'}"
        )
      found.append(vocabulary[token])
    return tuple(found)

  def _require_ids(self, ids: Iterable[int]) -> None:
    for i in ids:
      if i not in self.ids:
        raise UserError(
          f"{self._path.with_name(GENERATION)}: eos_token_id {i} is not in the "
          f"vocabulary of {self._path}; correct it, or name the EOS tokens "
          "with --data.eos-tokens"
        )

  def _writes_bos(self) -> bool:
    """Returns whether the file itself puts BOS in front of a text."""
    ids = self._tokenizer.encode("", add_special_tokens=True).ids
    return self.bos_id is not None and ids[:1] == [self.bos_id]

  def _make_chat_template(self) -> ChatTemplate | None:
    source = self._companions.chat_template
    if source is None:
      return None
    file = self._path.with_name(self._companions.template_file)
    bos_ids = () if self.bos_id is None else (self.bos_id,)
    bos, eos = (
      (self._tokenizer.id_to_token(ids[0]) or "") if ids else ""
      for ids in (bos_ids, self.eos_ids)
    )
    return ChatTemplate(source, str(file), bos, eos)


def _bytes_of(
  token: str, steps: Sequence[dict[str, Any]], path: pathlib.Path
) -> bytes:
  """Returns what a token adds, by the steps of a tokenizer.json's decoder."""
  known: bytes | None = None  # once it is no longer a text
  is_fused = False
  for step in steps:
    match step:
      case {"type": "Fuse"}:
        is_fused = True
      # Of the fused text: the space that may begin it.
      case {"type": "Strip", "content": " ", "start": _, "stop": 0} if is_fused:
        pass
      case {"type": "ByteLevel"} if known is None:
        alphabet = _byte_level_alphabet()
        is_spelled = all(character in alphabet for character in token)
        # Added tokens are written as they are.
        known = (
          bytes(alphabet[character] for character in token)
          if is_spelled
          else token.encode()
        )
      case {"type": "ByteFallback"} if known is None:
        if re.fullmatch("<0x[0-9A-Fa-f]{2}>", token):
          known = bytes([int(token[3:5], 16)])
      case {"type": "Metaspace", "replacement": str(mark)}:
        token = token.replace(mark, " ")
      case {
        "type": "Replace", "pattern": {"String": old}, "content": new
      } if not is_fused:  # fmt: skip
        token = token.replace(old, new)
      case _:
        raise UserError(
          f"data.tokenizer: {path} has the decoder step {step['type']!r}, "
          "with which the bytes of a token depend on its neighbours; grammars "
          "need byte-level BPE, byte fallback or metaspace"
        )
  return token.encode() if known is None else known


@functools.cache
def _byte_level_alphabet() -> dict[str, int]:
  """The character that stands for each byte in GPT-2's vocabulary."""
  printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
  others = [byte for byte in range(256) if byte not in printable]
  shifted = {chr(256 + n): byte for n, byte in enumerate(others)}
  return {chr(byte): byte for byte in printable} | shifted
