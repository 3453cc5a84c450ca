"""Rows give every document back; folders are whole and say what they are."""

import itertools
import json

import numpy as np
import pytest
from corpora import (
  TEXTS,
  all_pieces,
  cut,
  multiset,
  prepared,
  write_jsonl,
  write_texts,
)

from mtpjax.config import Data
from mtpjax.data import corpus as corpus_lib
from mtpjax.data import (
  load_fingerprint,
  load_tokenizer,
  longest_reach,
  open_rows,
  packing,
  prepare,
  require_within,
  train_bpe,
)
from mtpjax.data.corpus import held_out_draw
from mtpjax.errors import UserError


def fails(run, *words):
  with pytest.raises(UserError) as caught:
    run()
  message = str(caught.value)
  assert "\n" not in message
  for word in words:
    assert word in message, message


def expected_pieces(texts, row_length=16, bos=(256,), eos=(257,)):
  return [
    piece
    for text in texts
    if text
    for piece in cut([*bos, *text.encode(), *eos], row_length)
  ]


def test_rows_give_every_document_back(tmp_path):
  config, result = prepared(tmp_path)
  texts = [t for t in TEXTS if t]
  pieces = {s: all_pieces(config.path, s) for s in ("train", "validation")}
  tokens = [p[0] for split in pieces.values() for p in split]
  assert multiset(tokens) == multiset(expected_pieces(texts))
  # Whole documents on either side, as their name and the seed decide.
  for split, is_held_out in (("train", False), ("validation", True)):
    mine = [
      text
      for i, text in enumerate(TEXTS)
      if (held_out_draw(0, f"{i:03}.txt") < 0.3) == is_held_out
    ]
    expected = expected_pieces(mine)
    assert multiset(p[0] for p in pieces[split]) == multiset(expected)
    counts = result["splits"][split]
    assert counts["documents"] == len([t for t in mine if t])
    assert counts["tokens"] == sum(map(len, expected))
    assert counts["targets"] == sum(len(p) - 1 for p in expected)
    rows = open_rows(config.path, split)
    assert counts["rows"] == len(rows)
    assert counts["fill"] == pytest.approx(counts["tokens"] / len(rows) / 16)
  assert result["skipped_documents"] == 1


def test_row_invariants(tmp_path):
  config, _ = prepared(tmp_path)
  for split in ("train", "validation"):
    for row in open_rows(config.path, split):
      assert {n: a.dtype for n, a in row.items()} == {
        "tokens": np.int32,
        "segments": np.int32,
        "positions": np.int32,
        "loss_mask": np.bool_,
      }
      segments, positions = row["segments"], row["positions"]
      real = segments > 0
      n = int(real.sum())
      assert real[:n].all()  # padding only at the end
      assert n > 0 and segments[0] == 1
      steps = np.diff(segments[:n])
      assert set(steps.tolist()) <= {0, 1}
      starts = np.flatnonzero(np.r_[True, steps == 1])
      ages = np.arange(n) - np.repeat(starts, np.diff(np.r_[starts, n]))
      assert (positions[:n] == ages).all()
      assert row["loss_mask"][:n].all()
      for name in ("tokens", "positions", "loss_mask"):
        assert not row[name][n:].any()


def test_without_bos_and_eos_even_one_token_documents_are_packed(tmp_path):
  config, result = prepared(
    tmp_path, add_bos=False, add_eos=False, validation_fraction=0.0
  )
  pieces = all_pieces(config.path, "train")
  expected = expected_pieces(TEXTS, bos=(), eos=())
  assert multiset(p[0] for p in pieces) == multiset(expected)
  assert (ord("a"),) in {tuple(p[0]) for p in pieces}
  assert result["splits"]["validation"]["rows"] == 0
  assert len(open_rows(config.path, "validation")) == 0


