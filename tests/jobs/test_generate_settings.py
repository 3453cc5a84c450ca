"""Settings of single prompts, modes and verifiers, by the command line."""

import dataclasses
import json
import re

import numpy as np
import pytest

import mtpjax
from mtpjax import cli, config, decode
from mtpjax.api.prompts import PER_REQUEST, read_prompt
from mtpjax.decode import batch as batches
from mtpjax.decode.grammar import compile as grammar
from mtpjax.jobs.prompts import read_prompts

WORKDIR = "runs/quickstart"
TEXT = "def f1(x):"
# One program for all of its tests: no more than two prompts at once.
COMMON = ["--max-new-tokens", "20", "--batch-size", "2"]
X = ord("x")
SCHEMA = {
  "type": "object",
  "properties": {"n": {"enum": [1, 22]}, "yes": {"type": "boolean"}},
  "required": ["n", "yes"],
  "additionalProperties": False,
}

LINES = {
  "plain": {},
  "sampled": {"temperature": 1.0, "seed": 5},
  "other seed": {"temperature": 1.0, "seed": 6},
  "top_k": {"temperature": 1.0, "seed": 5, "top_k": 1},
  "top_p": {"temperature": 1.0, "seed": 5, "top_p": 1e-6},
  "min_p": {"temperature": 1.0, "seed": 5, "min_p": 0.9999},
  "bias": {"logit_bias": [f"{X}:100"]},
  "biases": {"logit_bias": [f"{X}:100", f"{X + 1}:-100"]},
  "short": {"max_new_tokens": 3},
  # In place of PAIR comes what the plain text has at AT.
  "stop": {"stop": ["PAIR"]},
  "stops": {"stop": ["never there", "PAIR", "PAIR and more"]},
  # As they are: not stripped, nor parted anywhere.
  "line feed": {"stop": "\n", "logit_bias": "10:100"},
  "semicolon": {"stop": ";", "logit_bias": f"{ord(';')}:100"},
  "stop ids": {"stop_ids": ["PAIR IDS", "3"]},
  "least": {"min_new_tokens": 12, "stop_ids": ["PAIR IDS"]},
  "least stop": {"min_new_tokens": 12, "stop": ["PAIR"]},
  "bad": {"bad_words": ["PAIR"]},
  "repeats": {"repetition_penalty": 4},
  "frequency": {"frequency_penalty": 100, "max_new_tokens": 19},
  "presence": {"presence_penalty": 100.0},
  "regex": {"regex": "[0-9]{3}(ab|c)"},
  "sampled regex": {"regex": "[a-f]{2,6}!", "temperature": 1.5, "seed": 8},
  "schema": {"json_schema": SCHEMA, "max_new_tokens": 60},
  "schema file": {"json_schema": "schema.json", "max_new_tokens": 60},
  "class": {"class": "code"},
  "sampled again": {"temperature": 1.0, "seed": 5},
}


def write_lines(path, records):
  path.write_text("".join(json.dumps(r) + "\n" for r in records))
  return path


def generate(folder, records, *argv):
  """Runs the command on a file of prompts and returns its rows."""
  prompts = write_lines(folder / "prompts.jsonl", records)
  out = folder / "out.json"
  argv = ["generate", WORKDIR, "--prompts", prompts, "--json", out, *argv]
  assert not cli.main([*map(str, argv), *COMMON])
  return json.loads(out.read_text())


def pair_of(plain):
  """The first two characters that are one byte each, and where they are."""
  ids = plain["ids"]
  at = next(i for i in range(2, 18) if ids[i] < 128 and ids[i + 1] < 128)
  return ids[at : at + 2]


def count_to(ids, pair, least=0):
  """How many ids there are up to a pair that ends behind the least."""
  for n in range(max(2, least + 1), len(ids) + 1):
    if ids[n - 2 : n] == pair:
      return n
  return len(ids)


@pytest.fixture(scope="module")
def records(plain_modes):
  """The lines of a file of prompts, by what they try."""
  pair = pair_of(plain_modes["next"][0])
  text = json.dumps({name: {"text": TEXT} | own for name, own in LINES.items()})
  text = text.replace("PAIR IDS", ",".join(map(str, pair)))
  return json.loads(
    text.replace("PAIR", json.dumps(bytes(pair).decode())[1:-1])
  )


