import dataclasses
import io
import json
import sys

import jax
import pytest

import mtpjax
from mtpjax import cli, decode
from mtpjax.jobs.prompts import read_prompts

WORKDIR = "runs/quickstart"


def write_lines(path, *records):
  path.write_text("".join(json.dumps(r) + "\n" for r in records))


def test_prompt_file_gives_a_record_per_prompt_in_every_mode(
  in_tiny_root, tmp_path
):
  prompts = tmp_path / "prompts.jsonl"
  write_lines(
    prompts, {"text": "def f1(x):"}, {"ids": [256, 100]}, {"text": "return"}
  )
  records = {}
  for mode in ("next", "chain"):
    out = tmp_path / f"{mode}.json"
    assert not cli.main(
      ["generate", WORKDIR, "--prompts", str(prompts), "--json", str(out)]
      + ["--mode", mode, "--max-new-tokens", "20", "--ignore-eos"]
      + ["--batch-size", "2"]
    )
    records[mode] = json.loads(out.read_text())
  assert len(records["next"]) == 3
  for plain, drafted in zip(records["next"], records["chain"], strict=True):
    assert plain["ids"] == drafted["ids"]
    assert len(plain["ids"]) == len(plain["logprobs"]) == 20
    assert plain["finish_reason"] == "length"
    assert plain["passes"] == 20
    assert drafted["passes"] <= 20
    assert drafted["logprobs"] == pytest.approx(plain["logprobs"], abs=1e-4)
    text = bytes(i for i in plain["ids"] if i < 256)
    assert plain["text"] == text.decode(errors="replace")


class Screen(io.StringIO):
  """Standard output that keeps what could be read after every flush."""

  def __init__(self):
    super().__init__()
    self.seen = []

  def flush(self):
    self.seen.append(self.getvalue())


def test_one_prompt_is_streamed(in_tiny_root, monkeypatch):
  screen = Screen()
  monkeypatch.setattr(sys, "stdout", screen)
  argv = ["generate", WORKDIR, "--prompt", "def f2", "--max-new-tokens", "24"]
  assert not cli.main(
    [*argv, "--chunk-passes", "1", "--mode", "next", "--ignore-eos"]
  )
  model = mtpjax.load(WORKDIR)
  [whole] = model.generate(["def f2"], max_new_tokens=24, ignore_eos=True)
  assert screen.getvalue() == "def f2" + whole.text + "\n"
  lengths = [len(text) for text in dict.fromkeys(screen.seen)]
  assert len(lengths) > 8 and lengths == sorted(lengths)


def test_rows_go_to_standard_output_unless_to_a_file(
  in_tiny_root, tmp_path, capsys
):
  prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.json"
  write_lines(prompts, {"text": "def f1(x):"}, {"ids": [256, 100]})
  argv = ["generate", WORKDIR, "--prompts", str(prompts)]
  argv += ["--max-new-tokens", "5"]
  assert not cli.main(argv)
  printed = capsys.readouterr()
  assert "2 prompts" in printed.err
  assert not cli.main([*argv, "--json", str(out)])
  rows = json.loads(out.read_text())
  assert [json.loads(line) for line in printed.out.splitlines()] == rows
  assert capsys.readouterr().out == ""


def test_only_a_line_feed_ends_a_prompt(tmp_path):
  path = tmp_path / "prompts.jsonl"
  texts = ["a\u2028b", "c\x85d", "é"]
  lines = [json.dumps({"text": t}, ensure_ascii=False) for t in texts]
  path.write_bytes("\r\n".join(lines).encode())
  assert [prompt["text"] for prompt in read_prompts(path)] == texts


def test_prompts_that_are_no_unicode_are_one_line(
  in_tiny_root, tmp_path, fails, monkeypatch
):
  bad = tmp_path / "bad.jsonl"
  bad.write_bytes(b'{"text": "ok"}\n{"text": "\xff"}\n')
  line = fails("generate", WORKDIR, "--prompts", bad)
  assert str(bad) in line and "byte 25" in line
  bad.write_text('{"text": "ok"}\n{"text": "\\ud83d"}\n')
  line = fails("generate", WORKDIR, "--prompts", bad)
  assert "bad.jsonl:2" in line and "U+D83D" in line
  # What the interpreter makes of the byte 0xff in an argument.
  assert "U+DCFF" in fails("generate", WORKDIR, "--prompt", "a\udcff")
  monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff")))
  line = fails("generate", WORKDIR)
  assert "standard input" in line and "byte 2" in line


