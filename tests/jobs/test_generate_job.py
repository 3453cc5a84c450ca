import json

import pytest

import mtpjax
from mtpjax import cli

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


def test_one_prompt_is_streamed(in_tiny_root, capsys):
  argv = ["generate", WORKDIR, "--prompt", "def f2", "--max-new-tokens", "24"]
  assert not cli.main([*argv, "--decode.chunk-passes", "3"][:-2])
  printed = capsys.readouterr().out
  [whole] = mtpjax.load(WORKDIR).generate(["def f2"], max_new_tokens=24)
  assert printed.startswith("def f2" + whole.text + "\n")


def test_pieces_join_to_the_text_whatever_the_chunk(in_tiny_root):
  model = mtpjax.load(WORKDIR)
  pieces = {0: [], 1: []}
  generations = model.generate(
    ["def f3(x", "x"],
    on_text=lambda index, piece: pieces[index].append(piece),
    max_new_tokens=30,
    temperature=1.5,
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


def test_mistakes_are_one_line(in_tiny_root, tmp_path, fails):
  bad = tmp_path / "bad.jsonl"
  bad.write_text('{"text": "a"}\n{"words": 1}\n')
  assert "bad.jsonl:2" in fails("generate", WORKDIR, "--prompts", bad)
  assert "no such file" in fails("generate", WORKDIR, "--prompts", "none")
  assert "--mode" in fails("generate", WORKDIR, "--moed", "next")
  assert "'fast'" in fails(
    "generate", WORKDIR, "--prompt", "a", "--mode", "fast"
  )
  assert "cache of 8" in fails(
    "generate", WORKDIR, "--prompt", "a" * 30, "--cache-tokens", 8
  )
  assert "temperature" in fails(
    "generate", WORKDIR, "--prompt", "a", "--temperature", "-1"
  )
  write_lines(bad, {"ids": [5, 999]})
  assert "id 999" in fails("generate", WORKDIR, "--prompts", bad)
  write_lines(bad, {"ids": []})
  assert "no tokens" in fails("generate", WORKDIR, "--prompts", bad)
  assert "runs/none" in fails("generate", "runs/none", "--prompt", "a")
  assert "step 5" in fails("generate", WORKDIR, "--prompt", "a", "--step", "5")
