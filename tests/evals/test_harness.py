"""A model as the evaluation harness asks for it, against NumPy."""

import dataclasses
import functools
import io
import json
import pathlib
import sys
import tempfile
import types

import jax
import numpy as np
import offline  # noqa: F401
import pytest
import reference
import rich.console
import tiny
import tokenizers
from tokenizers import decoders, models, normalizers

from mtpjax import api, parallel
from mtpjax import config as config_lib
from mtpjax.data import load_tokenizer
from mtpjax.errors import UserError
from mtpjax.evals.quality import likelihood
from mtpjax.evals.quality.harness import (
  Answers,
  generation_settings,
  harness_model,
)
from mtpjax.evals.quality.likelihood import Scorer
from mtpjax.heads import MultiTokenModel
from mtpjax.jobs import harness as job

MAX_LENGTH = 24
BOS, EOS = 256, 257


@functools.cache
def loaded(add_bos=True):
  config = config_lib.Config(
    model=tiny.model_config(
      vocab_size=258, d_model=16, n_attention_heads=2, n_kv_heads=1, d_ff=24
    ),
    heads=config_lib.Heads(offsets=(1, 2, 3), matched=False),
    data=config_lib.Data(row_length=MAX_LENGTH, add_bos=add_bos),
  )
  model = MultiTokenModel(
    config.model, config.heads, parallel.single_device_mesh()
  )
  params = jax.tree.map(
    jax.numpy.asarray, tiny.random_params(model.abstract(), 3)
  )
  return api.Loaded(
    config, model, params, load_tokenizer("bytes"), pathlib.Path("."), 7, ""
  )


def answers(batch_size=4, add_bos=True, **others):
  return Answers(loaded(add_bos), batch_size, 0, **others)


def with_tokenizer(tokenizer, **others):
  """Answers of the same model to other ids."""
  changed = dataclasses.replace(loaded(), tokenizer=tokenizer)
  return Answers(changed, 4, 0, **others)


@functools.cache
def merging_tokenizer():
  """Letters, a space, and merges up to "Answer"; ids below 30."""
  vocabulary = ["<s>", *"Answering xy", "An", "Ans", "we", "wer", "Answer"]
  vocabulary = list(dict.fromkeys(vocabulary))
  merges = [("A", "n"), ("An", "s"), ("w", "e"), ("we", "r"), ("Ans", "wer")]
  return bpe(
    {token: i for i, token in enumerate(vocabulary)}, merges, None, ("<s>",)
  )


@functools.cache
def metaspace_tokenizer():
  """Llama 2's manner: spaces as "▁", and one before every text."""
  vocabulary = ["<s>", "<unk>", "▁", "a", "b", "c", "▁a", "bc"]
  before = normalizers.Sequence(
    [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
  )
  return bpe(
    {token: i for i, token in enumerate(vocabulary)},
    [("▁", "a"), ("b", "c")],
    before,
    ("<s>",),
    unk_token="<unk>",
  )


def bpe(vocabulary, merges, normalizer, special, **others):
  made = tokenizers.Tokenizer(models.BPE(vocabulary, merges, **others))
  if normalizer is not None:
    made.normalizer = normalizer
  made.decoder = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.Fuse()]
  )
  made.add_special_tokens(list(special))
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "tokenizer.json"
    made.save(str(path))
    return load_tokenizer(str(path), "<s>", ("<s>",))


def plain_logprobs(ids):
  """log-softmax at every position, [T, V], in NumPy float64."""
  config = loaded().model.config
  lm = jax.tree.map(lambda x: np.asarray(x, np.float64), loaded().params["lm"])
  x_TD = lm["embedding"][ids]
  ones_T = np.ones(len(ids), int)
  for i in range(config.n_layers):
    layer = jax.tree.map(lambda leaf, i=i: leaf[i], lm["layers"])
    x_TD = reference.block(layer, x_TD, np.arange(len(ids)), ones_T, config)
  x_TD = reference.rms_norm(lm["final_norm"]["scale"], x_TD, config.norm_eps)
  logits_TV = x_TD @ lm["unembedding"]
  return logits_TV - np.log(np.exp(logits_TV).sum(-1, keepdims=True))


def plain_score(context, continuation):
  ids = [*context, *continuation]
  logprobs_TV = plain_logprobs(ids)
  at = range(len(context) - 1, len(ids) - 1)
  return (
    sum(logprobs_TV[t, ids[t + 1]] for t in at),
    all(logprobs_TV[t].argmax() == ids[t + 1] for t in at),
  )