def test_a_prompt_is_read_from_standard_input(
  in_tiny_root, monkeypatch, capsys
):
  monkeypatch.setattr(
    sys, "stdin", io.TextIOWrapper(io.BytesIO("dé\n".encode()))
  )
  assert not cli.main(["generate", WORKDIR, "--max-new-tokens", "2"])
  assert capsys.readouterr().out.startswith("dé\n")


def test_an_unknown_setting_names_the_nearest(in_tiny_root):
  model = mtpjax.load(WORKDIR)
  with pytest.raises(mtpjax.UserError, match="did you mean .*temperature"):
    model.generate(["a"], temprature=1.0)


def test_pieces_join_to_the_text_whatever_the_chunk(in_tiny_root):
  model = mtpjax.load(WORKDIR)
  pieces = {0: [], 1: []}
  generations = model.generate(
    ["def f3(x", "x"],
    on_text=lambda index, piece: pieces[index].append(piece),
    max_new_tokens=30,
    temperature=1.5,
    seed=0,
    chunk_passes=1,
  )
  for index, generation in enumerate(generations):
    assert "".join(pieces[index]) == generation.text
    assert len(pieces[index]) > 2


def test_cache_limit_cuts_the_budget_at_its_last_row(in_tiny_root):
  model = mtpjax.load(WORKDIR)
  [generation] = model.generate(
    [list(range(40, 59))], cache_tokens=20, ignore_eos=True
  )
  assert (len(generation.ids), generation.finish_reason) == (1, "length")


def test_a_seed_gives_its_own_text_and_gives_it_again(in_tiny_root):
  model = mtpjax.load(WORKDIR)

  def ids(seed):
    settings = dict(temperature=1.0, seed=seed, max_new_tokens=20)
    return model.generate(["d", "d"], ignore_eos=True, **settings)

  first, again, other = ids(1), ids(1), ids(2)
  assert [g.ids for g in first] == [g.ids for g in again]
  assert first[0].ids != other[0].ids
  # Two requests of one call are two draws, though the prompt is the same.
  assert first[0].ids != first[1].ids


def test_where_no_seed_is_given_each_call_takes_a_new_one(in_tiny_root, capsys):
  model = mtpjax.load(WORKDIR)
  prompts = ["d", {"text": "d", "temperature": 0.0}, {"text": "d", "seed": 0}]

  def generate(**own):
    settings = dict(temperature=1.0, max_new_tokens=20, ignore_eos=True)
    return model.generate(prompts, **settings | own)

  first, second = generate(), generate()
  assert first[0].seed != second[0].seed and first[0].ids != second[0].ids
  # Greedy texts have none, and one that is given stays.
  assert first[1].seed is None and first[2].seed == 0
  assert [g.ids for g in first[1:]] == [g.ids for g in second[1:]]
  again = generate(seed=first[0].seed)
  assert [vars(g) for g in again] == [vars(g) for g in first]
  assert generate(seed=0)[0].seed == 0
  config = dataclasses.replace(
    model.config, decode=dataclasses.replace(model.config.decode, seed=9)
  )
  model = dataclasses.replace(model, config=config)
  assert [g.seed for g in generate()] == [9, None, 0]


def test_progress_counts_the_tokens_of_passes(in_tiny_root):
  model = mtpjax.load(WORKDIR)
  seen, compiled, when = [], [], []

  def note(event, *_, **__):
    if event.endswith("backend_compile_duration"):
      compiled.append(event)

  def on_progress(now):
    seen.append(now)
    when.append(len(compiled))

  jax.monitoring.register_event_duration_secs_listener(note)
  generations = model.generate(
    ["a", "b", "c"],
    ignore_eos=True,
    on_progress=on_progress,
    capacity=97,  # programs of its own
    max_new_tokens=9,
    batch_size=2,
    chunk_passes=2,
    mode="next",
  )
  counts = [(d.done, d.total, d.tokens) for d in seen]
  # The token that a prompt's own pass brings is none of theirs.
  assert counts == [
    (0, 3, 0), (0, 3, 4), (0, 3, 8), (0, 3, 12), (2, 3, 16),
    (2, 3, 16), (2, 3, 18), (2, 3, 20), (2, 3, 22), (3, 3, 24),
  ]  # fmt: skip
  assert sum(len(g.ids) for g in generations) == 24 + 3
  secs = [d.secs for d in seen]
  assert secs[0] == 0 and secs == sorted(secs) and secs[4] == secs[5]
  # What is timed compiles nothing; the last prompt is run alone.
  assert 0 < when[0] == when[4] <= when[5] == when[-1]


