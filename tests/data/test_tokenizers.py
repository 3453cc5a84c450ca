"""Bytes, a BPE trained here, and files that others wrote."""

import json
import random

import pytest
from chats import write_llama2

from mtpjax.data import (
  TextStream,
  decode_after,
  last_of_text,
  load_tokenizer,
  train_bpe,
)
from mtpjax.errors import UserError

TRAINING = ["hello world, hello tokens " * 8, "日本語の本 🙂 naïve café " * 4]


def random_text(rng, n):
  alphabets = ["abc  \n", "éüß", "日本語", "🙂🧪👩\u200d🔬", "\ufffd\x00\u0301"]
  return "".join(rng.choice(rng.choice(alphabets)) for _ in range(n))


@pytest.fixture(scope="module")
def bpe_path(tmp_path_factory):
  path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
  assert train_bpe(TRAINING, 300, path) == 300
  return path


@pytest.fixture(scope="module")
def fallback_path(tmp_path_factory):
  """A tokenizer in the manner of Llama 2: spaces as ▁, bytes as tokens."""
  return write_llama2(tmp_path_factory.mktemp("fallback"))


@pytest.fixture(params=["bytes", "bpe", "fallback"])
def tokenizer(request, bpe_path, fallback_path):
  paths = {"bytes": "bytes", "bpe": bpe_path, "fallback": fallback_path}
  return load_tokenizer(str(paths[request.param]))


def test_text_survives_encode_and_decode(tokenizer):
  rng = random.Random(0)
  for n in (0, 1, 2, 40):
    text = random_text(rng, n)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not set(ids) & {tokenizer.bos_id, *tokenizer.eos_ids}
    assert all(0 <= i < tokenizer.vocab_size for i in ids)


def test_decode_skips_specials_and_marks_broken_utf8(tokenizer):
  ids = tokenizer.encode("abc")
  around = [tokenizer.bos_id, *ids, *tokenizer.eos_ids]
  assert tokenizer.decode(around) == "abc"
  broken = tokenizer.encode("abc 龍")[:-1]
  assert tokenizer.decode(broken).startswith("abc \ufffd")


def test_token_bytes_join_to_the_decoded_text(tokenizer):
  found = tokenizer.token_bytes()
  special = {tokenizer.bos_id, *tokenizer.eos_ids}
  assert set(found) | special >= set(range(tokenizer.vocab_size)) - {0}
  assert not set(found) & special
  rng = random.Random(2)
  for _ in range(60):
    texts = tokenizer.encode(random_text(rng, rng.randrange(20)))
    ids = texts + rng.choices(sorted(found), k=rng.randrange(8))
    raw = b"".join(found[i] for i in ids)
    # How many U+FFFD stand for broken bytes is the decoder's affair.
    expected = raw.decode("utf-8", "ignore")
    decoded = tokenizer.decode(ids)
    if expected.encode() == raw:
      # Llama's decoder drops the space that its encoder has put in front.
      assert decoded in (expected, expected.removeprefix(" "))
    elif not tokenizer.fallback_ids:
      assert decoded == raw.decode("utf-8", "replace")


def with_decoder(path, folder, decoder):
  """Writes a copy of a tokenizer with another decoder."""
  definition = json.loads(path.read_text()) | {"decoder": decoder}
  (folder / "tokenizer.json").write_text(json.dumps(definition))
  return load_tokenizer(str(folder))


def test_token_bytes_of_metaspace(tmp_path, fallback_path):
  decoder = {
    "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
    "split": True,
  }  # fmt: skip
  tokenizer = with_decoder(fallback_path, tmp_path, decoder)
  found = tokenizer.token_bytes()
  ids = tokenizer.encode("ab c")
  joined = b"".join(found[i] for i in ids)
  assert joined.decode() == " " + tokenizer.decode(ids) == " ab c"


def test_token_bytes_of_added_tokens_as_decode_has_them(tmp_path, bpe_path):
  path = with_added(bpe_path, tmp_path / "added.json", "<t> 日", "éé", "x y")
  definition = json.loads((tmp_path / "added.json").read_text())
  for token in definition["added_tokens"]:
    token["special"] = False
  (tmp_path / "added.json").write_text(json.dumps(definition))
  tokenizer = load_tokenizer(path)
  found = tokenizer.token_bytes()
  for i in range(300, 303):
    assert found[i].decode("utf-8", "replace") == tokenizer.decode([i])


def test_token_bytes_of_other_decoders_are_refused(tmp_path, fallback_path):
  strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
  wordpiece = {"type": "WordPiece", "prefix": "##", "cleanup": True}
  unfused = {"type": "Sequence", "decoders": [strip, {"type": "Fuse"}]}
  for decoder in (wordpiece, unfused, None):
    tokenizer = with_decoder(fallback_path, tmp_path, decoder)
    with pytest.raises(UserError, match="tokenizer.json") as caught:
      tokenizer.token_bytes()
    assert "\n" not in str(caught.value)