def plain_rolling(ids, prefix):
  """Sum over a text in windows of MAX_LENGTH, each token predicted once."""
  total = 0.0
  everything = [prefix, *ids]
  for start in range(0, len(ids), MAX_LENGTH):
    end = min(start + MAX_LENGTH, len(ids))  # predicts ids[start:end]
    first = max(end - MAX_LENGTH, 0)
    window = everything[first : end + 1]
    split = start + 1 - first
    total += plain_score(window[:split], window[split:])[0]
  return total


def random_ids(seed, n):
  return np.random.default_rng(seed).integers(0, 258, n).tolist()


def request(*args):
  return types.SimpleNamespace(args=args)


def assert_scores(actual, expected):
  assert [a[1] for a in actual] == [e[1] for e in expected]
  np.testing.assert_allclose(
    [a[0] for a in actual], [e[0] for e in expected], rtol=1e-5
  )


@pytest.fixture
def lm_eval():
  return pytest.importorskip("lm_eval")


PAIRS = [
  (random_ids(i, n), random_ids(100 + i, m))
  for i, (n, m) in enumerate([(1, 1), (3, 2), (20, 4), (1, 20), (9, 0), (5, 5)])
]


def test_scores_equal_sums_over_a_plain_forward():
  scores = Scorer(loaded().model, loaded().params["lm"], 4, MAX_LENGTH).score(
    PAIRS
  )
  assert_scores(scores, [plain_score(*pair) for pair in PAIRS])
  assert scores[4] == (0.0, True)  # nothing was asked
  assert all(isinstance(s[0], float) and type(s[1]) is bool for s in scores)


def test_a_greedy_continuation_is_known_as_one_and_a_changed_one_is_not():
  context = random_ids(0, 6)
  ids = list(context)
  for _ in range(4):
    ids.append(int(plain_logprobs(ids)[-1].argmax()))
  greedy = ids[6:]
  pairs = [(context, greedy)]
  for t in range(4):
    changed = list(greedy)
    changed[t] = (changed[t] + 1) % 258
    pairs.append((context, changed))
  scorer = Scorer(loaded().model, loaded().params["lm"], 4, MAX_LENGTH)
  assert [is_greedy for _, is_greedy in scorer.score(pairs)] == [True] + (
    [False] * 4
  )


def test_neither_order_nor_batch_size_nor_neighbours_matter():
  asked = [((), *pair) for pair in PAIRS]
  scores = answers()._loglikelihood_tokens(asked, disable_tqdm=True)
  shuffled = np.random.default_rng(0).permutation(len(asked)).tolist()
  again = answers(batch_size=3)._loglikelihood_tokens(
    [asked[n] for n in shuffled], disable_tqdm=True
  )
  assert_scores(again, [scores[n] for n in shuffled])


def test_lengths_share_few_programs():
  scorer = Scorer(loaded().model, loaded().params["lm"], 5, 60)
  pairs = [(random_ids(n, n), random_ids(n, 1)) for n in range(1, 61, 2)]
  before = likelihood.score_rows._cache_size()
  done = []
  assert len(scorer.score(pairs, done.append)) == len(pairs) == sum(done)
  # 32 and 64 positions.
  assert likelihood.score_rows._cache_size() - before == 2


def test_long_rows_are_fewer_in_a_batch(monkeypatch):
  rows = []

  def note(model, lm, tokens_BT, targets_BT, length_B):
    rows.append(tokens_BT.shape)
    return score_rows(model, lm, tokens_BT, targets_BT, length_B)

  score_rows = likelihood.score_rows
  monkeypatch.setattr(likelihood, "score_rows", note)
  monkeypatch.setattr(likelihood, "_FULL_BATCH_TOKENS", 32)
  pairs = [(random_ids(n, n), random_ids(n, 2)) for n in (60, 4, 8, 50, 9, 40)]
  scorer = Scorer(loaded().model, loaded().params["lm"], 4, 64)
  assert_scores(scorer.score(pairs), [plain_score(*pair) for pair in pairs])
  # Twice as long is a quarter of the rows.
  assert rows == [(1, 64)] * 3 + [(4, 32)]