def test_ctrl_c_leaves_what_has_come_and_a_line(
  in_tiny_root, decodes, monkeypatch, capsys
):
  whole = decode.generate

  def interrupted(*args):
    yield from whole(*args)
    raise KeyboardInterrupt

  monkeypatch.setattr(decode, "generate", interrupted)
  argv = ["generate", WORKDIR, "--prompt", "ab", "--max-new-tokens", "5"]
  assert cli.main(argv) == 130
  printed = capsys.readouterr()
  assert printed.out == "ab\n\n"  # the token 10, and the end of the line
  assert printed.err.count("\n") == 1 and "interrupted" in printed.err


def test_ctrl_c_in_a_file_of_prompts_leaves_nothing(
  in_tiny_root, tmp_path, monkeypatch, capsys
):
  def interrupted(*args):
    raise KeyboardInterrupt
    yield

  monkeypatch.setattr(decode, "generate", interrupted)
  prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
  write_lines(prompts, {"text": "a"})
  argv = ["generate", WORKDIR, "--prompts", prompts, "--out", out]
  assert cli.main(list(map(str, argv))) == 130
  assert list(tmp_path.iterdir()) == [prompts]
  assert capsys.readouterr().out == ""


def test_the_closing_line_says_speed_and_seed(
  in_tiny_root, monkeypatch, capsys
):
  def generate(specs, params, requests, *_):
    for n, reason in ((1, "running"), (3, "running"), (7, "length")):
      ids = tuple(range(97, 97 + n))
      result = decode.Result(ids, (0.0,) * n, reason, n, 0, (0,) * n)
      yield dict.fromkeys(range(len(requests)), result)

  clock = iter([0.0, 100.0, 100.0, 101.0, 200.0, 202.0, 300.0, 400.0])
  monkeypatch.setattr(decode, "generate", generate)
  monkeypatch.setattr("time.perf_counter", lambda: next(clock))
  argv = ["generate", WORKDIR, "--prompt", "a", "--temperature", "1"]
  assert not cli.main([*argv, "--seed", "5"])
  line = capsys.readouterr().err.splitlines()[-1]
  # Six tokens in 1 s and 2 s; the prompt's own took 100 s, which is not said.
  assert line.startswith("1 prompt, 7 tokens, 1.00 tokens per pass, 2.0 tok")
  assert line.endswith("seed 5")


def test_mistakes_are_one_line(in_tiny_root, tmp_path, fails):
  bad = tmp_path / "bad.jsonl"
  bad.write_text('{"text": "a"}\n{"words": 1}\n')
  assert "bad.jsonl:2" in fails("generate", WORKDIR, "--prompts", bad)
  assert "no such file" in fails("generate", WORKDIR, "--prompts", "none")
  assert "corpus: cannot be read (Is a directory)" in fails(
    "generate", WORKDIR, "--prompts", "corpus"
  )
  assert "--mode" in fails("generate", WORKDIR, "--moed", "next")
  assert "'fast'" in fails(
    "generate", WORKDIR, "--prompt", "a", "--mode", "fast"
  )
  assert "31 tokens leave no room in a text of cache_tokens = 8" in fails(
    "generate", WORKDIR, "--prompt", "a" * 30, "--cache-tokens", 8
  )
  assert "temperature" in fails(
    "generate", WORKDIR, "--prompt", "a", "--temperature", "-1"
  )
  write_lines(bad, {"ids": [5, 999]})
  assert "id 999" in fails("generate", WORKDIR, "--prompts", bad)
  for value in ("9" * 5000, "[" * 100_000):
    bad.write_text('{"text": "a"}\n{"text": "a", "seed": ' + value + "}\n")
    line = fails("generate", WORKDIR, "--prompts", bad)
    assert "bad.jsonl:2: has a number too long" in line
  write_lines(bad, {"ids": []})
  assert "no tokens" in fails("generate", WORKDIR, "--prompts", bad)
  assert "runs/none" in fails("generate", "runs/none", "--prompt", "a")
  assert "step 5" in fails("generate", WORKDIR, "--prompt", "a", "--step", "5")
