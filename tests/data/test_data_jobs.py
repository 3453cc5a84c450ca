"""The commands `prepare` and `tokenizer`, from sources to a summary."""

import gzip
import io
import signal
import subprocess
import sys

import rich.console
from corpora import TEXTS, write_jsonl, write_texts

from mtpjax import data as data_lib
from mtpjax.config import Config, Data, Heads
from mtpjax.data import load_tokenizer, open_rows, size_of, text_files
from mtpjax.jobs import prepare, tokenizer


def test_train_a_tokenizer_then_prepare_with_it(tmp_path):
  text = io.StringIO()
  console = rich.console.Console(file=text, width=200)
  source = write_texts(tmp_path / "texts")
  out = tmp_path / "tok" / "tokenizer.json"
  assert tokenizer.train((source,), 280, out, console) == 280
  assert load_tokenizer(str(out)).decode(
    load_tokenizer(str(out)).encode(TEXTS[6])
  ) == TEXTS[6]  # fmt: skip
  assert f"--data.tokenizer {out}" in text.getvalue()
  config = Config(
    data=Data(
      path=str(tmp_path / "data"), sources=(source,), row_length=16,
      tokenizer=str(out), validation_fraction=0.2,
    )
  )  # fmt: skip
  result = prepare.run(config, console)
  assert not result["kept"]
  for word in ("train", "validation", "documents", result["id"][:12]):
    assert word in text.getvalue()
  assert "already" not in text.getvalue()
  assert prepare.run(config, console)["kept"]
  assert "already holds exactly this" in text.getvalue()
  n_rows = result["splits"]["train"]["rows"]
  assert len(open_rows(config.data.path, "train")) == n_rows


def test_brackets_in_a_path_are_shown_as_they_are(tmp_path):
  path = tmp_path / "a[" / "b]" / "[green]"
  text = io.StringIO()
  # As the library has it; the command's console reads no markup at all.
  console = rich.console.Console(file=text, width=300)
  source = write_texts(tmp_path / "texts")
  data = Data(path=str(path), sources=(source,), row_length=16)
  prepare.run(Config(data=data), console)
  assert "/a[/b]/[green], fingerprint" in text.getvalue()


def run(tmp_path, texts, offsets=(1, 2, 3, 4), **changes):
  """Prepares texts, or the sources given; returns what is printed."""
  text = io.StringIO()
  console = rich.console.Console(file=text, width=200)
  if "sources" not in changes:
    changes["sources"] = (write_texts(tmp_path / "texts", texts),)
  data = Data(**({"path": str(tmp_path / "data"), "row_length": 16} | changes))
  config = Config(data=data, heads=Heads(offsets=offsets))
  prepare.run(config, console)
  return [l for l in text.getvalue().splitlines() if l.startswith("WARNING")]


def test_a_split_without_rows_is_said(tmp_path):
  for _ in range(2):  # also where the folder is there already
    (line,) = run(tmp_path, ["a text", "another"], validation_fraction=0.0)
    assert "validation split has no rows" in line
    assert "--data.validation-fraction" in line and str(tmp_path) in line


def test_offsets_without_targets_are_said(tmp_path):
  texts = ["long enough for any of them", "ab"]
  # The seed decides which of the two is held out.
  lines = [
    run(tmp_path, texts, path=str(tmp_path / str(s)), seed=s) for s in range(9)
  ]
  short = [line for found in lines for line in found if "validation" in line]
  assert 0 < len(short) < 9
  # Two bytes between BOS and EOS: the last is three behind the first.
  for line in short:
    assert "no targets for offsets 4;" in line
    assert "no further than offset 3" in line
  everything = run(
    tmp_path, texts, offsets=(1, 2, 3), path=str(tmp_path / "three")
  )
  assert everything == []


def test_a_split_without_targets_is_said(tmp_path):
  records = [{"q": "question", "a": "answer"}, {"q": "question", "a": ""}]
  train = write_jsonl(tmp_path / "train.jsonl", records[:1])
  held = write_jsonl(tmp_path / "held.jsonl", records[1:])
  (line,) = run(
    tmp_path, [], sources=(f"jsonl:{train}:q,a",),
    validation_sources=(f"jsonl:{held}:q,a",), add_eos=False,
  )  # fmt: skip
  assert "the validation split has no targets" in line
  assert "completions" in line


