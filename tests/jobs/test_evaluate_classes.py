"""`mtpjax evaluate --classes`: what heads bring, by class of prompt."""

import json

import jax
import numpy as np
import pytest

import mtpjax
from mtpjax import cli, decode
from mtpjax.evals import (
  PROMPT_CLASSES,
  class_requests,
  report_classes,
)
from mtpjax.evals.drafts import class_report
from mtpjax.heads import HeadContext
from mtpjax.model import Placement

WORKDIR = "runs/quickstart"


def test_the_report_counts_what_decoding_and_heads_say(in_tiny_root, tmp_path):
  out = tmp_path / "figures.json"
  arguments = ["evaluate", WORKDIR, "--classes", "code,prose"]
  assert not cli.main([*arguments, "--json", str(out)])
  figures = json.loads(out.read_text())
  assert [row["class"] for row in figures["classes"]] == ["code", "prose"]
  for row in figures["classes"]:
    assert row["outputs_identical"]
    assert len(row["top_1_by_offset"]) == 2
    pairs = zip(row["top_1_by_offset"], row["top_5_by_offset"], strict=True)
    assert all(0 <= one <= five <= 1 for one, five in pairs)
    assert 1 <= row["tokens_per_pass"]["chain"] <= 3
    assert (
      row["tokens_per_pass"]["chain"] <= row["tokens_per_pass"]["medusa-63"]
    )


def test_shares_are_those_of_teacher_forced_heads(in_tiny_root):
  """Every position of the text again, by a forward pass and arg sorts."""
  loaded = mtpjax.load(WORKDIR)
  model, params = loaded.model, loaded.params
  requests = class_requests(
    {"x": [loaded.encode("def f1(x):")]}, 24, loaded.missing_ids
  )
  decoded = []
  [row] = report_classes(
    model, params, loaded.decode_params, {"x": requests},
    {"chain": decode.Tree.chain(2)}, (), decoded.append,
  )  # fmt: skip
  assert decoded == [1, 2]  # plainly, and with the tree
  [text] = loaded.generate(
    ["def f1(x):"], mode="next", max_new_tokens=24, ignore_eos=True
  )
  ids = np.array([*requests[0].ids, *text.ids])
  n = len(requests[0].ids)
  assert row["tokens"] == 24
  context = HeadContext(
    Placement.packed(np.arange(len(ids))[None], np.ones((1, len(ids)), int))
  )
  out = model.apply_trunk(params["lm"], ids[None], context.placement)
  for m in range(2):
    head = jax.tree.map(lambda leaf, m=m: leaf[m], params["heads"])
    hidden = model.apply_head(
      head, params["lm"]["final_norm"], out.tap_BTD, context
    )
    logits_TV = np.asarray(hidden[0] @ params["lm"]["unembedding"])
    best_TV = np.argsort(-logits_TV, axis=-1)
    # The draft of depth d behind the token at s is made at the row before s.
    hits = [
      [int(ids[s + m + 1]) in best_TV[s - 1, :k] for k in (1, 5)]
      for s in range(n, len(ids) - m - 1)
    ]
    one, five = np.mean(hits, axis=0)
    assert row["top_1_by_offset"][m] == pytest.approx(one)
    assert row["top_5_by_offset"][m] == pytest.approx(five)


@pytest.mark.parametrize(
  "classes, reason",
  [
    ("cod", "--classes: 'cod' is not one of code, prose, structured, chat"),
    ("chat", "class chat"),  # bytes have no chat template
  ],
)
def test_classes_that_cannot_be_are_refused(
  in_tiny_root, fails, classes, reason
):
  assert reason in fails("evaluate", WORKDIR, "--classes", classes)


def test_texts_that_end_at_once_have_no_figures(
  in_tiny_root, tmp_path, capsys, monkeypatch, shown
):
  end = decode.Result((257,), (0.0,), "eos", 1, 0, (0,))
  monkeypatch.setattr(
    class_report, "decode_texts", lambda *args: [end] * len(args[3])
  )
  out = tmp_path / "figures.json"
  argv = ["evaluate", WORKDIR, "--classes", "code", "--json", str(out)]
  assert not cli.main(argv)
  [row] = json.loads(out.read_text())["classes"]
  assert row["tokens"] == len(PROMPT_CLASSES["code"])
  for name in ("top_1_by_offset", "top_5_by_offset"):
    assert row[name] == [None, None]
  assert row["tokens_per_pass"] == {"chain": None, "medusa-63": None}
  printed = capsys.readouterr().out
  assert "none / none" in printed and "0.0" not in printed
  assert "WARNING: class code" in printed
  # Plainly, and with two trees.
  assert shown[-1] == ["decoding classes of prompts", 3, 3]
