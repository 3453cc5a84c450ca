"""Tokenizers: plain bytes, or any `tokenizer.json`, behind one interface."""

import functools
import hashlib
import json
import pathlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from mtpjax.data.chat import ChatTemplate
from mtpjax.data.companions import (
  CONFIG,
  GENERATION,
  TEMPLATE,
  Companions,
  read_companions,
  with_ends,
)
from mtpjax.data.document import decode_utf8
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


class Tokenizer(Protocol):
  """What the rest of mtpjax knows of a tokenizer."""

  @property
  def vocab_size(self) -> int:
    """The largest id + 1."""

  @property
  def ids(self) -> frozenset[int]:
    """All ids that have a token; numbers may be skipped."""

  @property
  def bos_id(self) -> int | None:
    """The id that begins a document, if there is one."""

  @property
  def eos_ids(self) -> tuple[int, ...]:
    """Ids that end a text; the first is the one written. May be empty."""

  @property
  def adds_bos(self) -> bool:
    """Whether a text begins with BOS, by the tokenizer's own account."""

  @property
  def chat_template(self) -> ChatTemplate | None:
    """Makes the text of a conversation; None where there is no template."""

  @property
  def fallback_ids(self) -> frozenset[int]:
    """Ids whose text depends on the whole run of such ids they stand in.

    These are byte-fallback tokens (one invalid byte makes the whole run
    invalid) and the special ones, which `decode` skips within such a run.
    """

  @property
  def fingerprint(self) -> str:
    """SHA-256 (hex) of all that decides what the ids mean."""

  def fingerprint_within(self, vocab_size: int) -> str:
    """Returns the fingerprint without added tokens from `vocab_size` on.

    Two tokenizers that differ in nothing else mean the same to a model with
    so many ids.
    """

  def encode(self, text: str) -> list[int]:
    """Returns the ids of a text, without BOS or EOS."""

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the same ids for several texts, on all cores."""

  def split_ids(
    self, before: str, after: str
  ) -> tuple[list[int], list[int]] | None:
    """Returns the ids of two texts in a row, those of each by themselves.

    None where those of the first would be others without the second, or a
    token or a word that is tokenised as one reaches over their border; of a
    word, only if its ids depend on the whole of it.
    """

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids; special and unknown ones are skipped."""

  def token_bytes(self) -> dict[int, bytes]:
    """Returns what each ordinary id adds to a text; special ones are absent.

    Joined they are the UTF-8 of `decode`, which may leave out a space that
    begins the text.

    Raises:
      UserError: what a token adds depends on its neighbours.
    """

  def save(self, folder: pathlib.Path) -> None:
    """Writes what `load_tokenizer` needs, beside its spec, to a folder."""


