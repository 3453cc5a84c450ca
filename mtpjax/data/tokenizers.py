"""Tokenizers: plain bytes, or any `tokenizer.json`, behind one interface."""

import functools
import hashlib
import json
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

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
  def bos_id(self) -> int | None:
    """The id that begins a document, if there is one."""

  @property
  def eos_ids(self) -> tuple[int, ...]:
    """Ids that end a text; the first is the one written. May be empty."""

  @property
  def fallback_ids(self) -> frozenset[int]:
    """Ids whose text depends on the whole run of such ids they stand in.

    These are byte-fallback tokens (one invalid byte makes the whole run
    invalid) and the special ones, which `decode` skips within such a run.
    """

  @property
  def fingerprint(self) -> str:
    """SHA-256 (hex) of all that decides what the ids mean."""

  def encode(self, text: str) -> list[int]:
    """Returns the ids of a text, without BOS or EOS."""

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
  fallback_ids: frozenset[int] = frozenset()
  fingerprint = hashlib.sha256(b"mtpjax bytes 256 257").hexdigest()

  def encode(self, text: str) -> list[int]:
    """Returns the bytes of the text's UTF-8."""
    return list(text.encode("utf-8"))

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids below 256; invalid UTF-8 gives U+FFFD."""
    return bytes(i for i in ids if 0 <= i < 256).decode("utf-8", "replace")

  def token_bytes(self) -> dict[int, bytes]:
    """Returns the byte of each id below 256."""
    return {byte: bytes([byte]) for byte in range(256)}

  def save(self, folder: pathlib.Path) -> None:
    """Writes nothing: the name says it all."""


class HfTokenizer:
  """A `tokenizer.json`, run by the `tokenizers` library.

  As everywhere with that library, the name of a special token in a text
  ("<|im_start|>") is read as that token; chat templates rely on it.
  """

  def __init__(
    self, path: pathlib.Path, bos_token: str, eos_tokens: Sequence[str]
  ):
    import tokenizers

    self._path = path
    self._json = path.read_text(encoding="utf-8")
    self._tokenizer = tokenizers.Tokenizer.from_str(self._json)
    # Some files carry the settings of a past training run, which would cut
    # long documents or pad short ones.
    self._tokenizer.no_truncation()
    self._tokenizer.no_padding()
    vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
    added = self._tokenizer.get_added_tokens_decoder()
    names = {token.content for token in added.values()}
    self.vocab_size = max(vocabulary.values(), default=-1) + 1
    bos_tokens = (
      [bos_token] if bos_token else [t for t in BOS_TOKENS if t in names][:1]
    )
    eos_tokens = eos_tokens or [t for t in EOS_TOKENS if t in names]
    for option, tokens in (
      ("data.bos_token", bos_tokens),
      ("data.eos_tokens", eos_tokens),
    ):
      for token in tokens:
        if token not in vocabulary:
          raise UserError(
            f"{option}: {token!r} is not in the vocabulary of {path}; its "
            f"added tokens are {', '.join(sorted(names)[:20]) or 'none'}"
          )
    self.bos_id = vocabulary[bos_tokens[0]] if bos_tokens else None
    self.eos_ids = tuple(vocabulary[token] for token in eos_tokens)
    self._special_ids = {i for i, token in added.items() if token.special}
    definition = json.loads(self._json)
    self.fallback_ids: frozenset[int] = frozenset()
    if definition["model"].get("byte_fallback"):
      bytewise = [f"<0x{byte:02X}>" for byte in range(256)]
      self.fallback_ids = (
        frozenset(vocabulary[name] for name in bytewise if name in vocabulary)
        | self._special_ids
      )
    self.fingerprint = _digest(definition, self.bos_id, self.eos_ids)

  def encode(self, text: str) -> list[int]:
    """Returns the ids of the text; nothing is added at either end."""
    return self._tokenizer.encode(text, add_special_tokens=False).ids

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
    """Writes `tokenizer.json` to the folder, exactly as it was read."""
    (folder / "tokenizer.json").write_text(self._json, encoding="utf-8")


def load_tokenizer(
  spec: str, bos_token: str = "", eos_tokens: Sequence[str] = ()
) -> Tokenizer:
  """Loads a tokenizer.

  Args:
    spec: `bytes`, or the path of a `tokenizer.json` or of a folder with one.
    bos_token: the BOS token; empty looks the usual names up.
    eos_tokens: the EOS tokens; empty looks the usual names up.

  Returns:
    The tokenizer.

  Raises:
    UserError: no such file, not a tokenizer, or a token it does not have.
  """
  if spec == "bytes":
    if bos_token or eos_tokens:
      raise UserError(
        f"data.tokenizer: 'bytes' has its own BOS and EOS, not "
        f"{', '.join(filter(None, (bos_token, *eos_tokens)))}; leave "
        "--data.bos-token and --data.eos-tokens empty"
      )
    return ByteTokenizer()
  path = pathlib.Path(spec).expanduser()
  if path.is_dir():
    path = path / "tokenizer.json"
  if not path.is_file():
    raise UserError(
      f"data.tokenizer: {spec!r} is no such file; give `bytes` or the path of "
      "a tokenizer.json (`mtpjax tokenizer` trains one)"
    )
  try:
    return HfTokenizer(path, bos_token, eos_tokens)
  except UserError:
    raise
  # The library's Rust side raises plain Exception.
  except Exception as error:
    reason = str(error).partition("\n")[0]
    raise UserError(
      f"data.tokenizer: {spec!r} is not a tokenizer.json ({reason}); give "
      "one that the `tokenizers` library can load"
    ) from error


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


def _digest(definition: Any, bos_id: int | None, eos_ids: Sequence[int]) -> str:
  identity = {"tokenizer": definition, "bos": bos_id, "eos": list(eos_ids)}
  # Sorted keys: the same tokenizer, written with other white space, is equal.
  return hashlib.sha256(
    json.dumps(identity, sort_keys=True).encode()
  ).hexdigest()
