"""Meta's layout: toy checkpoints, logits of all heads, refusals.

The forward pass here is written from the published one: complex rotary
positions on interleaved pairs, one layer after the other, in float64.
"""

import json

import conversions
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import tiny
import tokenizers
import write_torch

from mtpjax import parallel
from mtpjax.checkpoint.convert.formats import meta
from mtpjax.errors import UserError
from mtpjax.heads import MultiTokenModel
from mtpjax.heads.context import HeadContext
from mtpjax.model import Placement

VOCAB = 24
PARAMS = {
  "dim": 16, "n_layers": 5, "n_heads": 4, "n_kv_heads": 2, "vocab_size": VOCAB,
  "n_future_tokens": 3, "rope_theta": 500.0, "norm_eps": 1e-5,
  "multiple_of": 8,
}  # fmt: skip
IDS = [3, 17, 5, 9, 9, 0, 23]


def layer_tensors(rng, params, prefix):
  d, f = params["dim"], 40
  h = d // params["n_heads"]
  shapes = {
    "attention.wq": (d, d), "attention.wk": (params["n_kv_heads"] * h, d),
    "attention.wv": (params["n_kv_heads"] * h, d), "attention.wo": (d, d),
    "feed_forward.w1": (f, d), "feed_forward.w2": (d, f),
    "feed_forward.w3": (f, d), "attention_norm": (d,), "ffn_norm": (d,),
  }  # fmt: skip
  return {
    f"{prefix}.{name}.weight": random_array(rng, shape)
    for name, shape in shapes.items()
  }


def random_array(rng, shape):
  if len(shape) == 1:
    return rng.uniform(0.5, 1.5, shape).astype(np.float32)
  return rng.normal(0, shape[1] ** -0.5, shape).astype(np.float32)


def checkpoint(params=PARAMS):
  """The names of the published code: layers, extra_heads, norm, output."""
  rng = np.random.default_rng(0)
  n_future = params.get("n_future_tokens", 1)
  tensors = {"tok_embeddings.weight": random_array(rng, (VOCAB, params["dim"]))}
  for i in range(params["n_layers"] - n_future + 1):
    tensors |= layer_tensors(rng, params, f"layers.{i}")
  for j in range(n_future - 1):
    tensors |= layer_tensors(rng, params, f"extra_heads.{j}")
  tensors["norm.weight"] = random_array(rng, (params["dim"],))
  tensors["output.weight"] = random_array(rng, (VOCAB, params["dim"]))
  return tensors


def write(folder, tensors, params=PARAMS, suffix=".00.pth"):
  folder.mkdir(exist_ok=True)
  (folder / "params.json").write_text(json.dumps(params))
  path = folder / f"consolidated{suffix}"
  if suffix.endswith(".pth"):
    write_torch.write_torch(path, tensors)
  else:
    safetensors.numpy.save_file(tensors, path)
  vocabulary = {chr(97 + i): i for i in range(VOCAB)}
  tokenizer = tokenizers.Tokenizer(
    tokenizers.models.BPE(vocabulary, [], unk_token="a")
  )
  tokenizer.save(str(folder / "tokenizer.json"))
  return folder


# The independent forward pass.


def rms_norm(x_TD, weight_D, epsilon):
  return x_TD / np.sqrt((x_TD**2).mean(-1, keepdims=True) + epsilon) * weight_D


def apply_rotary(x_TNH, theta):
  half = x_TNH.shape[-1] // 2
  frequencies = 1 / theta ** (np.arange(half) / half)
  turns = np.exp(1j * np.outer(np.arange(len(x_TNH)), frequencies))
  pairs = x_TNH.reshape(*x_TNH.shape[:-1], half, 2)
  turned = (pairs[..., 0] + 1j * pairs[..., 1]) * turns[:, None]
  return np.stack([turned.real, turned.imag], -1).reshape(x_TNH.shape)