def streamed(tokenizer, ids, sizes, before=()):
  stream, texts, at = TextStream(tokenizer, before), [], 0
  while at < len(ids):
    size = next(sizes)
    texts.append(stream.push(ids[at : at + size]))
    # Nothing that is out may be taken back by what follows.
    whole = decode_after(tokenizer, before, ids)
    assert whole.startswith("".join(texts))
    at += size
  return "".join(texts) + stream.flush()


def test_stream_equals_decode(tokenizer):
  rng = random.Random(1)
  for _ in range(60):
    if rng.random() < 0.5:
      ids = tokenizer.encode(random_text(rng, rng.randrange(120)))
    else:  # an untrained model: mostly broken UTF-8, and specials
      ids = [rng.randrange(tokenizer.vocab_size) for _ in range(120)]
    sizes = iter(lambda: rng.choice((1, 1, 1, 2, 7, 30)), None)
    assert streamed(tokenizer, ids, sizes) == tokenizer.decode(ids)


def test_what_goes_on_from_a_text_keeps_its_space(tokenizer, fallback_path):
  rng = random.Random(3)
  n_spaces = 0
  for _ in range(60):
    prompt = random_text(rng, rng.randrange(8))
    rest = rng.choice(("", " ")) + random_text(rng, rng.randrange(30))
    ids = tokenizer.encode(prompt + rest)
    cut = len(tokenizer.encode(prompt))
    if ids[:cut] != tokenizer.encode(prompt):
      continue
    before = last_of_text(tokenizer, ids[:cut])
    text = decode_after(tokenizer, before, ids[cut:])
    sizes = iter(lambda: rng.choice((1, 2, 7)), None)
    assert streamed(tokenizer, ids[cut:], sizes, before) == text
    if before:
      assert prompt + text == tokenizer.decode(ids)
    else:
      assert text == tokenizer.decode(ids[cut:])
    n_spaces += bool(before) and text.startswith(" ")
  assert n_spaces > 3
  # As Llama 2 writes it: alone, its first space is left out.
  llama = load_tokenizer(str(fallback_path))
  ids = llama.encode("a b")
  before = last_of_text(llama, ids[:-2])
  assert decode_after(llama, before, ids[-2:]) == " b"
  assert llama.decode(ids[-2:]) == decode_after(llama, (), ids[-2:]) == "b"
  assert last_of_text(llama, [llama.bos_id]) == ()
  assert last_of_text(llama, llama.encode("日")) == ()


def test_long_stream_equals_decode_and_forgets(tokenizer):
  text = "aé b 🙂 c " * 200
  ids = tokenizer.encode(text)
  stream = TextStream(tokenizer)
  texts = [stream.push([i]) for i in ids]
  assert len(stream._ids) < 80
  assert "".join(texts) + stream.flush() == text


def test_stream_gives_whole_characters_at_once():
  tokenizer = load_tokenizer("bytes")
  stream = TextStream(tokenizer)
  ids = tokenizer.encode("é🙂!")
  texts = [stream.push([i]) for i in ids]
  assert texts == ["", "é", "", "", "", "🙂", "!"]
  assert stream.push(tokenizer.encode("🙂")[:2]) == ""
  assert stream.flush() == "\ufffd"
  assert stream.push(tokenizer.encode("ok")) == "ok"


def test_bpe_training_is_deterministic(tmp_path, bpe_path):
  again = tmp_path / "sub" / "again.json"
  train_bpe(iter(TRAINING), 300, again)
  assert again.read_bytes() == bpe_path.read_bytes()
  tokenizer = load_tokenizer(str(again))
  assert (tokenizer.bos_id, tokenizer.eos_ids) == (0, (1,))
  assert len(tokenizer.encode("hello world")) < 5


def test_bpe_mistakes(tmp_path):
  for texts, size, word in (([], 300, "no text"), (["x"], 100, "258")):
    with pytest.raises(UserError, match=word):
      train_bpe(texts, size, tmp_path / "t.json")
  assert not (tmp_path / "t.json").exists()