def test_a_long_text_loses_its_front():
  context, continuation = random_ids(1, 40), random_ids(2, 5)
  scorer = Scorer(loaded().model, loaded().params["lm"], 2, MAX_LENGTH)
  (score,) = scorer.score([(context, continuation)])
  kept = MAX_LENGTH + 1 - 5
  assert_scores([score], [plain_score(context[-kept:], continuation)])


@pytest.mark.parametrize(
  "pair, words",
  [
    (((), (1,)), "text 0: has no context"),
    (((1,), (2,) * 25), "25 tokens to score are more than max_length = 24"),
  ],
)
def test_what_cannot_be_scored_is_one_line(pair, words):
  scorer = Scorer(loaded().model, loaded().params["lm"], 2, MAX_LENGTH)
  with pytest.raises(UserError) as error:
    scorer.score([pair])
  assert words in str(error.value) and "\n" not in str(error.value)


def test_sizes_below_one_are_refused():
  for sizes, name in (((0, 5), "batch_size"), ((5, -1), "max_length")):
    with pytest.raises(UserError, match=f"{name}: .* must be at least 1"):
      Scorer(loaded().model, loaded().params["lm"], *sizes)


def test_an_imported_model_has_its_own_length(tmp_path):
  (tmp_path / "origin.json").write_text('{"max_length": 300}')
  lines = []
  model = Answers(
    dataclasses.replace(loaded(), workdir=tmp_path), 2, 0, lines.append
  )
  assert model.max_length == 300
  # Far beyond the rows: nothing is cut, and all of it counts.
  context = list(b"0123456789" * 20)
  [score] = model._loglikelihood_tokens([((), context, [7, 8])])
  assert_scores([score], [plain_score(context, [7, 8])])
  assert abs(score[0] - plain_score(context[-23:], [7, 8])[0]) > 1e-3
  assert (lines, model.cut_texts) == ([], 0)
  shorter = Answers(loaded(), 2, 9)
  assert shorter.max_length == 9


def test_what_is_cut_is_counted():
  lines = []
  model = answers(say=lines.append)
  asked = [((), random_ids(n, n), [5]) for n in (24, 25, 3, 40)]
  model._loglikelihood_tokens(asked)
  assert lines == [
    "WARNING: 2 of 4 texts lose their front (up to 16 tokens): the model sees "
    "24 tokens; --max-length gives it another length"
  ]
  contexts = ["a" * 30, "b" * 11, "c"]
  model.generate_until([request(c, {"max_gen_toks": 12}) for c in contexts])
  assert "1 of 3 texts lose their front (up to 19 tokens)" in lines[1]
  assert (len(lines), model.cut_texts) == (2, 3)


def test_a_text_ends_where_the_length_of_the_model_does(monkeypatch):
  lines, asked = [], []
  generate = api.Loaded.generate

  def note(self, prompts, *args, **kwargs):
    asked.extend(prompts)
    found = generate(self, prompts, *args, **kwargs)
    # As if the second text had ended by itself.
    found[1] = dataclasses.replace(found[1], finish_reason="eos")
    return found

  monkeypatch.setattr(api.Loaded, "generate", note)
  model = answers(say=lines.append)
  requests = [request("a" * n, {"max_gen_toks": 200}) for n in (9, 5, 3)]
  model.generate_until(requests)
  assert [p["max_new_tokens"] for p in asked] == [14, 18, 20]
  assert [len(p["ids"]) + p["max_new_tokens"] for p in asked] == [24] * 3
  assert "2 of 3 texts end before max_gen_toks" in lines[0]


def test_progress_runs_to_the_end():
  seen = []
  model = answers(2, on_progress=lambda *args: seen.append(args))
  model.loglikelihood([request("ab", "c")] * 5)
  assert seen == [("scoring texts", n, 5) for n in (0, 2, 4, 5)]
  seen.clear()
  model.generate_until([request("ab", {"max_gen_toks": 3})] * 3)
  assert seen[-1][1:] == (3, 3)