@pytest.fixture(scope="module")
def rows(tiny_root, tmp_path_factory, records):
  """The rows of all LINES in one file, per mode."""
  folder = tmp_path_factory.mktemp("settings")
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(tiny_root)
    (tiny_root / "schema.json").write_text(json.dumps(SCHEMA))
    return {
      mode: dict(
        zip(
          records,
          generate(folder, records.values(), "--mode", mode),
          strict=True,
        )
      )
      for mode in ("chain", "next")
    }


@pytest.fixture(scope="module")
def plain_modes(tiny_root, tmp_path_factory):
  """Rows of two plain prompts, per mode."""
  folder = tmp_path_factory.mktemp("modes")
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(tiny_root)
    # Fits two heads: some of 4, 2, and a branch of the second only.
    paths = [[0], [1], [3], [0, 0], [0, 1], [1, 0]]
    (tiny_root / "tree.json").write_text(json.dumps(paths))
    modes = {
      "next": [], "merged": [], "chain": [], "lookup": [],
      "tree": ["--tree", "4,2"], "tree file": ["--tree", "tree.json"],
    }  # fmt: skip
    records = [{"text": TEXT}, {"ids": [256, 100, 101]}]
    return {
      name: generate(folder, records, "--mode", name.split()[0], *argv)
      for name, argv in modes.items()
    }


def test_every_setting_of_a_request_is_tried_here():
  tried = {name for own in LINES.values() for name in own}
  assert tried - {"class"} == PER_REQUEST


def test_modes_say_the_same_in_every_mix(rows):
  for name in LINES:
    drafted, plain = rows["chain"][name], rows["next"][name]
    for field in ("ids", "text", "finish_reason"):
      assert drafted[field] == plain[field], name
    assert drafted["logprobs"] == pytest.approx(plain["logprobs"], abs=1e-4)
    assert plain["passes"] == len(plain["ids"])
    assert (plain["proposed"], plain["accepted"]) == (0, 0)
    assert drafted["passes"] <= plain["passes"]
  assert sum(row["accepted"] for row in rows["chain"].values()) > 0


def test_each_mode_says_what_plain_decoding_says(plain_modes):
  for rows_of_mode in plain_modes.values():
    for row, plain in zip(rows_of_mode, plain_modes["next"], strict=True):
      assert row["ids"] == plain["ids"]
      assert row["logprobs"] == pytest.approx(plain["logprobs"], abs=1e-4)
  assert {row["proposed"] for row in plain_modes["next"]} == {0}
  per_pass = {"chain": 2, "tree": 12, "tree file": 6}
  for name, drafts in per_pass.items():
    for row in plain_modes[name]:
      assert row["proposed"] == drafts * (row["passes"] - 1)


def test_the_settings_of_a_line_leave_its_neighbours_alone(rows, plain_modes):
  # Among lines of all kinds, and among none.
  assert rows["chain"]["plain"]["ids"] == plain_modes["next"][0]["ids"]
  for one, two in (("class", "plain"), ("sampled", "sampled again")):
    assert rows["chain"][one]["ids"] == rows["chain"][two]["ids"]


