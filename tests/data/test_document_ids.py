"""The ids of prompts, completions and turns: those of the whole text."""

import json
import random

import pytest
from chats import CHATML, LLAMA3, TALK, VICUNA
from corpora import all_pieces, prepared, write_jsonl
from test_published_templates import GEMMA, MISTRAL
from test_tokenizers import (  # noqa: F401
  bpe_path,
  fallback_path,
  random_text,
)

from mtpjax.data import ChatTemplate, Document, load_tokenizer
from mtpjax.data.document_ids import document_ids, encode_parts, with_bos

WORDS = ("Q", ":", "2", "+", "=", "A", "4")
METASPACE = {"type": "Metaspace", "replacement": "▁", "split": True}


def spelling(path, folder, scheme="legacy", merges=()):
  """Writes a tokenizer as Llama 2's, with words and merges of its own.

  `scheme` is "legacy" (a normaliser puts the first space) or one of those of
  Metaspace: "always", "first" and "never".
  """
  definition = json.loads(path.read_text())
  vocabulary = definition["model"]["vocab"]
  for word in (*WORDS, *("".join(pair) for pair in merges)):
    vocabulary.setdefault(word, len(vocabulary))
  definition["model"]["merges"] = [list(pair) for pair in merges]
  if scheme != "legacy":
    metaspace = METASPACE | {"prepend_scheme": scheme}
    definition |= {
      "normalizer": None, "pre_tokenizer": metaspace,
      "decoder": {
        "type": "Sequence",
        "decoders": [{"type": "ByteFallback"}, metaspace],
      },
    }  # fmt: skip
  folder.mkdir(parents=True, exist_ok=True)
  (folder / "tokenizer.json").write_text(json.dumps(definition))
  return load_tokenizer(str(folder))


MERGES = (("a", "b"), ("▁", "a"), ("▁", "ab"), ("ab", "c"), ("c", "▁"))


@pytest.fixture(params=["bytes", "bpe", "legacy", "always", "first", "never"])
def tokenizer(request, bpe_path, fallback_path, tmp_path):  # noqa: F811
  if request.param == "bytes":
    return load_tokenizer("bytes")
  if request.param == "bpe":
    return load_tokenizer(str(bpe_path))
  return spelling(fallback_path, tmp_path, request.param, MERGES)


def test_the_completion_has_the_ids_it_has_in_the_whole_text(
  tmp_path, fallback_path  # noqa: F811
):  # fmt: skip
  tokenizer = spelling(fallback_path, tmp_path / "tok")
  record = {"prompt": "Q: 2+2=\nA:", "completion": " 4"}
  path = write_jsonl(tmp_path / "d.jsonl", [record])
  config, _ = prepared(
    tmp_path, sources=(f"jsonl:{path}:prompt,completion",), row_length=64,
    tokenizer=str(tmp_path / "tok"), validation_fraction=0.0,
  )  # fmt: skip
  ((ids, _, mask),) = all_pieces(config.path, "train")
  vocabulary = json.loads((tmp_path / "tok" / "tokenizer.json").read_text())
  names = {i: name for name, i in vocabulary["model"]["vocab"].items()}
  trained = [names[i] for i, on in zip(ids, mask, strict=True) if on]
  assert trained == ["▁", "4", "</s>"]
  assert tokenizer.decode(ids) == "Q: 2+2=\nA: 4"
  assert ids[1:-1] == tokenizer.encode("Q: 2+2=\nA: 4")


def test_parts_join_to_the_text_whatever_it_is(tokenizer):
  rng = random.Random(4)
  n_whole = 0
  for _ in range(150):
    texts = [random_text(rng, rng.randrange(6)) for _ in range(3)]
    texts += [rng.choice(["ab", " ab", "c ", "abc", " ", ""])]
    rng.shuffle(texts)
    parts = encode_parts(tokenizer, [(text, False) for text in texts])
    assert len(parts) == len(texts)
    ids = [i for part, _ in parts for i in part]
    whole = tokenizer.encode("".join(texts))
    # What the decoder makes of the whole text, it makes of its parts.
    assert tokenizer.decode(ids) == tokenizer.decode(whole)
    first = next((text for text in texts if text), "")
    # And what a model is given is what it was trained behind.
    assert ids[: len(tokenizer.encode(first))] == tokenizer.encode(first)
    n_whole += ids == whole
  assert n_whole > 50