def test_a_token_across_the_border_leaves_the_continuation_its_own():
  tokenizer = merging_tokenizer()
  model = with_tokenizer(tokenizer)
  ids = {t: tokenizer.encode(t) for t in ("Ans", "wer", "Answer", "i", "n")}
  assert all(len(i) == 1 for i in ids.values())
  bos = tokenizer.bos_id
  ans = [bos, *ids["Ans"]]
  # Nothing would be left.
  assert model.encode_pair("Ans", "wer") == (ans, ids["wer"])
  # Only the end would be left.
  assert model.encode_pair("Ans", "werin") == (
    ans, [*ids["wer"], *ids["i"], *ids["n"]]
  )  # fmt: skip
  [score] = model.loglikelihood([request("Ans", "wer")])
  assert_scores([score], [plain_score(ans, ids["wer"])])
  assert score[0] < 0


@pytest.mark.parametrize(
  "make, alphabet, before",
  [(merging_tokenizer, "Answer ing", ""), (metaspace_tokenizer, "abc ", " ")],
)
def test_what_is_scored_spells_the_continuation(make, alphabet, before):
  tokenizer = make()
  model = with_tokenizer(tokenizer)
  rng = np.random.default_rng(0)
  n_within = 0
  for _ in range(300):
    context, continuation = (
      "".join(rng.choice(list(alphabet), rng.integers(1, 7))) for _ in range(2)
    )
    first, then = model.encode_pair(context, continuation)
    assert first and then
    stripped = context.rstrip()
    assert first == model.tok_encode(stripped)
    n_within += bool(stripped)
    spelled = tokenizer.decode([*first, *then])
    assert spelled == before + context + continuation
  assert n_within > 200


def test_contexts_and_continuations_at_their_limits():
  model = answers()
  assert model.encode_pair("", "a") == ([BOS], [97])
  assert model.encode_pair("  ", "a") == ([BOS], [32, 32, 97])
  assert model.encode_pair("q ", "") == ([BOS, 113], [32])
  assert model.encode_pair("q", " ") == ([BOS, 113], [32])
  without = answers(add_bos=False)
  assert without.encode_pair(" \n", "a") == ([EOS], [32, 10, 97])
  for context in ("q", ""):
    with pytest.raises(UserError, match="has no tokens") as error:
      model.loglikelihood([request("q", "a"), request(context, "")])
    assert "\n" not in str(error.value)


def test_a_bos_that_is_written_is_told_once():
  tokenizer = merging_tokenizer()
  model = with_tokenizer(tokenizer)
  bos = tokenizer.bos_id
  x, y = tokenizer.encode("x"), tokenizer.encode("y")
  assert model.encode_pair("<s>x", "y") == ([bos, *x], y)
  assert model.encode_pair("", "<s>x") == ([bos], x)
  assert model.encode_pair("", "<s>") == ([bos], [bos])  # all there is
  scores = model.loglikelihood_rolling([request("<s>xy"), request("xy")])
  assert scores[0] == scores[1] < 0
  assert_scores([(scores[0], True)], [(plain_score([bos], [*x, *y])[0], True)])


def test_a_long_continuation_is_scored_in_windows():
  continuation = random_ids(3, 60)
  lines = []
  model = answers(say=lines.append)
  scores = model._loglikelihood_tokens(
    [((), [1, 2, 3], continuation), ((), [1], [2])]
  )
  assert scores[0][0] == pytest.approx(plain_rolling(continuation, 3))
  assert_scores(scores[1:], [plain_score([1], [2])])
  assert "1 of 2 texts lose their front" in lines[0]


def test_windows_are_those_of_the_harness(lm_eval):
  from lm_eval import utils

  model = answers()
  for n in (0, 1, 23, 24, 25, 48, 49, 100):
    ids = random_ids(n, n)
    windows = utils.get_rolling_token_windows(ids, BOS, MAX_LENGTH, 1)
    assert model._windows(ids, BOS) == [
      utils.make_disjoint_window(window) for window in windows
    ]


def test_pairs_are_split_as_by_the_harness_where_no_token_crosses(lm_eval):
  ours = harness_model(loaded())
  theirs = super(type(ours).__mro__[1], ours)._encode_pair
  for pair in (("ab", " cd"), ("q ", "r"), ("x\n\n", "y"), ("é", "ü")):
    assert ours.encode_pair(*pair) == theirs(*pair)


def test_ids_begin_as_those_of_the_run():
  with_bos, without = answers(), answers(add_bos=False)
  assert with_bos.tok_encode("ab") == [BOS, 97, 98] == loaded().encode("ab")
  assert with_bos.tok_encode("ab", add_special_tokens=False) == [97, 98]
  assert with_bos.tok_encode("ab", add_special_tokens=True) == [BOS, 97, 98]
  assert without.tok_encode("ab") == [97, 98] == loaded(False).encode("ab")
  assert without.tok_encode("ab", add_special_tokens=True) == [97, 98]
  assert (with_bos.prefix_token_id, without.prefix_token_id) == (BOS, EOS)
  assert with_bos.eot_token_id == without.eot_token_id == EOS
  assert with_bos.max_length == MAX_LENGTH


