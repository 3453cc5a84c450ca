"""Sources and tokenizers: every entry, and a toy of each to the end."""

import pytest

from mtpjax import cli
from mtpjax.data import SOURCES, TOKENIZERS, load_tokenizer
from mtpjax.data.byte_tokenizer import ByteTokenizer
from mtpjax.data.document import Document
from mtpjax.data.sources import Source, read_documents, size_of
from mtpjax.errors import UserError


class Shifted(ByteTokenizer):
  """Bytes, each written as the one that is 128 further."""

  def encode(self, text):
    return [(i + 128) % 256 for i in super().encode(text)]

  def decode(self, ids):
    return super().decode([(i + 128) % 256 if i < 256 else i for i in ids])


def numbers(rest, spec, replace, count):
  del spec, replace
  for i in range(int(rest)):
    text = " ".join(map(str, range(i, i + 60)))
    count(len(text))
    yield Document(f"{i}", ((text, True),))


@pytest.fixture
def toys(monkeypatch):
  monkeypatch.setitem(SOURCES, "numbers", Source(("numbers:N",), numbers))
  monkeypatch.setitem(TOKENIZERS, "shifted", Shifted)


def test_an_unknown_source_lists_all_forms(toys):
  with pytest.raises(UserError) as error:
    read_documents("nowhere:x")
  for source in SOURCES.values():
    for form in source.forms:
      assert form in str(error.value)


@pytest.mark.parametrize("kind", SOURCES)
def test_a_source_that_is_incomplete_says_what_is_missing(kind):
  takes_nothing = kind in SOURCES[kind].forms
  with pytest.raises(UserError, match="is incomplete; write "):
    read_documents(f"{kind}:" if takes_nothing else kind)


def test_a_source_without_files_has_no_size(toys):
  assert size_of("numbers:3") is None
  assert [d.name for d in read_documents("numbers:3")] == ["0", "1", "2"]


@pytest.mark.parametrize("name", [*TOKENIZERS, "shifted"])
def test_a_tokenizer_without_files_reads_what_it_writes(name, toys, tmp_path):
  tokenizer = load_tokenizer(name)
  text = "naïve \U0001f600 text\n"
  ids = tokenizer.encode(text)
  assert tokenizer.decode(ids) == text
  assert all(0 <= i < tokenizer.vocab_size for i in ids)
  tokenizer.save(tmp_path)
  assert not list(tmp_path.iterdir())


def test_toys_are_one_line_away_from_the_command_line(
  toys, in_tiny_root, tmp_path, capsys, monkeypatch
):
  data = ["--data.path", str(tmp_path / "data"), "--data.sources", "numbers:9"]
  data += ["--data.tokenizer", "shifted"]
  assert cli.main(["prepare", "tiny.py", *data]) == 0
  run = str(tmp_path / "run")
  argv = ["train", "tiny.py", *data, "--workdir", run, "--train.steps", "2"]
  assert cli.main(argv) == 0
  capsys.readouterr()
  argv = ["generate", run, "--prompt", "1 2 3", "--max-new-tokens", "4"]
  assert cli.main(argv) == 0
  assert capsys.readouterr().out.startswith("1 2 3")