def test_only_completions_are_targets(tmp_path):
  records = [
    {"q": f"question {i} " * (i % 4), "a": f"answer {i}" * (i % 3)}
    for i in range(12)
  ]
  path = write_jsonl(tmp_path / "qa.jsonl", records)
  config, result = prepared(
    tmp_path, sources=(f"jsonl:{path}:q,a",), validation_fraction=0.0
  )
  expected, skipped = [], 0
  for r in records:
    prompt, answer = r["q"].encode(), r["a"].encode()
    if not prompt and not answer:
      skipped += 1
      continue
    ids = [256, *prompt, *answer, 257]
    mask = [False] * (1 + len(prompt)) + [True] * (len(answer) + 1)
    expected += zip(cut(ids, 16), cut(mask, 16), strict=True)
  pieces = all_pieces(config.path, "train")
  found = [(tuple(p[0]), tuple(p[2])) for p in pieces]
  assert multiset(found) == multiset(expected)
  assert result["skipped_documents"] == skipped > 0
  assert result["splits"]["train"]["targets"] == sum(
    sum(mask[1:]) for _, mask in expected
  )


def test_several_eos_the_first_is_written(tmp_path):
  path = tmp_path / "tokenizer.json"
  train_bpe(TEXTS, 270, path)
  source = write_texts(tmp_path / "texts")
  config = Data(
    path=str(tmp_path / "data"), sources=(source,), row_length=16,
    tokenizer=str(path), eos_tokens=("a", "</s>"),
  )  # fmt: skip
  tokenizer = load_tokenizer(config.tokenizer, "", config.eos_tokens)
  identity = prepare(config, tokenizer)["identity"]
  assert identity["eos_ids"] == [tokenizer.encode("a")[0], 1]
  pieces = all_pieces(config.path, "train")
  assert {p[0][-1] for p in pieces if len(p[0]) < 16} == {
    identity["eos_ids"][0]
  }


def test_rows_fit_a_model_that_lacks_only_ids_they_do_not_have(tmp_path):
  tokenizer = load_tokenizer("bytes")
  config, _ = prepared(tmp_path, add_bos=False, add_eos=False)
  for split in ("train", "validation"):
    rows = open_rows(config.path, split)
    largest = max(row["tokens"].max() for row in rows)
    assert rows.largest_id() == largest < 256
    for enough in (largest + 1, 258, 300):
      require_within(rows, tokenizer, enough)
    fails(
      lambda rows=rows, n=largest: require_within(rows, tokenizer, n),
      f"{largest} is less than the tokenizer's 258", f"id {largest}",
    )  # fmt: skip


@pytest.mark.parametrize("fraction", [1e-9, 1 - 1e-9])
def test_two_documents_leave_no_split_empty(tmp_path, fraction):
  source = write_texts(tmp_path / "texts", ["one text", "another"])
  _, result = prepared(
    tmp_path, sources=(source,), validation_fraction=fraction
  )
  assert [c["documents"] for c in result["splits"].values()] == [1, 1]


def test_split_is_stable_when_documents_are_added(tmp_path):
  def validation(n, **changes):
    source = write_texts(tmp_path / "texts", TEXTS[8 : 8 + n])
    path = str(tmp_path / f"data{n}{changes}")
    prepared(tmp_path, sources=(source,), path=path, **changes)
    return multiset(p[0] for p in all_pieces(path, "validation"))

  few, many = validation(20), validation(40)
  assert few <= many and few != many
  assert validation(20, seed=1) != few


def test_max_documents_counts_over_all_sources(tmp_path):
  sources = (
    write_texts(tmp_path / "a", ["one"] * 3),
    write_texts(tmp_path / "b", ["two"] * 3),
  )
  _, result = prepared(tmp_path, sources=sources, max_documents=4)
  read = [s["documents"] for s in result["identity"]["sources"]]
  assert read == [3, 1]
  assert sum(c["documents"] for c in result["splits"].values()) == 4


def test_same_input_same_bytes(tmp_path):
  one, _ = prepared(tmp_path, path=str(tmp_path / "one"))
  two, _ = prepared(tmp_path, path=str(tmp_path / "two"))
  files = sorted(f.relative_to(one.path) for f in (tmp_path / "one").rglob("*"))
  assert len(files) == 2 * 5 + 1
  for file in files:
    if (tmp_path / "one" / file).is_file():
      first = (tmp_path / "one" / file).read_bytes()
      assert first == (tmp_path / "two" / file).read_bytes()
  np_rows = np.load(tmp_path / "one/train/tokens.npy", mmap_mode="r")
  assert np_rows.dtype == np.uint16
  assert (np_rows == [r["tokens"] for r in open_rows(one.path, "train")]).all()