def test_text_in_both_sources_is_said(tmp_path):
  train = write_texts(tmp_path / "train", ["one text", "two texts", "three"])
  held = write_texts(tmp_path / "held", ["three", "four", "one text", "three"])
  for _ in range(2):  # also where the folder is there already
    (line,) = run(
      tmp_path, [], (1,), sources=(train,), validation_sources=(held,)
    )
    assert "3 of 4 documents of --data.validation-sources" in line
  assert not run(
    tmp_path, [], (1,), path=str(tmp_path / "apart"), sources=(train,),
    validation_sources=(write_texts(tmp_path / "other", ["one", "text"]),),
  )  # fmt: skip


def test_a_tail_that_is_held_out_is_said(tmp_path):
  (line,) = run(tmp_path, ["a line of text\n" * 30], validation_fraction=0.1)
  assert "one document only" in line and "held out" in line
  assert "--data.validation-fraction 0.1" in line


def test_sigterm_and_ctrl_c_leave_nothing(tmp_path, monkeypatch):
  """The signal comes while rows are written, in a process of its own."""
  source = write_texts(tmp_path / "texts")
  before = sorted(tmp_path.iterdir())
  code = """
import os, signal, sys
from mtpjax import cli
from mtpjax.data.rows import RowWriter
append = RowWriter.append
def stopped(self, rows):
  append(self, rows)
  os.kill(os.getpid(), int(sys.argv[3]))
RowWriter.append = stopped
argv = ["--data.path", sys.argv[1], "--data.sources", sys.argv[2]]
sys.exit(cli.main(["prepare", "quickstart", *argv, "--data.row-length", "16"]))
"""
  for number, status, said in (
    (signal.SIGTERM, 143, b"mtpjax: terminated\n"),
    (signal.SIGINT, 130, b"mtpjax: interrupted\n"),
    (signal.SIGKILL, -signal.SIGKILL, b""),
  ):
    done = subprocess.run(
      [
        sys.executable, "-c", code, str(tmp_path / "data"), source,
        str(int(number)),
      ],
      capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr.decode()
    assert done.stderr == said
    if number != signal.SIGKILL:
      assert sorted(tmp_path.iterdir()) == before
  (left,) = set(tmp_path.iterdir()) - set(before)
  assert left.name.startswith("data.part-")
  run(tmp_path, [], sources=(source,))
  assert not left.exists()


def test_a_mistake_that_is_found_at_once_is_one_line(tmp_path):
  """Nothing that was begun in the background may outlive it."""
  empty = write_texts(tmp_path / "texts", [""])
  done = subprocess.run(
    [
      sys.executable, "-m", "mtpjax", "prepare", "quickstart", "--data.path",
      str(tmp_path / "data"), "--data.sources", empty,
    ],
    capture_output=True, check=False,
  )  # fmt: skip
  assert done.returncode == 2
  assert done.stderr.count(b"\n") == 1 and b"no text" in done.stderr


def test_progress_goes_by_the_bytes_of_the_sources(tmp_path, monkeypatch):
  """All that sizes promise is read: whole, packed, and in pieces."""
  monkeypatch.setattr(text_files, "SHORT", 500)
  texts = write_texts(tmp_path / "texts")
  (tmp_path / "long.txt").write_bytes(b"a long text " * 100)
  (tmp_path / "packed.txt.gz").write_bytes(gzip.compress(b"packed " * 300))
  lines = write_jsonl(tmp_path / "a.jsonl", [{"t": "one"}, {"t": "two"}])
  sources = (
    texts, f"text:{tmp_path}/long.txt", f"text:{tmp_path}/packed.txt.gz",
    f"jsonl:{lines}:t", "python-package:json",
  )  # fmt: skip
  config = Data(path=str(tmp_path / "data"), sources=sources, row_length=16)
  seen = []
  data_lib.prepare(config, load_tokenizer("bytes"), count=seen.append)
  sizes = [size_of(source) for source in sources]
  assert sum(seen) == sum(sizes)
  read = []
  for source in sources:
    list(tokenizer._texts([source], False, read.append))
  assert sum(read) == sum(sizes)
