"""`mtpjax evaluate --tasks` on files, by the command line, offline."""

import dataclasses
import json
import logging
import socket

import offline
import pytest
import rich.console

import mtpjax
from mtpjax import cli, config
from mtpjax.errors import UserError
from mtpjax.evals.quality import harness
from mtpjax.jobs import harness as job

pytest.importorskip("lm_eval")
WORKDIR = "runs/quickstart"
TASK = """
task: next
dataset_path: json
dataset_kwargs:
  data_files: {test: documents.jsonl}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
target_delimiter: ""
metric_list: [{metric: acc}]
"""


@pytest.fixture(scope="module")
def documents(tiny_root):
  """Lines of a file in which each answer but the last is the model's own."""
  questions = ["def f1(x):", "return", "x = 1\n", "def"]
  made = mtpjax.load(tiny_root / WORKDIR).generate(
    questions, mode="next", max_new_tokens=8, ignore_eos=True
  )
  lines = []
  for n, (question, text) in enumerate(zip(questions, made, strict=True)):
    choices = ["@@@@", "~~~~", "%%%%"]
    choices[n % 3] = text.text
    answer = n % 3 if n < 3 else 1
    line = {"question": question, "choices": choices, "answer": answer}
    lines.append(json.dumps(line) + "\n")
  return "".join(lines)


@pytest.fixture
def here(documents, tmp_path, monkeypatch):
  """A folder with a task and its documents."""
  (tmp_path / "documents.jsonl").write_text(documents)
  (tmp_path / "task.yaml").write_text(TASK)
  monkeypatch.chdir(tmp_path)
  # Libraries log to the standard error of the test that imported them.
  monkeypatch.setattr(logging, "raiseExceptions", False)
  return tmp_path


@pytest.fixture
def run(tiny_root):
  return str(tiny_root / WORKDIR)


def test_a_task_of_two_files(here, run, monkeypatch, capsys):
  def refuse(*args, **kwargs):
    raise OSError("no network")

  monkeypatch.setattr(socket.socket, "connect", refuse)
  monkeypatch.setattr(socket, "getaddrinfo", refuse)
  argv = ["evaluate", run, "--tasks", "task.yaml", "--json", "out.json"]
  assert not cli.main(argv)
  found = json.loads((here / "out.json").read_text())
  assert found["results"]["next"]["acc"] == 3 / 4
  assert found["results"]["next"]["sample_len"] == 4
  assert (found["step"], found["limit"]) == (12, None)
  assert (found["max_length"], found["cut_texts"]) == (48, 0)
  printed = capsys.readouterr().out
  assert "0.7500" in printed and "WARNING" not in printed
  # What was made of the file lies where the tests said.
  import datasets

  assert str(datasets.config.HF_DATASETS_CACHE).startswith(offline.HOME)
  assert not cli.main([*argv, "--limit", "3", "--max-length", "12"])
  found = json.loads((here / "out.json").read_text())
  assert found["results"]["next"]["acc"] == 1
  assert found["max_length"] == 12 and found["cut_texts"] > 0
  assert "lose their front" in capsys.readouterr().out


def test_an_imported_model_is_given_its_own_length(here, run):
  loaded = mtpjax.load(run)
  assert loaded.max_length == loaded.config.data.row_length == 48
  (here / "origin.json").write_text('{"max_length": 4096}')
  imported = dataclasses.replace(loaded, workdir=here)
  heads = dataclasses.replace(
    loaded,
    config=dataclasses.replace(
      loaded.config,
      heads=dataclasses.replace(loaded.config.heads, matched=False),
      base=config.Base(path=str(here)),
    ),
  )
  for model in (imported, heads):
    assert model.max_length == harness.harness_model(model).max_length == 4096