def test_equal_data_is_kept_and_other_data_refused(tmp_path):
  config, first = prepared(tmp_path)
  before = (tmp_path / "data/fingerprint.json").stat().st_mtime_ns
  again = prepare(config, load_tokenizer("bytes"))
  assert again == first | {"kept": True}
  assert not first["kept"]
  assert (tmp_path / "data/fingerprint.json").stat().st_mtime_ns == before
  way_out = ("holds other data", "--data.path")
  fails(
    lambda: prepared(tmp_path, row_length=32, add_bos=False),
    "row_length 16, not 32", "add_bos True, not False", *way_out,
  )  # fmt: skip
  fails(lambda: prepared(tmp_path, seed=1), "seed 0, not 1", *way_out)
  (tmp_path / "texts/000.txt").write_text("A")
  fails(
    lambda: prepared(tmp_path, sources=config.sources),
    "the contents of text:", "changed", *way_out,
  )  # fmt: skip
  other = write_texts(tmp_path / "others")
  fails(lambda: prepared(tmp_path, sources=(other,)), "sources", other)
  assert load_fingerprint(config.path)["id"] == first["id"]


def test_id_changes_with_everything_that_matters(tmp_path):
  changes = [
    {},
    {"row_length": 17},
    {"seed": 5},
    {"add_bos": False},
    {"add_eos": False},
    {"validation_fraction": 0.2},
    {"max_documents": 7},
    {"sources": (write_texts(tmp_path / "b", ["ab", "c"]),)},
    {"sources": (write_texts(tmp_path / "c", ["a", "bc"]),)},
  ]
  ids = {
    prepared(tmp_path, path=str(tmp_path / str(i)), **change)[1]["id"]
    for i, change in enumerate(changes)
  }
  assert len(ids) == len(changes)
  moved = prepared(tmp_path, path=str(tmp_path / "moved"))[1]["id"]
  assert moved in ids


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch):
  source = write_texts(tmp_path / "texts")
  whole = packing.pack

  def half(*arguments):
    yield from itertools.islice(whole(*arguments), 2)
    raise KeyboardInterrupt

  monkeypatch.setattr(packing, "pack", half)
  with pytest.raises(KeyboardInterrupt):
    prepared(tmp_path, sources=(source,))
  assert [p.name for p in tmp_path.iterdir()] == ["texts"]
  monkeypatch.undo()
  (tmp_path / "data").mkdir()  # an empty folder is no obstacle
  assert not prepared(tmp_path, sources=(source,))[1]["kept"]


def test_progress_is_reported(tmp_path):
  source = write_texts(tmp_path / "texts")
  config = Data(path=str(tmp_path / "data"), sources=(source,), row_length=16)
  calls = []
  result = prepare(config, load_tokenizer("bytes"), lambda *c: calls.append(c))
  counts = result["splits"].values()
  assert calls[-1] == (
    sum(c["documents"] for c in counts),
    sum(c["tokens"] for c in counts),
  )


def test_mistakes(tmp_path):
  empty = write_texts(tmp_path / "empty", ["", ""])
  fails(lambda: prepared(tmp_path, sources=(empty,)), "no text", empty)
  lone = write_texts(tmp_path / "lone", ["a"])
  fails(
    lambda: prepared(tmp_path, sources=(lone,), add_bos=False, add_eos=False),
    "no token to train on", lone,
  )  # fmt: skip
  fails(lambda: prepared(tmp_path, seed=-1), "data.seed", "-1")
  assert not (tmp_path / "data").exists()
  (tmp_path / "data").mkdir()
  (tmp_path / "data/thesis.tex").write_text("mine")
  fails(lambda: prepared(tmp_path), "exists and is not empty", "--data.path")
  plain = tmp_path / "tokenizer.json"
  train_bpe(["words"], 258, plain)
  definition = json.loads(plain.read_text()) | {"added_tokens": []}
  plain.write_text(json.dumps(definition))
  fails(
    lambda: prepared(tmp_path, tokenizer=str(plain), path=str(tmp_path / "d")),
    "data.add_bos", "--data.bos-token", "--data.add-bos false",
  )  # fmt: skip