def test_what_each_setting_does(rows):
  got = rows["chain"]
  plain = got["plain"]
  assert (plain["finish_reason"], len(plain["ids"])) == ("length", 20)
  for name in ("top_k", "top_p", "min_p"):  # only the likeliest is left
    assert got[name]["ids"] == plain["ids"]
  assert got["sampled"]["ids"] != got["other seed"]["ids"]
  assert got["sampled"]["ids"] != plain["ids"]
  for name in ("bias", "biases"):
    assert got[name]["ids"] == [X] * 20
  # Log-probabilities are those of the model, without the bias.
  assert max(got["bias"]["logprobs"][1:]) < 0
  assert got["short"]["ids"] == plain["ids"][:3]
  ids, pair = plain["ids"], pair_of(plain)
  n = count_to(ids, pair)
  assert 2 <= n < 20
  for name in ("stop", "stops", "stop ids"):
    assert got[name]["ids"] == ids[:n]
    assert got[name]["finish_reason"] == "stop"
    assert got[name]["logprobs"] == pytest.approx(
      plain["logprobs"][:n], abs=1e-4
    )
    # A stop string is left out, what a sequence of ids ends is text.
    kept = ids[:n] if name == "stop ids" else ids[: n - 2]
    assert got[name]["text"] == bytes(kept).decode(errors="replace")
  for name, character in (("line feed", "\n"), ("semicolon", ";")):
    assert got[name]["ids"] == [ord(character)]
    assert (got[name]["text"], got[name]["finish_reason"]) == ("", "stop")
  n = count_to(ids, pair, least=12)
  assert got["least stop"]["ids"] == ids[:n]
  assert count_to(got["least"]["ids"], pair) > 12
  assert count_to(got["bad"]["ids"] + [0], pair) == len(got["bad"]["ids"]) + 1
  assert got["repeats"]["ids"] != plain["ids"]
  for name, n in (("frequency", 19), ("presence", 20)):
    assert len(set(got[name]["ids"])) == n  # no token twice


def test_texts_match_their_grammar(rows):
  got = rows["chain"]
  for name in ("regex", "sampled regex"):
    assert got[name]["finish_reason"] == "eos"
    assert got[name]["ids"][-1] == 257
    assert re.fullmatch(LINES[name]["regex"], got[name]["text"])
  for name in ("schema", "schema file"):
    assert got[name]["finish_reason"] == "eos"
    record = json.loads(got[name]["text"])
    assert list(record) == ["n", "yes"] and record["n"] in (1, 22)
    assert type(record["yes"]) is bool
  assert got["schema file"]["ids"] == got["schema"]["ids"]


def test_a_seed_of_its_own_makes_a_prompt_independent_of_its_place(
  in_tiny_root, tmp_path
):
  own = {"text": TEXT, "temperature": 1.0, "seed": 5}
  general = {"text": TEXT, "temperature": 1.0}
  first = generate(tmp_path, [own, general, own, general], "--seed", "5")
  second = generate(tmp_path, [general, own, general], "--seed", "5")
  third = generate(tmp_path, [general, own, general], "--seed", "7")
  ids = [[row["ids"] for row in rows] for rows in (first, second, third)]
  assert ids[0][0] == ids[0][2] == ids[1][1] == ids[2][1]
  # Without one the place counts, and the seed of the call.
  assert ids[0][1] != ids[0][3] and ids[1][2] != ids[0][1]
  assert ids[1][0] == ids[0][0] and ids[2][0] != ids[1][0]


def test_verifiers_leave_greedy_lines_alone_and_draw_the_same_again(
  in_tiny_root, tmp_path, plain_modes, capsys
):
  records = [{"text": TEXT}, {"text": TEXT, "temperature": 1.0, "seed": 5}]
  for verifier in ("rejection", "block", "typical"):
    capsys.readouterr()
    greedy, sampled = generate(tmp_path, records, "--verifier", verifier)
    assert ("LOSSY" in capsys.readouterr().err) == (verifier == "typical")
    assert greedy["ids"] == plain_modes["next"][0]["ids"]
    assert len(sampled["ids"]) == 20 or sampled["finish_reason"] == "eos"
    if verifier == "rejection":
      again = generate(tmp_path, records[::-1], "--verifier", verifier)
      assert [row["ids"] for row in again] == [sampled["ids"], greedy["ids"]]


def test_the_class_of_a_prompt_is_its_own_or_that_of_its_temperature():
  def kind(**own):
    return read_prompt({"text": "a"} | own, config.Config(), "here").kind

  assert kind() == "greedy" and kind(temperature=0.5) == "sampled"
  assert kind(**{"class": "code", "temperature": 0.5}) == "code"


@pytest.fixture
def compiles_nothing(monkeypatch):
  """No mistake may first cost the time of a compilation."""

  def admit(*_):
    raise AssertionError("a prompt was run")

  monkeypatch.setattr(batches, "admit", admit)
  monkeypatch.setattr(batches, "empty_state", admit)