def run_layer(tensors, prefix, params, x_TD):
  def weight(name):
    return np.asarray(tensors[f"{prefix}.{name}.weight"], np.float64)

  n, k, t = params["n_heads"], params["n_kv_heads"], len(x_TD)
  y_TD = rms_norm(x_TD, weight("attention_norm"), params["norm_eps"])
  q_TNH = (y_TD @ weight("attention.wq").T).reshape(t, n, -1)
  k_TKH = (y_TD @ weight("attention.wk").T).reshape(t, k, -1)
  v_TKH = (y_TD @ weight("attention.wv").T).reshape(t, k, -1)
  q_TNH = apply_rotary(q_TNH, params["rope_theta"])
  k_TNH = apply_rotary(k_TKH, params["rope_theta"]).repeat(n // k, axis=1)
  v_TNH = v_TKH.repeat(n // k, axis=1)
  scores_NTS = np.einsum("tnh,snh->nts", q_TNH, k_TNH)
  scores_NTS = scores_NTS / np.sqrt(q_TNH.shape[-1])
  scores_NTS += np.triu(np.full((t, t), -np.inf), 1)
  probs_NTS = np.exp(scores_NTS - scores_NTS.max(-1, keepdims=True))
  probs_NTS /= probs_NTS.sum(-1, keepdims=True)
  mixed_TD = np.einsum("nts,snh->tnh", probs_NTS, v_TNH).reshape(t, -1)
  x_TD = x_TD + mixed_TD @ weight("attention.wo").T
  y_TD = rms_norm(x_TD, weight("ffn_norm"), params["norm_eps"])
  gate_TF = y_TD @ weight("feed_forward.w1").T
  gate_TF = gate_TF / (1 + np.exp(-gate_TF))
  up_TF = y_TD @ weight("feed_forward.w3").T
  return x_TD + (gate_TF * up_TF) @ weight("feed_forward.w2").T


def all_heads(tensors, params, ids, trunk, heads):
  """Logits [T, heads, V]: the trunk once, every head on what it returns."""
  x_TD = np.asarray(tensors["tok_embeddings.weight"], np.float64)[ids]
  for prefix in trunk:
    x_TD = run_layer(tensors, prefix, params, x_TD)
  norm_D, output_VD = tensors["norm.weight"], tensors["output.weight"]
  rows = [
    rms_norm(run_layer(tensors, p, params, x_TD), norm_D, params["norm_eps"])
    @ np.asarray(output_VD, np.float64).T
    for p in heads
  ]
  return np.stack(rows, axis=1)


TRUNK = ["layers.0", "layers.1"]
NEXT = "layers.2"
EXTRA = ["extra_heads.0", "extra_heads.1"]


def ours(source, ids, mesh=None):
  """Logits [T, heads, V] of the imported model."""
  mesh = parallel.single_device_mesh() if mesh is None else mesh
  model = MultiTokenModel(source.model, source.heads, mesh)
  params = source.load(model)

  def logits(params, tokens_BT):
    placement = Placement.whole(tokens_BT)
    out = model.apply_trunk(params["lm"], tokens_BT, placement)
    found = [model.trunk.logits(params["lm"], out.hidden_BTD)]
    for m in range(source.heads.n_extra):
      head = jax.tree.map(lambda leaf, m=m: leaf[m], params["heads"])
      normed_BTD = model.apply_head(
        head, params["lm"]["final_norm"], out.tap_BTD,
        HeadContext(placement),
      )  # fmt: skip
      found.append(normed_BTD @ model.trunk.unembedding(params["lm"]))
    return jnp.stack(found, axis=2)[0]

  return np.asarray(jax.jit(logits)(params, jnp.asarray([ids])))


@pytest.mark.parametrize("suffix", [".00.pth", ".safetensors"])
def test_logits_of_all_heads(tmp_path, suffix):
  tensors = checkpoint()
  source = meta.open(write(tmp_path, tensors, suffix=suffix))
  assert source.model.n_layers == 3 and source.model.d_ff == 40
  assert source.heads.offsets == (1, 2, 3) and not source.heads.matched
  assert source.heads.tap == "before_last" and source.heads.kind == "block"
  expected = all_heads(tensors, PARAMS, IDS, TRUNK, [NEXT, *EXTRA])
  got = ours(source, IDS)
  assert got.shape == (7, 3, VOCAB)
  np.testing.assert_allclose(got, expected, atol=1e-5)


def test_logits_on_a_mesh(tmp_path):
  # Four devices share the heads' rows, which are cut and then reordered.
  mesh = parallel.make_mesh(tiny.config_lib.Mesh(data=2, fsdp=2, model=2))
  tensors = checkpoint()
  source = meta.open(write(tmp_path, tensors))
  expected = all_heads(tensors, PARAMS, IDS, TRUNK, [NEXT, *EXTRA])
  model = MultiTokenModel(source.model, source.heads, mesh)
  cut = source.load(model)
  assert len(cut["heads"]["layer"]["mlp"]["up"]["kernel"].devices()) == 8
  one = source.load(
    MultiTokenModel(source.model, source.heads, parallel.single_device_mesh())
  )
  tiny.assert_close(cut, one, 0.0)
  np.testing.assert_allclose(ours(source, IDS), expected, atol=1e-5)


def test_the_next_token_head_applied_twice_is_something_else(tmp_path):
  """A slip of a public port: all `layers`, then the last of them again."""
  tensors = checkpoint()
  got = ours(meta.open(write(tmp_path, tensors)), IDS)
  slip = all_heads(tensors, PARAMS, IDS, [*TRUNK, NEXT], [NEXT, *EXTRA])
  for head in range(3):
    assert np.abs(got[:, head] - slip[:, head]).max() > 0.1


def test_extra_heads_are_never_dropped(tmp_path):
  """Another slip: only the names below `layers.` are taken along."""
  tensors = checkpoint()
  kept = {n: t for n, t in tensors.items() if not n.startswith("extra_heads.")}
  source = meta.open(write(tmp_path, kept))
  model = MultiTokenModel(
    source.model, source.heads, parallel.single_device_mesh()
  )
  with pytest.raises(UserError) as caught:
    source.load(model)
  message = str(caught.value)
  assert "consolidated.00.pth" in message and "\n" not in message
  assert "extra_heads.0.attention_norm.weight is missing" in message
  # The slip's heads, made of the next-token head, differ from what is stored.
  got = ours(meta.open(write(tmp_path, tensors)), IDS)
  slip = all_heads(tensors, PARAMS, IDS, TRUNK, [NEXT] * 3)
  np.testing.assert_allclose(got[:, 0], slip[:, 0], atol=1e-5)
  for head in (1, 2):
    assert np.abs(got[:, head] - slip[:, head]).max() > 0.1


def test_rotary_pairs_are_reordered(tmp_path):
  """Without it the logits would differ: halves and pairs are not the same."""
  tensors = checkpoint()
  got = ours(meta.open(write(tmp_path, tensors)), IDS)
  stored = {
    name: t.reshape(-1, 2, 2, 16).swapaxes(1, 2).reshape(t.shape)
    if name.endswith(("wq.weight", "wk.weight"))
    else t
    for name, t in tensors.items()
  }
  wrong = all_heads(stored, PARAMS, IDS, TRUNK, [NEXT, *EXTRA])
  assert np.abs(got - wrong).max() > 0.01


def test_a_plain_model(tmp_path):
  params = {
    "dim": 16, "n_layers": 2, "n_heads": 4, "n_kv_heads": None,
    "vocab_size": -1, "norm_eps": 1e-5,
  }  # fmt: skip
  whole = params | {"n_kv_heads": 4, "rope_theta": 10_000.0}
  tensors = checkpoint(whole)
  frequencies = {"rope.freqs": np.ones(2, np.float32)}
  source = meta.open(write(tmp_path, tensors | frequencies, params))
  assert source.model.vocab_size == VOCAB and source.model.n_kv_heads == 4
  assert source.model.rope_theta == 10_000.0 and source.heads.n_extra == 0
  expected = all_heads(tensors, whole, IDS, ["layers.0"], ["layers.1"])
  np.testing.assert_allclose(ours(source, IDS), expected, atol=1e-5)


def test_bfloat16_stays_bfloat16(tmp_path):
  tensors = {n: t.astype(jnp.bfloat16) for n, t in checkpoint().items()}
  source = meta.open(write(tmp_path, tensors))
  assert source.model.param_dtype == source.model.dtype == "bfloat16"
  params = source.load(
    MultiTokenModel(source.model, source.heads, parallel.single_device_mesh())
  )
  np.testing.assert_array_equal(
    params["heads"]["layer"]["mlp"]["down"]["kernel"][1],
    tensors["extra_heads.1.feed_forward.w2.weight"].T,
  )


def test_what_comes_along(tmp_path):
  folder = write(tmp_path, checkpoint())
  settings = {"add_bos_token": True, "bos_token": "b", "eos_token": "c"}
  (folder / "tokenizer_config.json").write_text(json.dumps(settings))
  source = meta.open(folder)
  files, data = conversions.tokenizer_of(source, folder)
  assert sorted(files) == ["tokenizer.json", "tokenizer_config.json"]
  assert data["add_bos"] and data["bos_token"] == "b"
  assert data["eos_tokens"] == ("c",)
  assert source.origin["format"] == "meta"


def refused(folder, *words):
  with pytest.raises(UserError) as caught:
    source = meta.open(folder)
    source.load(
      MultiTokenModel(source.model, source.heads, parallel.single_device_mesh())
    )
  message = str(caught.value)
  assert "\n" not in message
  for word in words:
    assert word in message, message


@pytest.mark.parametrize(
  "changes, words",
  [
    ({"dim": None}, ["params.json: has no field dim"]),
    ({"dim": "x"}, ["dim 'x' is not a whole number"]),
    ({"n_layers": 5.5}, ["n_layers 5.5 is not a whole number"]),
    ({"n_heads": 3}, ["n_heads 3 does not divide dim 16"]),
    ({"n_kv_heads": 3}, ["params.json: model.n_kv_heads: 3"]),
    ({"n_future_tokens": 5}, ["n_future_tokens 5 does not leave a trunk"]),
    ({"n_future_tokens": 0}, ["n_future_tokens 0 must be at least 1"]),
    ({"n_future_tokens": 2}, ["layers.3.attention_norm.weight is missing"]),
    ({"n_layers": 4}, ["layers.2.attention.wq.weight belongs to no"]),
    ({"n_layers": 6}, ["layers.3.attention.wq.weight is missing"]),
    ({"vocab_size": 25}, ["tok_embeddings.weight is [24, 16], expected [25"]),
    ({"rope_theta": float("nan")}, ["rope_theta nan must be finite"]),
    ({"rope_theta": -1}, ["rope_theta -1 must be finite"]),
    ({"norm_eps": 0}, ["norm_eps 0 must be finite"]),
    ({"norm_eps": "1e-5"}, ["norm_eps '1e-5' is not a number"]),
    ({"vocab_size": 0}, ["vocab_size 0 must be"]),
    ({"rope_scaling": {"factor": 2}}, ["the field rope_scaling is not known"]),
    ({"use_scaled_rope": True}, ["use_scaled_rope True is not supported"]),
    ({"use_scaled_rope": False, "moe": {}}, ["the field moe is not known"]),
  ],
)
def test_params_that_are_refused(tmp_path, changes, words):
  refused(write(tmp_path, checkpoint(), PARAMS | changes), *words)


def test_params_that_are_no_json(tmp_path):
  write(tmp_path, checkpoint())
  (tmp_path / "params.json").write_text("{")
  refused(tmp_path, "params.json: not valid JSON")
  (tmp_path / "params.json").write_text("[]")
  refused(tmp_path, "params.json: is no JSON object")
  (tmp_path / "params.json").unlink()
  refused(tmp_path, "params.json: no such file")


def test_a_tensor_too_many_or_misshapen(tmp_path):
  extra = {"extra_heads.2.ffn_norm.weight": np.ones(16, np.float32)}
  refused(
    write(tmp_path, checkpoint() | extra),
    "extra_heads.2.ffn_norm.weight belongs to no parameter",
  )
  wrong = {"norm.weight": np.ones(15, np.float32)}
  refused(
    write(tmp_path, checkpoint() | wrong), "norm.weight is [15], expected [16]"
  )
  tensors = checkpoint()
  del tensors["layers.0.feed_forward.w1.weight"]
  refused(
    write(tmp_path, tensors), "layers.0.feed_forward.w1.weight is missing"
  )


def test_damage_is_named(tmp_path):
  tensors = checkpoint()
  write(tmp_path, tensors)
  write_torch.flip_bit_of_storage(
    tmp_path / "consolidated.00.pth", tensors["extra_heads.1.ffn_norm.weight"]
  )
  refused(
    tmp_path, "consolidated.00.pth: damaged",
    "extra_heads.1.ffn_norm.weight does not match its checksum",
  )  # fmt: skip


def test_files_that_are_missing_or_too_many(tmp_path):
  refused(tmp_path / "x", "no such folder")
  write(tmp_path, checkpoint())
  (tmp_path / "tokenizer.json").rename(tmp_path / "tokenizer.model")
  refused(tmp_path, "has no tokenizer.json (a tokenizer.model is not read)")
  write(tmp_path, checkpoint(), suffix=".01.pth")
  refused(tmp_path, "the weights are in 2 parts", "mtpjax convert hf")
  for part in tmp_path.glob("consolidated.*"):
    part.unlink()
  refused(tmp_path, "found none")