def test_missing_or_damaged_folders_are_noticed(tmp_path):
  fails(lambda: open_rows(tmp_path / "none", "train"), "mtpjax prepare")
  config, _ = prepared(tmp_path)
  fails(lambda: open_rows(config.path, "test"), "'test'", "validation")
  train = tmp_path / "data/train"
  for name, damage, word in (
    ("tokens.npy", lambda raw: raw[:-5], "bytes where"),
    ("segments.npy", lambda raw: raw + b"x", "bytes where"),
    ("positions.npy", lambda raw: b"nonsense" + raw, "damaged header"),
    ("loss_mask.npy", None, "missing"),
  ):
    whole = (train / name).read_bytes()
    (train / name).unlink()
    if damage:
      (train / name).write_bytes(damage(whole))
    fails(lambda: open_rows(config.path, "train"), name, word, "mtpjax prepare")
    (train / name).write_bytes(whole)
  fewer = np.load(train / "tokens.npy")[1:]
  np.save(train / "tokens.npy", fewer)
  fails(lambda: open_rows(config.path, "train"), "the fingerprint says")
  fingerprint = tmp_path / "data/fingerprint.json"
  whole_fingerprint = fingerprint.read_text()
  fingerprint.write_text(json.dumps({"format": 99}))
  fails(lambda: load_fingerprint(config.path), "format 99", "mtpjax prepare")
  for damage in (
    lambda f: f.pop("identity"),
    lambda f: f["identity"].pop("seed"),
    lambda f: f["identity"].pop("sources"),
    lambda f: f["identity"].update(row_length="16"),
    lambda f: f["splits"].pop("validation"),
    lambda f: f.update(splits=[1]),
    lambda f: f["splits"]["train"].update(rows=None),
  ):
    damaged = json.loads(whole_fingerprint)
    damage(damaged)
    fingerprint.write_text(json.dumps(damaged))
    fails(lambda: open_rows(config.path, "train"), "damaged", "mtpjax prepare")
  fingerprint.write_text("{")
  fails(lambda: load_fingerprint(config.path), "damaged", "mtpjax prepare")


@pytest.mark.parametrize("seed", [0, 7])
def test_rows_are_those_of_grains_packer(tmp_path, seed):
  import grain

  rng = np.random.default_rng(seed)
  lengths_N = rng.integers(1, 17, 900)
  n = int(lengths_N.sum())
  rng.integers(0, 300, n, np.uint16).tofile(tmp_path / "tokens")
  (rng.random(n) < 0.7).tofile(tmp_path / "mask")
  flat = corpus_lib.Corpus(
    corpus_lib.FlatFile(tmp_path / "tokens", np.dtype(np.uint16)),
    corpus_lib.FlatFile(tmp_path / "mask", np.dtype(np.bool_)),
    lengths_N, rng.random(900), 0,
  )  # fmt: skip
  pieces = corpus_lib.cut_pieces(flat, np.arange(900), 16)
  expected = grain.experimental.FirstFitPackIterDataset(
    grain.MapDataset.source(pieces).seed(seed).shuffle().to_iter_dataset(),
    length_struct={"tokens": 16, "loss_mask": 16},
    num_packing_bins=64, seed=seed, meta_features=("loss_mask",),
  )  # fmt: skip
  names = {
    "tokens": "tokens", "segments": "tokens_segment_ids",
    "positions": "tokens_positions", "loss_mask": "loss_mask",
  }  # fmt: skip
  found = list(packing.pack(pieces, 16, seed))
  assert len(found) > 3
  rows = list(expected)
  for name, theirs in names.items():
    mine_NT = np.concatenate([some[name] for some in found])
    assert (mine_NT == np.stack([row[theirs] for row in rows])).all()
  flat.close()


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_the_end_of_a_single_document_is_held_out(tmp_path, kind):
  path = "bytes"
  if kind == "bpe":
    path = str(tmp_path / "tokenizer.json")
    train_bpe(TEXTS, 300, path)
  paragraphs = [f"paragraph {i}\n" + f"line é{i}\n" * 9 for i in range(60)]
  text = "\n".join(paragraphs)
  source = write_texts(tmp_path / "texts", [text])
  config, result = prepared(
    tmp_path, sources=(source,), tokenizer=path, validation_fraction=0.1
  )
  tokenizer = load_tokenizer(path)
  ids = [tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_ids[0]]
  counts = {s: c["tokens"] for s, c in result["splits"].items()}
  n = counts["train"]
  assert sum(counts.values()) == len(ids)
  assert abs(counts["validation"] - 0.1 * len(ids)) < 0.06 * len(ids)
  for split, part in (("train", ids[:n]), ("validation", ids[n:])):
    tokens = [p[0] for p in all_pieces(config.path, split)]
    assert multiset(tokens) == multiset(cut(part, 16))
  # What is held out begins as a paragraph does.
  assert tokenizer.decode(ids[n:]).lstrip("\n").startswith("paragraph ")
  assert tokenizer.decode(ids[:n]).endswith("\n")
  plain = load_tokenizer(path)
  assert prepare(config, plain)["kept"]
  assert result["identity"]["held_out"] == "tail"