MISTAKES = {
  "tree deeper than the heads": (
    ["--mode", "tree", "--tree", "4,2,1"], "3 drafts deep"
  ),
  "tree wider than the vocabulary": (
    ["--mode", "tree", "--tree", "259"], "rank 258"
  ),
  "siblings twice": (["--mode", "tree", "--tree", "twice.json"], "twice"),
  "no tree file": (["--mode", "tree", "--tree", "none.json"], "none.json"),
  "mode tree without": (["--mode", "tree"], "needs a tree"),
  "tree without its mode": (["--tree", "4,2"], "for mode tree"),
  "long chain": (["--draft-length", "3"], "3 drafts deep"),
  "drafts of mode next": (
    ["--mode", "next", "--draft-length", "2"], "draft_length"
  ),
  "block with a tree": (
    ["--mode", "tree", "--tree", "2", "--verifier", "block"], "chains"
  ),
  "rejection of a tree with gaps": (
    ["--mode", "tree", "--tree", "gaps.json", "--verifier", "rejection"],
    "ranks",
  ),
  "auto without calibration": (["--mode", "auto"], "mtpjax calibrate"),
  "regex and schema": (["--regex", "a", "--json-schema", "{}"], "give one"),
  "regex and bad words": (["--regex", "a", "--bad-words", "b"], "bad_words"),
  "schema and a minimum": (
    ["--json-schema", '{"type": "null"}', "--min-new-tokens", "2"],
    "min_new_tokens",
  ),
  "minimum above the budget": (
    ["--min-new-tokens", "9", "--max-new-tokens", "8"], "max_new_tokens"
  ),
  "no regex": (["--regex", "a("], "grammar: "),
  "no schema file": (["--json-schema", "none.json"], "none.json"),
  "grammar and no EOS": (
    ["--regex", "a", "--ignore-eos"],
    "a grammar needs an EOS to end the text; leave --ignore-eos",
  ),
  "schema of a long name": (["--json-schema", "a" * 999], "cannot be read"),
  "schema of a folder": (["--json-schema", "data"], "nor a file"),
  "schema in Latin-1": (["--json-schema", "latin.json"], "not UTF-8 at byte 1"),
  "schema nested deep": (
    ["--json-schema", '{"items":' * 100_000], "is not JSON"
  ),
  "stop of nothing": (["--stop", "a", "--stop", ""], "stop ('a', '') has one"),
  "bad word of nothing": (["--bad-words", ""], "bad_words ('',) has one"),
  "stop of half a pair": (["--stop", "a\udcff"], "stop: lone surrogate U+DCFF"),
  "bad word of half a pair": (
    ["--bad-words", "\udcff"], "bad_words: lone surrogate U+DCFF"
  ),
  "regex of half a pair": (["--regex", "\udcff"], "regex: lone surrogate"),
  "schema of half a pair": (["--json-schema", "\udcff"], "lone surrogate"),
  "ids in one": (["--stop-ids", "13,13;0"], "give each sequence on its own"),
  "biases in one": (["--logit-bias", "1:1;2:1"], "give each on its own"),
  "long n-grams": (["--lookup-ngram", "17"], "17 must be from 1 to 16"),
  "a chain past all trees": (
    ["--mode", "lookup", "--draft-length", "4096"], "use at most 4096"
  ),
  "a chain past all memory": (
    ["--mode", "lookup", "--draft-length", "4294967295"], "use at most 4096"
  ),
  "a chain past all integers": (
    ["--mode", "lookup", "--draft-length", "999999999999"],
    "must be below 4294967296",
  ),
  "passes past an integer": (
    ["--chunk-passes", "2147483648"], "must be below 2147483648"
  ),
  "ids as text": (["--stop-ids", "a,b"], "stop_ids 'a,b'"),
  "ids outside": (["--stop-ids", "5,300"], "id 300"),
  "bias as text": (["--logit-bias", "x:1"], "logit_bias 'x:1'"),
  "bias without a value": (["--logit-bias", "50"], "logit_bias '50'"),
  "bias outside": (["--logit-bias", "258:1"], "id 258"),
  "verifier unknown": (["--verifier", "best"], "'best'"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_one_line_before_anything_is_compiled(
  name, in_tiny_root, fails, compiles_nothing
):
  (in_tiny_root / "twice.json").write_text("[[0], [1], [0]]")
  (in_tiny_root / "gaps.json").write_text("[[0], [2]]")
  (in_tiny_root / "latin.json").write_bytes(b'{\xff"a": 1}')
  argv, words = MISTAKES[name]
  assert words in fails("generate", WORKDIR, "--prompt", "a", *argv)


BAD_LINES = [
  ({"temprature": 1}, "did you mean temperature"),
  ({"mode": "next"}, "'mode' is no setting of a prompt"),
  ({"text": "a", "ids": [1]}, "not both"),
  ({"class": 5}, "class"),
  ({"temperature": "hot"}, "decode.temperature"),
  ({"temperature": True}, "decode.temperature"),
  ({"temperature": None}, "decode.temperature"),
  ({"temperature": float("nan")}, "temperature"),
  ({"temperature": float("inf")}, "temperature"),
  ({"temperature": -1}, "temperature"),
  ({"top_k": 1.5}, "decode.top_k"),
  ({"top_k": -1}, "decode.top_k"),
  ({"top_p": 0}, "decode.top_p"),
  ({"min_p": 1}, "decode.min_p"),
  ({"seed": -1}, "decode.seed"),
  ({"seed": 1 << 40}, "seed"),
  ({"max_new_tokens": 0}, "max_new_tokens"),
  ({"max_new_tokens": 3, "min_new_tokens": 4}, "min_new_tokens"),
  ({"repetition_penalty": 0}, "repetition_penalty"),
  ({"frequency_penalty": float("nan")}, "frequency_penalty"),
  ({"presence_penalty": float("-inf")}, "presence_penalty"),
  ({"stop": 5}, "decode.stop"),
  ({"stop": [5]}, "decode.stop"),
  ({"stop": {"a": 1}}, "decode.stop"),
  ({"stop": ["a", ""]}, "stop"),
  ({"stop_ids": [[1, 2]]}, "decode.stop_ids"),
  ({"stop_ids": ["a"]}, "stop_ids"),
  ({"stop_ids": [""]}, "stop_ids"),
  ({"bad_words": [""]}, "bad_words"),
  ({"logit_bias": {"5": 1}}, "decode.logit_bias"),
  ({"logit_bias": ["5:nan"]}, "finite"),
  ({"logit_bias": ["-1:2"]}, "id -1"),
  ({"regex": 5}, "decode.regex"),
  ({"regex": "a", "bad_words": ["b"]}, "bad_words"),
  ({"regex": "a", "json_schema": SCHEMA}, "give one"),
  ({"json_schema": []}, "decode.json_schema"),
  ({"json_schema": {"type": "what"}}, "grammar: "),
  ({"ids": [5, 999], "text": None, "seed": 3}, "id 999"),
  ({"ids": [True], "text": None}, "a list of integers"),
  ({"stop": ""}, "stop ('',) has one"),
  ({"stop": "a\ud83d"}, "stop: lone surrogate U+D83D at character 1"),
  ({"bad_words": ["\ud83d"]}, "bad_words: lone surrogate U+D83D"),
  ({"regex": "\ud83d"}, "regex: lone surrogate U+D83D"),
  ({"json_schema": {"enum": []}}, "admits nothing"),
  ({"json_schema": False}, "admits nothing"),
  ({"regex": "("}, "prompt 2: grammar: '(' can't be used"),
  ({"stop": [["a"] * 99] * 99}, "decode.stop"),
  ({"temperature": [[[[0]]]]}, "decode.temperature"),
  ({"logit_bias": ["5:1e39"]}, "logit_bias 5:1e+39"),
  ({"temperature": 10**400}, "temperature"),
]


@pytest.mark.parametrize("own, words", BAD_LINES)
def test_a_bad_line_is_named_before_anything_is_compiled(
  own, words, in_tiny_root, tmp_path, fails, compiles_nothing
):
  records = [{"text": "a"}, {"text": "b"}, {"text": "c"} | own]
  path = write_lines(tmp_path / "prompts.jsonl", records)
  line = fails("generate", WORKDIR, "--prompts", path)
  assert words in line
  assert "prompt 2" in line or "prompts.jsonl:3" in line or "grammar" in line


def test_numbers_and_lists_are_read_as_they_are_meant(tmp_path):
  record = {"text": "a", "stop": ["a;b", " c"], "temperature": 1, "top_k": 3}
  [prompt] = read_prompts(write_lines(tmp_path / "p.jsonl", [record]))
  settings = read_prompt(prompt, config.Config(), "here").settings
  assert settings.stop == ("a;b", " c")
  assert settings.temperature == 1 and settings.top_k == 3


@pytest.fixture(scope="module")
def model(tiny_root):
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(tiny_root)
    return mtpjax.load(WORKDIR)


def test_options_of_texts_take_each_as_it_was_typed(in_tiny_root, decodes):
  argv = ["generate", WORKDIR, "--prompt", "a"]
  argv += ["--stop", "\n", "--stop", " END", "--stop", "a;b"]
  argv += ["--bad-words", "\n", "--bad-words", "no; "]
  argv += ["--stop-ids", "13,13", "--stop-ids", "0"]
  argv += ["--logit-bias", "50:-100", "--logit-bias", "13:2.5"]
  assert not cli.main(argv)
  [call] = decodes
  [request] = call["requests"]
  assert request.stop_sequences == ((13, 13), (0,))
  assert request.logit_bias == ((50, -100.0), (13, 2.5))
  # A line feed is itself; the word is never written behind a space either.
  assert request.bad_words == tuple(
    tuple(word.encode()) for word in ("\n", "no; ", " no; ")
  )
  for text, n in (
    ("xx\nyy", 3), ("xx END", 6), ("a;bb", 3), ("a; END", 6),
    ("xxEND", None), ("a;", None),
  ):  # fmt: skip
    assert call["find_stop"](0, list(text.encode())) == n


def test_a_string_is_one_text_to_the_library_and_a_list_has_several(
  model, decodes
):
  own = {"text": "a", "stop": ";", "bad_words": " ", "logit_bias": "5:1"}
  model.generate(["a", own], stop=["\n", " ;"], stop_ids="4,4", bad_words=())
  first, second = decodes[0]["requests"]
  assert first.stop_sequences == second.stop_sequences == ((4, 4),)
  assert (first.bad_words, second.bad_words) == ((), ((32,),))
  assert (first.logit_bias, second.logit_bias) == ((), ((5, 1.0),))
  find_stop = decodes[0]["find_stop"]
  assert find_stop(0, list(b"a;\n")) == 3 and find_stop(1, list(b"a;\n")) == 2
  assert find_stop(0, list(b" ;")) == 2
  # The run's own settings are a list in its configuration.
  again = config.config_from_dict({"decode": {"stop": ["\n", " ;"]}})
  assert again.decode.stop == ("\n", " ;")
  # An experiment still parts what it is given on the command line.
  parted = config.override(config.Config(), {"decode.stop": "a; b"})
  assert parted.decode.stop == ("a", "b")


def test_ids_of_all_kinds_are_a_prompt(model, decodes):
  model.generate([(1, 2), np.array([3, 4]), {"ids": np.array([5])}])
  asked = [request.ids for request in decodes[0]["requests"]]
  assert asked == [(1, 2), (3, 4), (5,)]
  assert model.generate([]) == model.generate(()) == []
  model.generate(np.array([[7, 8]]))
  assert [request.ids for request in decodes[1]["requests"]] == [(7, 8)]


@pytest.mark.parametrize(
  "prompt, ids",
  [
    ("ab", (256, 97, 98)),
    ("", (256,)),
    ([7, 8], (7, 8)),
    ((7,), (7,)),
    (np.array([7, 8]), (7, 8)),
    ({"text": "ab"}, (256, 97, 98)),
    ({"ids": [7], "seed": 3}, (7,)),
  ],
)
def test_a_prompt_alone_is_a_list_of_one(model, decodes, prompt, ids):
  [generation] = model.generate(prompt)
  assert isinstance(generation, mtpjax.Generation)
  assert [request.ids for request in decodes[0]["requests"]] == [ids]
  model.generate([prompt])
  assert [request.ids for request in decodes[1]["requests"]] == [ids]


@pytest.mark.parametrize(
  "prompts, settings, words",
  [
    (b"ab", {}, "is no list of prompts; give a text, or a list of texts"),
    (5, {}, "prompts: 5 is no list of prompts"),
    ([1, [2]], {}, "prompt 0: 1 is neither a text nor a list of ids"),
    (np.array([1.0, 2.0]), {}, "prompt 0: "),
    ([True, 1], {}, "prompt 0: True is neither"),
    (["a", ["a"]], {}, "prompt 1: ['a'] is neither"),
    ([[1.0]], {}, "[1.0] is neither"),
    ([[True]], {}, "[True] is neither"),
    ([b"ab"], {}, "b'ab' is neither"),
    ([None], {}, "None is neither"),
    ([{1, 2}], {}, "{1, 2} is neither"),
    ([np.zeros((2, 2))], {}, "is neither"),
    ([{"text": "a", 5: 1}], {}, "5 is no setting of a prompt"),
    (["a\ud83d"], {}, "prompt 0: lone surrogate U+D83D at character 1"),
    (["a"], {"stop": ["\ud83d"]}, "prompt 0: stop: lone surrogate"),
    (["a"], {"bad_words": "\ud83d"}, "prompt 0: bad_words: lone surrogate"),
    (["a"], {"stop": {"b"}}, "decode.stop: {'b'} is neither a string"),
    (["a"], {"json_schema": {"enum": {1}}}, "cannot be written as JSON"),
    (["a"], {"temperature": 1e-7}, "use 0 for greedy"),
    (["a"], {"max_new_tokens": 1 << 31}, "max_new_tokens 2147483648"),
  ],
)
def test_a_mistake_in_the_library_is_one_line_too(
  model, prompts, settings, words, compiles_nothing
):
  with pytest.raises(mtpjax.UserError) as error:
    model.generate(prompts, **settings)
  assert words in str(error.value) and "\n" not in str(error.value)


def test_a_mode_of_another_kind_leaves_the_drafts_of_the_run_behind(
  model, decodes
):
  def spec(of_run, **settings):
    changes = {f"decode.{name}": value for name, value in of_run.items()}
    mine = dataclasses.replace(
      model, config=config.override(model.config, changes)
    )
    mine.generate(["a"], **settings)
    [made] = decodes.pop()["specs"]
    return made

  of_tree, of_chain = {"mode": "tree", "tree": "4,2"}, {"draft_length": 1}
  assert spec(of_tree).tree.size == spec(of_tree, mode="tree").tree.size == 13
  assert spec(of_tree, mode="next").tree == decode.Tree.root()
  assert spec(of_tree, mode="chain").tree == decode.Tree.chain(2)
  assert spec(of_tree, tree="2").tree.size == 3
  assert spec(of_chain, mode="chain").tree == decode.Tree.chain(1)
  assert spec(of_chain, mode="lookup").tree == decode.Tree.chain(4)
  assert spec(of_chain, mode="tree", tree="2").tree.size == 3
  assert spec(of_chain, mode="next").tree == decode.Tree.root()
  # What is given too is still refused.
  with pytest.raises(mtpjax.UserError, match="tree is for mode tree"):
    spec(of_tree, mode="next", tree="4")
  with pytest.raises(mtpjax.UserError, match="draft_length is for"):
    spec(of_chain, mode="next", draft_length=1)


def test_all_grammars_of_a_call_share_a_bound(
  model, monkeypatch, compiles_nothing
):
  # Each has 9 edges of letters and one of the EOS.
  monkeypatch.setattr(grammar, "MAX_EDGES", 15)
  prompts = [{"text": "a", "regex": regex} for regex in ("a{9}", "b{9}")]
  with pytest.raises(mtpjax.UserError, match="have 20 .* the 15 supported"):
    model.generate(prompts)


def test_the_library_takes_the_same_settings(in_tiny_root, rows, records):
  generations = mtpjax.load(WORKDIR).generate(
    list(records.values()), max_new_tokens=20, batch_size=2, mode="chain"
  )
  for name, generation in zip(records, generations, strict=True):
    row = rows["chain"][name]
    assert vars(generation) | {"logprobs": row["logprobs"]} == row
