"""The commands `prepare` and `tokenizer`, from sources to a summary."""

import io

import rich.console
from corpora import TEXTS, write_texts

from mtpjax.config import Config, Data
from mtpjax.data import load_tokenizer, open_rows
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
