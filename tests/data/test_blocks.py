"""A long text in blocks gets the ids of the whole, whatever the tokenizer."""

import json
import random

import numpy as np
import pytest
import tokenizers as library
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from mtpjax.data import blocks, load_tokenizer
from mtpjax.data.blocks import REACH, cut_between_words, cut_blocks, join_blocks

SIZE = 4 * REACH
N = 12_000
LLAMA3_WORDS = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>"]


def mixed(rng, *pieces):
  """Text of these pieces, each once or many times in a row."""
  texts, length = [], 0
  while length < N:
    texts.append(rng.choice(pieces) * rng.choice((1, 1, 1, 2, 3, 40)))
    length += len(texts[-1])
  return "".join(texts)


def of(characters):
  def text(rng):
    return "".join(rng.choice(characters) for _ in range(N))

  return text


TEXTS = {
  "prose": lambda rng: mixed(
    rng, "the ", "quick brown ", "fox, it's ", "naïve café ", "12345 ", ".\n",
    "\n\n", "don't ", "def f(x):\n    return x\n", "  ", "日本語の本 ", "🙂 ",
  ),
  "crlf": lambda rng: mixed(rng, "one two\r\n", "\r\n", "three", "\t", " "),
  "one space run": lambda rng: "x" + " " * N + "y",
  "white": of(" \t\n\r\u00a0\u3000"),
  "no space": of("abcdefgh"),
  "one letter": lambda rng: "a" * N,
  "two letters": lambda rng: "ab" * (N // 2),
  "digits": of("0123456789"),
  "shifted digits": lambda rng: "x" + "7" * N,
  "chinese": of("日本語中文字天地"),
  "emoji": of("🙂🧪👩\u200d🔬e\u0301"),
  "special": lambda rng: mixed(
    rng, *SPECIAL, "hello ", "<|im_", "start|> ", "\n"
  ),
  "anything": lambda rng: "".join(
    chr(rng.choice((rng.randrange(32, 127), rng.randrange(160, 0x2FFF))))
    for _ in range(N)
  ),
}  # fmt: skip


def training_texts():
  rng = random.Random(1)
  return [text(rng)[:6000] for text in TEXTS.values()]


def byte_level(words, **options):
  made = library.Tokenizer(models.BPE())
  split = (
    pre_tokenizers.Split(library.Regex(words), "isolated") if words else None
  )
  level = pre_tokenizers.ByteLevel(use_regex=not words, **options)
  made.pre_tokenizer = (
    pre_tokenizers.Sequence([split, level]) if split else level
  )
  made.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=700, special_tokens=SPECIAL, show_progress=False,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
  )  # fmt: skip
  made.train_from_iterator(training_texts(), trainer)
  return made


def sentence_piece(scheme):
  """As Llama 2: spaces are ▁, one is put in front, bytes are the last resort.

  With the scheme "legacy" by normalisers and no words, else by Metaspace.
  """
  rng = random.Random(2)
  made = library.Tokenizer(
    models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
  )
  marks = normalizers.Replace(" ", "▁")
  made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), marks])
  made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
  trainer = trainers.BpeTrainer(
    vocab_size=900, show_progress=False,
    special_tokens=SPECIAL + [f"<0x{i:02X}>" for i in range(256)],
  )  # fmt: skip
  made.train_from_iterator([TEXTS["prose"](rng)], trainer)
  if scheme == "legacy":
    definition = json.loads(made.to_str()) | {"pre_tokenizer": None}
    return library.Tokenizer.from_str(json.dumps(definition))
  made.normalizer = None
  made.pre_tokenizer = pre_tokenizers.Metaspace(
    prepend_scheme=scheme, split=scheme == "always"
  )
  return made


def unigram():
  made = library.Tokenizer(models.Unigram())
  made.normalizer = normalizers.NFKC()
  made.pre_tokenizer = pre_tokenizers.Metaspace()
  trainer = trainers.UnigramTrainer(
    vocab_size=300, unk_token="<unk>", special_tokens=SPECIAL,
    show_progress=False,
  )  # fmt: skip
  made.train_from_iterator([TEXTS["prose"](random.Random(3))], trainer)
  return made


def word_piece():
  made = library.Tokenizer(models.WordPiece(unk_token="<unk>"))
  made.normalizer = normalizers.BertNormalizer()
  made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  trainer = trainers.WordPieceTrainer(
    vocab_size=400, special_tokens=SPECIAL, show_progress=False
  )
  made.train_from_iterator([TEXTS["prose"](random.Random(4))], trainer)
  return made


KINDS = {
  "gpt-2": lambda: byte_level("", add_prefix_space=False),
  "prefix space": lambda: byte_level("", add_prefix_space=True),
  "llama 3": lambda: byte_level(LLAMA3_WORDS, add_prefix_space=False),
  "legacy": lambda: sentence_piece("legacy"),
  "first": lambda: sentence_piece("first"),
  "always": lambda: sentence_piece("always"),
  "unigram": unigram,
  "word piece": word_piece,
}


@pytest.fixture(scope="module", params=["bytes", *KINDS])
def tokenizer(request, tmp_path_factory):
  if request.param == "bytes":
    return load_tokenizer("bytes")
  path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
  KINDS[request.param]().save(str(path))
  return load_tokenizer(str(path))


def in_blocks(text, tokenizer, size=SIZE):
  cut = list(cut_blocks(text, tokenizer, size))
  ids = tokenizer.encode_batch([block.text for block in cut])
  runs = join_blocks(zip(cut, ids, strict=True), tokenizer)
  return np.concatenate(list(runs)).tolist(), len(cut)


@pytest.mark.parametrize("name", TEXTS)
def test_blocks_have_the_ids_of_the_whole(tokenizer, name):
  text = TEXTS[name](random.Random(name))
  pieces = [text[i : i + 1000] for i in range(0, len(text), 1000)]
  found, n_blocks = in_blocks(pieces, tokenizer)
  assert found == tokenizer.encode(text)
  if name == "prose":
    assert n_blocks > 2


def test_cuts_that_do_not_hold_are_undone(tokenizer, monkeypatch):
  """Any place is taken for a cut; what is found out later must mend it."""
  monkeypatch.setattr(
    blocks,
    "_find_cut",
    lambda text, origin, wanted, t: (
      origin + wanted,
      blocks.Cut(
        t.encode(text[origin + wanted - REACH : origin + wanted]),
        t.encode(text[origin + wanted : origin + wanted + REACH]),
      ),
    ),
  )
  rng = random.Random(5)
  for name in ("prose", "special", "digits", "chinese"):
    text = TEXTS[name](rng)
    assert in_blocks([text], tokenizer)[0] == tokenizer.encode(text)


def test_a_text_without_a_place_to_cut_is_one_block(tmp_path):
  path = tmp_path / "tokenizer.json"
  unigram().save(str(path))
  tokenizer = load_tokenizer(str(path))
  text = "b" * N  # one word, whose best division depends on all of it
  found, n_blocks = in_blocks([text], tokenizer)
  assert n_blocks == 1
  assert found == tokenizer.encode(text)


def test_pieces_to_train_on_end_between_words(monkeypatch):
  monkeypatch.setattr(blocks, "SIZE", 1000)
  text = TEXTS["prose"](random.Random(6))
  pieces = list(cut_between_words([text[:777], text[777:]]))
  assert "".join(pieces) == text
  assert len(pieces) > 3
  words = pre_tokenizers.ByteLevel(add_prefix_space=False)
  whole = [word for word, _ in words.pre_tokenize_str(text)]
  apart = [w for p in pieces for w, _ in words.pre_tokenize_str(p)]
  assert apart == whole