def test_a_bos_in_the_text_is_not_written_twice(monkeypatch):
  model = answers()
  monkeypatch.setattr(
    type(loaded().tokenizer), "encode", lambda self, text: [BOS, 97]
  )
  assert model.tok_encode("<s>a") == [BOS, 97]


def test_without_bos_and_eos_no_text_can_begin():
  tokenizer = types.SimpleNamespace(bos_id=None, eos_ids=())
  model = Answers(dataclasses.replace(loaded(), tokenizer=tokenizer), 1, 0)
  with pytest.raises(UserError, match="data.eos_tokens: .* name one"):
    _ = model.prefix_token_id


def test_generate_until_equals_plain_generation():
  contexts = ["def f", "a", "hello wor", ""]
  plain = loaded().generate(
    [{"text": text} for text in contexts],
    mode="next", max_new_tokens=12, ignore_eos=False,
  )  # fmt: skip
  # A stop that turns up: the third character of the first text.
  stop = plain[0].text[2]
  cut = loaded().generate(
    [{"text": text} for text in contexts],
    mode="next", max_new_tokens=12, stop=[stop],
  )  # fmt: skip
  assert cut[0].text != plain[0].text
  asked = [request(c, {"until": [], "max_gen_toks": 12}) for c in contexts]
  assert answers().generate_until(asked) == [g.text for g in plain]
  asked = [request(c, {"until": stop, "max_gen_toks": 12}) for c in contexts]
  texts = answers().generate_until(asked)
  assert texts == [g.text for g in cut]
  assert answers().generate_until(asked[::-1]) == texts[::-1]


def test_a_long_context_keeps_its_end():
  texts = [letter + "abcdefghij" * 4 + letter for letter in "pqrs"]
  found = {}
  for asked in (12, 200):
    found[asked] = answers().generate_until(
      [request(text, {"max_gen_toks": asked}) for text in texts]
    )
  # Of 24 tokens 12 are left, and half of them always are.
  kept = [list(text.encode())[-12:] for text in texts]
  short = loaded().generate(kept, max_new_tokens=12, mode="next")
  assert found[12] == [g.text for g in short]
  assert all(
    long.startswith(text.rstrip("\ufffd"))
    for text, long in zip(found[12], found[200], strict=True)
  )


def test_settings_of_a_generation_are_translated():
  assert generation_settings({}) == {
    "max_new_tokens": 256, "stop": [], "temperature": 0.0,
  }  # fmt: skip
  assert generation_settings(
    {"until": ["a", ""], "max_tokens": 3, "do_sample": True, "top_p": 0.5}
  ) == {"max_new_tokens": 3, "stop": ["a"], "temperature": 1.0, "top_p": 0.5}
  greedy = {"do_sample": False, "temperature": 0.7, "num_beams": 1}
  assert generation_settings(greedy)["temperature"] == 0
  assert generation_settings({"temperature": 0.7})["temperature"] == 0.7
  for asked in ({"num_beams": 4}, {"best_of": 2}):
    with pytest.raises(UserError, match=f"setting '?{next(iter(asked))}"):
      generation_settings(asked)


def test_without_the_extra_the_way_out_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, "lm_eval", None)
  with pytest.raises(UserError, match=r"pip install 'mtpjax\[eval\]'"):
    harness_model(loaded())
  with pytest.raises(UserError, match="lm_eval: .* not installed"):
    job.run("runs/none", ["piqa"], None, 8, rich.console.Console())


# From here on with the harness itself, where it is installed.


def test_a_rolling_score_is_the_sum_over_the_text(lm_eval):
  texts = ["a", "some words", "x = 1\n" * 9, ""]
  found = harness_model(loaded(), 3).loglikelihood_rolling(
    [request(text) for text in texts], disable_tqdm=True
  )
  expected = [plain_rolling(list(text.encode()), BOS) for text in texts]
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  assert found[3] == 0