def test_no_end_is_held_out_where_none_is_wanted_or_can_be(tmp_path):
  text = "some words and then some more of them. " * 5
  long = write_texts(tmp_path / "long", [text])
  short = write_texts(tmp_path / "short", ["short"])
  two = write_texts(tmp_path / "two", [text, text + text])
  answer = write_jsonl(tmp_path / "a.jsonl", [{"q": "x" * 300, "a": "y"}])
  for name, changes in {
    "nothing wanted": {"sources": (long,), "validation_fraction": 0.0},
    "one row": {"sources": (short,)},
    "two": {"sources": (two,)},
    "no target in front": {"sources": (f"jsonl:{answer}:q,a",)},
    "own sources": {"sources": (long,), "validation_sources": (short,)},
  }.items():
    path = str(tmp_path / "prepared" / name)
    result = prepared(tmp_path, path=path, **changes)[1]
    assert "held_out" not in result["identity"], name
    n_held_out = result["splits"]["validation"]["documents"]
    assert n_held_out == (name in ("two", "own sources")), name


def test_sources_for_validation_without_text_take_nothing(tmp_path):
  empty = write_texts(tmp_path / "empty", [""])
  _, result = prepared(tmp_path, validation_sources=(empty,))
  assert result["splits"]["validation"]["documents"] == 0
  text = write_texts(tmp_path / "text", ["held out, and not for training"])
  fails(
    lambda: prepared(
      tmp_path, sources=(empty,), validation_sources=(text,),
      path=str(tmp_path / "other"),
    ),
    "no token to train on",
  )  # fmt: skip


def test_a_text_that_spells_its_ends_out_gets_no_second(tmp_path):
  path = str(tmp_path / "tokenizer.json")
  train_bpe(TEXTS, 300, path)
  texts = ["<s>a text", "a text", "<s>a text</s>", "a text</s>"]
  source = write_texts(tmp_path / "texts", texts)
  config, _ = prepared(
    tmp_path, sources=(source,), tokenizer=path, validation_fraction=0.0
  )
  pieces = [p[0] for p in all_pieces(config.path, "train")]
  assert all(piece == pieces[0] for piece in pieces)
  assert (pieces[0].count(0), pieces[0].count(1)) == (1, 1)


def test_how_far_targets_reach(tmp_path):
  records = [{"q": "x" * i, "a": "y" * (i % 3)} for i in range(9)]
  source = f"jsonl:{write_jsonl(tmp_path / 'a.jsonl', records)}:q,a"
  config, _ = prepared(
    tmp_path, sources=(source,), row_length=64, add_eos=False
  )
  for split in ("train", "validation"):
    pieces = all_pieces(config.path, split)
    farthest = max(
      max([at for at, is_on in enumerate(mask) if is_on], default=0)
      for _, _, mask in pieces
    )
    assert longest_reach(config.path, split) == farthest > 0