class ByteTokenizer:
  """Ids 0 to 255 are the bytes of UTF-8; 256 is BOS, 257 is EOS."""

  vocab_size = 258
  bos_id = 256
  eos_ids = (257,)
  adds_bos = True
  chat_template = None
  fallback_ids: frozenset[int] = frozenset()
  ids = frozenset(range(258))
  fingerprint = hashlib.sha256(b"mtpjax bytes 256 257").hexdigest()

  def fingerprint_within(self, vocab_size: int) -> str:
    """Returns the fingerprint: nothing is added to bytes."""
    del vocab_size
    return self.fingerprint

  def encode(self, text: str) -> list[int]:
    """Returns the bytes of the text's UTF-8."""
    return list(text.encode("utf-8"))

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the bytes of each text's UTF-8."""
    return [np.frombuffer(text.encode("utf-8"), np.uint8) for text in texts]

  def split_ids(
    self, before: str, after: str
  ) -> tuple[list[int], list[int]] | None:
    """Returns the bytes of both."""
    return self.encode(before), self.encode(after)

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids below 256; invalid UTF-8 gives U+FFFD."""
    return bytes(i for i in ids if 0 <= i < 256).decode("utf-8", "replace")

  def token_bytes(self) -> dict[int, bytes]:
    """Returns the byte of each id below 256."""
    return {byte: bytes([byte]) for byte in range(256)}

  def save(self, folder: pathlib.Path) -> None:
    """Writes nothing: the name says it all."""


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
    self.fingerprint = _digest(
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
    return _digest(
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


# Tokenizers without files, by name; others are given as a path.
TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {"bytes": ByteTokenizer}


def tokenizer_of_run(spec: str, folder: pathlib.Path) -> str:
  """Returns what `load_tokenizer` loads for a run.

  Args:
    spec: `data.tokenizer` of the run.
    folder: where `Tokenizer.save` has put its files; what else lies beside
      them belongs to it.
  """
  return spec if spec in TOKENIZERS else str(folder)


def load_tokenizer(
  spec: str, bos_token: str = "", eos_tokens: Sequence[str] = ()
) -> Tokenizer:
  """Loads a tokenizer.

  Args:
    spec: `bytes`, or the path of a `tokenizer.json`, which is read alone, or
      of a folder with one, as Hugging Face publishes it: what lies beside it
      (`tokenizer_config.json`, `special_tokens_map.json`,
      `generation_config.json`, `chat_template.jinja` and, for EOS, the
      model's `config.json`) is read too.
    bos_token: the BOS token; empty takes what the folder says, and if it does
      not looks the usual names up.
    eos_tokens: the same for all EOS tokens; the first is the one written.

  Returns:
    The tokenizer.

  Raises:
    UserError: no such file, not a tokenizer, a damaged file beside it, or a
      token it does not have.
  """
  if spec in TOKENIZERS:
    if bos_token or eos_tokens:
      raise UserError(
        f"data.tokenizer: {spec!r} has its own BOS and EOS, not "
        f"{', '.join(filter(None, (bos_token, *eos_tokens)))}; leave "
        "--data.bos-token and --data.eos-tokens empty"
      )
    return TOKENIZERS[spec]()
  path = pathlib.Path(spec).expanduser()
  folder = path if path.is_dir() else None
  if folder is not None:
    path = folder / "tokenizer.json"
  if not path.is_file():
    raise UserError(
      f"data.tokenizer: {spec!r} is no such file; give `bytes` or the path of "
      "a tokenizer.json (`mtpjax tokenizer` trains one)"
    )
  companions = Companions() if folder is None else read_companions(folder)
  try:
    return HfTokenizer(path, companions, bos_token, eos_tokens)
  except UserError:
    raise
  # The library's Rust side raises plain Exception.
  except Exception as error:
    reason = str(error).partition("\n")[0]
    raise UserError(
      f"data.tokenizer: {spec!r} is not a tokenizer.json ({reason}); give "
      "one that the `tokenizers` library can load"
    ) from error


def require_chat_template(tokenizer: Tokenizer, where: str) -> ChatTemplate:
  """Returns the chat template of a tokenizer.

  Args:
    tokenizer: any.
    where: the conversation; named in the error.

  Raises:
    UserError: it has none.
  """
  if tokenizer.chat_template is None:
    raise UserError(
      f"{where}: is a conversation, and the tokenizer has no chat template; "
      "give as --data.tokenizer a folder whose tokenizer.json lies beside a "
      f"{TEMPLATE}, or a {CONFIG} with chat_template"
    )
  return tokenizer.chat_template


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


def _digest(
  definition: Any,
  bos_id: int | None,
  eos_ids: Sequence[int],
  chat_template: str | None,
) -> str:
  identity = {"tokenizer": definition, "bos": bos_id, "eos": list(eos_ids)}
  if chat_template is not None:
    identity["chat_template"] = chat_template
  # Sorted keys: the same tokenizer, written with other white space, is equal.
  return hashlib.sha256(
    json.dumps(identity, sort_keys=True).encode()
  ).hexdigest()