def test_pairs_of_texts_are_split_where_the_harness_splits_them(lm_eval):
  pairs = [("ab", " cd"), ("", "xy"), ("q ", "r")]
  found = harness_model(loaded(), 2).loglikelihood(
    [request(*pair) for pair in pairs], disable_tqdm=True
  )
  expected = [
    plain_score([BOS, *b"ab"], list(b" cd")),
    plain_score([BOS], list(b"xy")),
    plain_score([BOS, *b"q"], list(b" r")),  # a space belongs to what follows
  ]
  assert_scores(found, expected)


CHOICE = """
task: letters
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: ["a", "bb", "ccc"]
doc_to_target: answer
metric_list: [{{metric: acc}}]
"""
GENERATION = """
task: continuation
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{text}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 6, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""


@pytest.fixture
def tasks(lm_eval, tmp_path):
  """Two tasks on four documents; expected accuracy and exact match."""
  documents, right = [], 0
  for n, question in enumerate(["one", "two", "three", "four"]):
    ids = [BOS, *question.encode()]
    for _ in range(6):
      ids.append(int(plain_logprobs(ids)[-1].argmax()))
    made = loaded().tokenizer.decode(ids[1 + len(question) :])
    scores = [
      plain_score([BOS, *question.encode()], list(b" " + choice))[0]
      for choice in (b"a", b"bb", b"ccc")
    ]
    right += int(np.argmax(scores)) == n % 3
    # What the model writes, but for one document.
    text = made.partition("\n")[0] if n else "something else"
    documents.append({"question": question, "answer": n % 3, "text": text})
  data = tmp_path / "documents.jsonl"
  data.write_text("".join(json.dumps(d) + "\n" for d in documents))
  files = []
  for name, text in (("choice", CHOICE), ("generation", GENERATION)):
    files.append(tmp_path / f"{name}.yaml")
    files[-1].write_text(text.format(data=data))
  return [str(file) for file in files], right / 4, 3 / 4


def test_tasks_of_ones_own_run_without_a_network(tasks, monkeypatch):
  files, accuracy, exact = tasks
  monkeypatch.setattr(api, "load", lambda workdir, step, base: loaded())
  console = rich.console.Console(file=io.StringIO(), width=200)
  found = job.run("runs/x", files, None, 3, console)
  assert (found["step"], found["limit"]) == (7, None)
  results = found["results"]
  assert results["letters"]["acc"] == accuracy
  assert results["letters"]["acc_stderr"] == pytest.approx(
    np.sqrt(accuracy * (1 - accuracy) / 3)
  )
  assert results["continuation"]["exact_match"] == exact
  assert json.loads(json.dumps(found)) == found
  printed = console.file.getvalue()
  assert "letters" in printed and f"{exact:.4f}" in printed
  limited = job.run("runs/x", files[:1], 2, 3, console)["results"]
  assert limited["letters"]["sample_len"] == 2


def test_an_unknown_task_is_one_line(lm_eval, monkeypatch):
  import lm_eval.tasks

  manager = types.SimpleNamespace(all_tasks=["hellaswag", "piqa"])
  monkeypatch.setattr(
    lm_eval.tasks, "TaskManager", lambda include_defaults: manager
  )
  with pytest.raises(UserError) as error:
    job.run("runs/x", ["hellaswagg"], None, 8, rich.console.Console())
  assert str(error.value) == (
    "tasks: 'hellaswagg' is no task of the evaluation harness; did you mean "
    "hellaswag?"
  )
  with pytest.raises(UserError, match="tasks: none are named"):
    job.run("runs/x", [], None, 8, rich.console.Console())


@pytest.mark.parametrize(
  "problem, words",
  [
    (ConnectionError("Couldn't reach\n it"), "Couldn't reach it.*a network"),
    (ModuleNotFoundError("No module named 'x'"), "'x'.*install it"),
  ],
)
def test_a_data_set_out_of_reach_is_one_line(
  lm_eval, monkeypatch, problem, words
):
  import lm_eval.tasks

  def load(names):
    raise problem

  manager = types.SimpleNamespace(all_tasks=["piqa"], load=load)
  monkeypatch.setattr(
    lm_eval.tasks, "TaskManager", lambda include_defaults: manager
  )
  with pytest.raises(UserError, match=words) as error:
    job.run("runs/x", ["piqa"], None, 8, rich.console.Console())
  assert "\n" not in str(error.value) and "'piqa'" in str(error.value)
