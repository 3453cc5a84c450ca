"""Another engine decodes with the heads we export: the same text, few passes.

The lines it needs are those of docs/export.md.
"""

import pathlib
import re

import conversions
import numpy as np
import pytest
import tiny

from mtpjax import api, cli, heads, parallel
from mtpjax import config as config_lib
from mtpjax.checkpoint.convert.formats import hf

WHY = "transformers 5.24 and torch are no part of the test environment"
torch = pytest.importorskip("torch", reason=WHY)
transformers = pytest.importorskip("transformers", "5.24", reason=WHY)

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "export.md"
PROMPT, N_NEW = "def f7(x):\n  return", 40


def lines(upto=""):
  """The code block of the docs, or the part before a line."""
  [block] = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
  return block[: block.index(upto)] if upto else block


def passes_of(model, run):
  """How often the trunk of a model runs within a call."""
  n = 0

  def count(*_):
    nonlocal n
    n += 1

  hook = model.model.register_forward_hook(count)
  try:
    return run(), n
  finally:
    hook.remove()


def mtpjax(*argv):
  assert cli.main(list(map(str, argv))) == 0


def test_the_text_and_the_passes_are_ours(in_tiny_root, tmp_path):
  run, out = tmp_path / "run", tmp_path / "out"
  mtpjax(
    "train", "tiny.py", "--workdir", run, "--heads.kind", "sequential",
    "--heads.tap", "last", "--heads.matched", "false", "--model.n-layers", "8",
    "--train.steps", "100", "--optim.decay-steps", "100",
    "--train.eval-every", "100", "--train.save-every", "100",
  )  # fmt: skip
  mtpjax("export", "hf", run, out)
  ours = api.load(run)
  there = {"DIR": str(out), "PROMPT": PROMPT}
  exec(lines(), there)
  n_prompt = there["inputs"]["input_ids"].shape[1]
  # Its tokenizer is the one that was written, with the ids of ours.
  assert there["inputs"]["input_ids"][0].tolist() == ours.encode(PROMPT)
  text = there["ids"][0, n_prompt:].tolist()

  def generate(mtp):
    return (
      there["model"]
      .generate(
        **there["inputs"], use_mtp=mtp, do_sample=False, max_new_tokens=N_NEW
      )[0, n_prompt:]
      .tolist()
    )

  plain, n_plain = passes_of(there["model"], lambda: generate(False))
  drafted, n_drafted = passes_of(there["model"], lambda: generate(True))
  asked = dict(prompts=[PROMPT], max_new_tokens=N_NEW)
  [next_only] = ours.generate(**asked, mode="next")
  [chain] = ours.generate(**asked, mode="chain")
  assert text == drafted == plain == next_only.ids == chain.ids
  assert n_plain == next_only.passes == len(plain) == N_NEW
  # States are handed on after the final norm there, before it here: drafts may
  # differ, but seldom do.
  assert n_drafted <= N_NEW // 2
  assert abs(n_drafted - chain.passes) <= 3


@pytest.mark.parametrize(
  "architecture, features",
  [
    ("LlamaForCausalLM", {"tied_embeddings": True}),
    ("MistralForCausalLM", {"sliding_window": 5}),
    ("Qwen2ForCausalLM", {"qkv_bias": True}),
    ("Qwen2ForCausalLM", {"qkv_bias": True, "sliding_window": 5}),
    ("Qwen3ForCausalLM", {"qk_norm": True}),
  ],
)
def test_every_family_takes_its_heads(tmp_path, architecture, features):
  """With random weights: drafts are wrong, the text is the same."""
  model = heads.MultiTokenModel(
    tiny.model_config(n_layers=3, **features),
    config_lib.Heads(
      kind="sequential", offsets=(1, 2, 3), tap="last", matched=False
    ),
    parallel.single_device_mesh(),
  )
  params = tiny.random_params(model.abstract(), 3)
  hf.write(tmp_path, conversions.target(model, params))
  there = {"DIR": str(tmp_path)}
  exec(lines(upto="tokenizer ="), there)
  assert type(there["model"]).__name__ == architecture
  # Every tensor of the heads found its place there, and no other is missing.
  mtp = transformers.modeling_layers.MtpModel.from_pretrained(there["model"])
  names = {"enorm": "embedding_norm", "hnorm": "hidden_norm"}
  for k, layer in enumerate(mtp.layers):
    for name, own in names.items():
      np.testing.assert_array_equal(
        getattr(layer, name).weight.detach().numpy(),
        params["heads"][own]["scale"][k],
      )
    np.testing.assert_array_equal(
      layer.mtp_block.mlp.down_proj.weight.detach().numpy(),
      params["heads"]["layer"]["mlp"]["down"]["kernel"][k].T,
    )
  ids = torch.tensor([[3, 141, 59, 26, 53, 58, 97]])

  def generate(mtp):
    return there["model"].generate(
      ids, use_mtp=mtp, do_sample=False, max_new_tokens=12, eos_token_id=None,
      pad_token_id=0,
    )[0].tolist()  # fmt: skip

  assert generate(True) == generate(False)