@pytest.mark.parametrize(
  "old, new, words",
  [
    ("task: next", "task: [next", "ParserError"),
    (TASK, "a text", "got str"),
    (TASK, "", "got NoneType"),
    ("documents.jsonl", "missing.jsonl", "missing.jsonl"),
    ("{{question}}", "{{question", "TemplateSyntaxError"),
    ("{{question}}", "{{no.such}}", "'no' is undefined"),
    ("metric: acc", "metric: nosuch", "KeyError"),
    ("multiple_choice", "nonsense", "output_type 'nonsense'"),
    ("test_split: test", "test_split: tset", "tset"),
    ('"{{question}}"', "!function nomodule.f", "needs a package"),
    ("task: next", "", "Unknown config shape"),
    ("documents.jsonl", "broken.jsonl", "Missing a closing quotation mark"),
    ("documents.jsonl", "empty.jsonl", "its data"),
  ],
)
def test_a_mistake_in_a_task_is_one_line(here, capsys, old, new, words):
  (here / "task.yaml").write_text(TASK.replace(old, new))
  (here / "broken.jsonl").write_text('{"question": "tw')
  (here / "empty.jsonl").write_text("")
  # Found before anything is loaded: there is no such run.
  capsys.readouterr()
  assert cli.main(["evaluate", "runs/none", "--tasks", "task.yaml"]) == 2
  lines = capsys.readouterr().err.splitlines()
  (line,) = [line for line in lines if line.startswith("mtpjax: error: ")]
  assert line == lines[-1] and words in line and "task.yaml" in line
  assert not any("Traceback" in line for line in lines)


@pytest.mark.parametrize(
  "options, words",
  [
    (["--tasks", "nowhere.yaml"], "no such file"),
    (["--tasks", ""], "none are named"),
    (["--tasks", "task.yaml,"], "none are named"),
    (["--tasks", "task.yaml", "--limit", "0"], "--limit: 0 is not 1 or more"),
    (["--tasks", "task.yaml", "--max-length", "0"], "0 is not 1 or more"),
    (["--tasks", "task.yaml", "--json", "."], "give the path of a file"),
    (["--tasks", "task.yaml", "--split", "train"], "--split: is of no use"),
    (["--tasks", "task.yaml", "--classes", "code"], "give one of them"),
    (["--limit", "3"], "--limit: is for --tasks"),
    (["--classes", "code", "--batches", "3"], "--batches: is of no use"),
  ],
)
def test_a_mistake_in_the_options_is_one_line(here, run, fails, options, words):
  assert words in fails("evaluate", run, *options)


def test_what_fails_while_documents_are_met_is_one_line(here, run, fails):
  with open(here / "documents.jsonl", "a") as file:
    file.write('{"question": "a", "choices": [], "answer": 0}\n')
  line = fails("evaluate", run, "--tasks", "task.yaml")
  assert "the evaluation harness cannot run them" in line


def test_a_fault_of_the_model_stays_one(here, run, monkeypatch):
  def score(*args):
    raise RuntimeError("a bug")

  monkeypatch.setattr(harness.Scorer, "score", score)
  with pytest.raises(RuntimeError, match="a bug"):
    job.run(run, ["task.yaml"], None, 4, rich.console.Console(quiet=True))


def test_a_metric_without_a_value_is_none(here, run, monkeypatch, capsys):
  import lm_eval

  def simple_evaluate(**arguments):
    return {
      "results": {
        "[next]": {
          "alias": "next", "name": "next", "acc,none": float("nan"),
          "acc_stderr,none": "N/A", "f1,none": "N/A", "n,none": 3,
        }
      }
    }  # fmt: skip

  monkeypatch.setattr(lm_eval, "simple_evaluate", simple_evaluate)
  argv = ["evaluate", run, "--tasks", "task.yaml", "--json", "out.json"]
  assert not cli.main(argv)
  assert json.loads((here / "out.json").read_text())["results"] == {
    "[next]": {"acc": None, "acc_stderr": None, "f1": None, "n": 3}
  }
  printed = capsys.readouterr().out
  assert "[next]" in printed and "none" in printed
  assert "WARNING: task [next]: there is no value of f1" in printed


def test_what_happens_is_shown(here, run, shown):
  job.run(run, ["task.yaml"], None, 4, rich.console.Console(quiet=True))
  assert [text for text, _, _ in shown] == [
    "loading the evaluation harness", "looking for tasks",
    "reading task.yaml and its data", f"loading {run}",
    "making requests of documents", "scoring texts",
  ]  # fmt: skip
  assert shown[-1][1:] == [12, 12]


def test_the_extra_is_named_where_it_is_not_installed(here, run, fails):
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(job.sys.modules, "lm_eval", None)
    line = fails("evaluate", run, "--tasks", "task.yaml")
  assert "pip install 'mtpjax[eval]'" in line


def test_task_errors_name_their_causes():
  try:
    try:
      raise ValueError("the\n root")
    except ValueError as error:
      raise UserError("what came of it") from error
  except UserError as error:
    assert job._one_line(error) == (
      "UserError: what came of it: ValueError: the root"
    )