def test_bpe_is_written_whole_or_the_mistake_is_one_line(tmp_path, bpe_path):
  file = tmp_path / "file"
  file.write_text("mine")
  read = []

  def texts():
    read.append(True)
    yield "text"

  for path in (tmp_path, file / "t.json", file / "below/t.json"):
    with pytest.raises(UserError, match="--out") as caught:
      train_bpe(texts(), 300, path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
  # Nothing was read for nothing, and nothing is lost.
  assert read == [] and file.read_text() == "mine"
  before = bpe_path.read_bytes()
  with pytest.raises(UserError):
    train_bpe(failing_documents(), 300, bpe_path)
  assert bpe_path.read_bytes() == before
  assert [p.name for p in bpe_path.parent.iterdir()] == [bpe_path.name]


def failing_documents():
  yield "fine"
  raise UserError("a file is broken")


def test_bpe_training_passes_errors_of_the_documents_on(tmp_path):
  with pytest.raises(UserError, match="a file is broken"):
    train_bpe(failing_documents(), 300, tmp_path / "t.json")


def with_added(bpe_path, path, *names):
  """Writes a copy of the BPE with further special tokens."""
  definition = json.loads(bpe_path.read_text())
  kept = definition["added_tokens"][0]
  definition["added_tokens"] = [
    kept | {"id": 300 + i, "content": name} for i, name in enumerate(names)
  ]
  path.write_text(json.dumps(definition))
  return str(path)


def test_bos_and_eos_are_looked_up_or_named(tmp_path, bpe_path):
  names = ("<|begin_of_text|>", "<|eot_id|>", "<|end_of_text|>", "<other>")
  path = with_added(bpe_path, tmp_path / "llama.json", *names)
  found = load_tokenizer(path)
  # The library numbers new tokens on from the 300 of the model.
  assert found.bos_id == 300
  assert found.eos_ids == (302, 301)
  assert found.vocab_size == 304
  named = load_tokenizer(path, "<other>", ("<|eot_id|>", "h"))
  assert named.bos_id == 303
  assert named.eos_ids == (301, named.encode("h")[0])
  none = load_tokenizer(with_added(bpe_path, tmp_path / "none.json", "<x>"))
  assert (none.bos_id, none.eos_ids) == (None, ())


def test_fingerprint_changes_with_what_it_stands_for(tmp_path, bpe_path):
  one = load_tokenizer(str(bpe_path))
  spaced = tmp_path / "spaced.json"
  spaced.write_text(json.dumps(json.loads(bpe_path.read_text()), indent=7))
  assert load_tokenizer(str(spaced)).fingerprint == one.fingerprint
  one.save(tmp_path)
  assert load_tokenizer(str(tmp_path)).fingerprint == one.fingerprint
  other = tmp_path / "other.json"
  train_bpe(TRAINING, 299, other)
  different = {
    one.fingerprint,
    load_tokenizer(str(other)).fingerprint,
    load_tokenizer(str(bpe_path), "</s>").fingerprint,
    load_tokenizer(str(bpe_path), "", ("</s>", "<s>")).fingerprint,
    load_tokenizer("bytes").fingerprint,
  }
  assert len(different) == 5


def test_tokens_added_beyond_a_vocabulary_are_not_of_its_fingerprint(
  tmp_path, bpe_path
):
  plain = load_tokenizer(str(bpe_path))
  definition = json.loads(bpe_path.read_text())
  added = definition["added_tokens"]
  definition["added_tokens"] = [*added, added[0] | {"content": "<pad>"}]
  definition["added_tokens"][-1]["id"] = 300
  definition["padding"] = {
    "strategy": "BatchLongest", "direction": "Right", "pad_id": 300,
    "pad_to_multiple_of": None, "pad_type_id": 0, "pad_token": "<pad>",
  }  # fmt: skip
  path = tmp_path / "padded.json"
  path.write_text(json.dumps(definition))
  padded = load_tokenizer(str(path))
  assert padded.vocab_size == 301 and plain.vocab_size == 300
  assert padded.fingerprint_within(300) == plain.fingerprint_within(300)
  assert padded.fingerprint_within(301) != plain.fingerprint_within(301)
  # One that is among the model's ids is another tokenizer.
  other = load_tokenizer(str(bpe_path), "</s>")
  assert other.fingerprint_within(300) != plain.fingerprint_within(300)
  bytewise = load_tokenizer("bytes")
  assert bytewise.fingerprint_within(300) == bytewise.fingerprint


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path, bpe_path):
  definition = json.loads(bpe_path.read_text())
  definition["truncation"] = {
    "direction": "Right", "max_length": 3, "strategy": "LongestFirst",
    "stride": 0,
  }  # fmt: skip
  path = tmp_path / "cut.json"
  path.write_text(json.dumps(definition))
  text = "hello world " * 20
  cut, whole = load_tokenizer(str(path)), load_tokenizer(str(bpe_path))
  assert cut.encode(text) == whole.encode(text)


def test_loading_mistakes(tmp_path, bpe_path):
  broken = tmp_path / "broken.json"
  broken.write_text("{}")
  cases = [
    (("nowhere.json",), ("nowhere.json", "no such file", "bytes")),
    ((str(tmp_path),), ("no such file",)),
    ((str(broken),), (str(broken), "not a tokenizer.json")),
    ((str(bpe_path), "<nope>"), ("data.bos_token", "<nope>", "</s>")),
    ((str(bpe_path), "", ("</s>", "<no>")), ("data.eos_tokens", "<no>")),
    (("bytes", "<s>"), ("bytes", "<s>", "--data.bos-token")),
  ]
  for arguments, words in cases:
    with pytest.raises(UserError) as caught:
      load_tokenizer(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
      assert word in message, message