def test_a_token_that_reaches_over_the_end_of_the_prompt_is_cut(
  tmp_path, fallback_path  # noqa: F811
):  # fmt: skip
  tokenizer = spelling(fallback_path, tmp_path / "tok", merges=MERGES)
  assert len(tokenizer.encode("b abc")) == len(tokenizer.encode("b ab")) + 1
  whole = tokenizer.encode("a abc")
  (prompt, _), (rest, _) = encode_parts(tokenizer, [("a a", 0), ("bc", 1)])
  assert prompt == tokenizer.encode("a a")
  # No space, which "bc" by itself begins with.
  assert rest == tokenizer.encode("bc")[1:]
  assert prompt + rest != whole
  assert tokenizer.decode(prompt + rest) == tokenizer.decode(whole) == "a abc"


@pytest.mark.parametrize("source", [CHATML, LLAMA3, VICUNA, MISTRAL, GEMMA])
def test_turns_have_the_ids_they_have_in_the_whole_conversation(
  tokenizer, source
):
  template = ChatTemplate(source, "t.jinja", "<s>", "</s>")
  talk = [*TALK, {"role": "user", "content": " a  abc\n"}, TALK[1]]
  parts = encode_parts(tokenizer, template.split(talk, "here"))
  ids = [i for part, _ in parts for i in part]
  assert ids == tokenizer.encode(template.render(talk, "here"))
  # What the model is given before each answer is what it is trained behind.
  for number, message in enumerate(talk):
    if message["role"] == "assistant":
      prompt = template.render(talk[:number], "here", True)
      given = tokenizer.encode(prompt)
      assert ids[: len(given)] == given
      # One part before each answer, one for it.
      assert sum(len(part) for part, _ in parts[:number]) == len(given)


def ids_of(text, tokenizer, bos_id, eos_id):
  document = Document("d", ((text, True),))
  parts = document_ids(document, tokenizer, bos_id, eos_id)
  return [i for ids, _ in parts for i in ids]


def test_bos_and_eos_stand_once(bpe_path):  # noqa: F811
  tokenizer = load_tokenizer(str(bpe_path))
  hello = tokenizer.encode("hello")
  for text in ("hello", "<s>hello", "hello</s>", "<s>hello</s>"):
    assert ids_of(text, tokenizer, 0, 1) == [0, *hello, 1]
  assert ids_of("<s><s>hello", tokenizer, 0, 1) == [0, 0, *hello, 1]
  assert ids_of("</s>hello<s>", tokenizer, 0, 1) == [0, 1, *hello, 0, 1]
  assert ids_of("<s>hello</s>", tokenizer, None, None) == [0, *hello, 1]
  assert ids_of("", tokenizer, 0, 1) == []
  # One token is both: a text of nothing else begins, and then ends.
  assert ids_of("<s>", tokenizer, 0, 0) == [0, 0]
  assert ids_of("<s>hello<s>", tokenizer, 0, 0) == [0, *hello, 0]
  assert ids_of("hello", tokenizer, 0, 0) == [0, *hello, 0]
  # Of a prompt and its completion the whole text counts.
  document = Document("d", (("<s>hello", False), (" hello</s>", True)))
  parts = document_ids(document, tokenizer, 0, 1)
  assert [on for _, on in parts] == [False, True]
  assert parts[0][0] == [0, *hello] and parts[1][0][-2:] != [1, 1]
  assert with_bos((0, 5), 0) == [0, 5] and with_bos([5], 0) == [0, 5]
  assert with_bos([], 0) == [0] and with_bos([5], None) == [5]
