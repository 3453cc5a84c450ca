"""GGUF files: models and logits, types of tensors, refusals, damage.

Files are written by the library's own writer, with rows permuted as llama.cpp's
converter does it.
"""

import builtins
import hashlib
import math
import random

import conversions
import gguf
import hf_checkpoints
import hf_forward
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
import write_gguf

from mtpjax import parallel
from mtpjax.checkpoint.convert.containers import gguf as container
from mtpjax.checkpoint.convert.formats import gguf as gguf_format
from mtpjax.errors import UserError
from mtpjax.heads import MultiTokenModel
from mtpjax.model import Placement

FAMILIES = ["llama", "mistral", "qwen2", "qwen3"]
LLAMA3 = {
  "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip


def file_of(tmp_path, family="llama", fields=None, tensors=None, **changes):
  """Writes a tiny model; returns path, config.json's values, its tensors."""
  values = hf_checkpoints.config_values(family, **changes)
  weights = hf_checkpoints.random_tensors(values)
  there, stored = write_gguf.of_model(values, weights)
  there |= fields or {}
  there = {key: value for key, value in there.items() if value is not None}
  stored |= tensors or {}
  stored = {name: t for name, t in stored.items() if t is not None}
  path = tmp_path / "model.gguf"
  write_gguf.write(path, there, stored)
  return path, values, weights


def load(source, mesh=None):
  mesh = parallel.single_device_mesh() if mesh is None else mesh
  model = MultiTokenModel(source.model, source.heads, mesh)
  return model, source.load(model)


def logits(source, ids_T):
  model, params = load(source)
  tokens_BT = jnp.asarray(ids_T)[None]
  out = model.apply_trunk(params["lm"], tokens_BT, Placement.whole(tokens_BT))
  return model.trunk.logits(params["lm"], out.hidden_BTD)[0]


def assert_close(got_TV, expected_TV):
  largest = np.abs(expected_TV).max()
  np.testing.assert_allclose(got_TV, expected_TV, rtol=0, atol=1e-5 * largest)


CASES = {
  **{family: (family, {}, {}, {}) for family in FAMILIES},
  "tied": ("llama", {"tie_word_embeddings": True}, {}, {}),
  "window": ("mistral", {}, {"llama.attention.sliding_window": 5}, {}),
  "linear": (
    "llama",
    {"rope_scaling": {"type": "linear", "factor": 4.0}},
    {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
    {},
  ),
  # llama.cpp takes a factor without a type for a linear one.
  "factor alone": (
    "llama",
    {"rope_scaling": {"type": "linear", "factor": 4.0}},
    {"llama.rope.scaling.factor": 4.0},
    {},
  ),
  "theta": ("qwen3", {"rope_theta": 1e6, "rms_norm_eps": 1e-6}, {}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_published_forward(tmp_path, case):
  family, changes, fields, tensors = CASES[case]
  if family == "mistral" and case != "window":
    changes = changes | {"sliding_window": None}
  path, values, weights = file_of(tmp_path, family, fields, tensors, **changes)
  ids_T = np.random.default_rng(1).integers(0, 48, 13)
  expected_TV = hf_forward.logits(values, weights, ids_T)
  source = gguf_format.open(path)
  assert source.model.norm_eps == values["rms_norm_eps"]
  assert source.model.rope_theta == values["rope_theta"]
  assert source.model.tied_embeddings == values["tie_word_embeddings"]
  assert source.model.dtype == source.model.param_dtype == "float32"
  assert_close(logits(source, ids_T), expected_TV)


def rope_factors(theta, d_head, factor):
  """Divisors of rotary frequencies, as llama.cpp's converter writes them."""
  found = []
  for i in range(d_head // 2):
    wavelength = 2 * math.pi * theta ** (2 * i / d_head)
    if wavelength < 8192 / 4:
      found.append(1)
    elif wavelength > 8192:
      found.append(factor)
    else:
      smooth = (8192 / wavelength - 1) / (4 - 1)
      found.append(1 / ((1 - smooth) / factor + smooth))
  return np.array(found, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_rotary_factors_of_llama3(tmp_path, factor):
  factors = rope_factors(5e5, 16, factor)
  assert 1 < sorted(set(factors))[1] < factor  # one lies between
  path, values, weights = file_of(
    tmp_path, tensors={"rope_freqs.weight": factors}, head_dim=16,
    rope_theta=5e5, rope_scaling=LLAMA3 | {"factor": factor},
  )  # fmt: skip
  source = gguf_format.open(path)
  assert source.model.rope_scaling == "llama3"
  assert source.model.rope_factor == factor
  assert source.model.rope_original_length == 8192
  ids_T = np.random.default_rng(1).integers(0, 48, 13)
  expected_TV = hf_forward.logits(values, weights, ids_T)
  assert_close(logits(source, ids_T), expected_TV)


def test_other_rotary_factors_are_refused(tmp_path):
  factors = rope_factors(5e5, 8, 8.0)
  factors[1] *= 1.01
  path, *_ = file_of(
    tmp_path, tensors={"rope_freqs.weight": factors}, rope_theta=5e5
  )
  refused(path, "rope_freqs.weight holds other rotary factors")


def test_same_values_on_a_mesh(tmp_path):
  path, *_ = file_of(tmp_path)
  source = gguf_format.open(path)
  _, one = load(source)
  mesh = parallel.make_mesh(tiny.config_lib.Mesh(fsdp=2, model=2, data=2))
  _, many = load(source, mesh)
  assert len(many["lm"]["embedding"].sharding.device_set) == 8
  tiny.assert_close(many, one, 0.0)


def test_what_comes_along(tmp_path):
  path, *_ = file_of(tmp_path)
  source = gguf_format.open(path)
  assert source.heads.n_extra == 0
  _, data = conversions.tokenizer_of(source, path)
  assert data["eos_tokens"] == ("<|endoftext|>",)
  assert data["add_bos"] is False
  assert source.origin["format"] == "gguf"
  assert source.origin["max_length"] == 64
  assert source.origin["sha256"] == (
    hashlib.sha256(path.read_bytes()).hexdigest()
  )


# Types of tensors.


def one_tensor(tmp_path, tensor):
  path = tmp_path / "one.gguf"
  write_gguf.write(path, {"general.architecture": "llama"}, {"w": tensor})
  return container.GgufTensors(container.read_container(path))


@pytest.mark.parametrize(
  "kind, worst",
  [("F32", 0), ("F16", 2e-3), ("BF16", 1e-2), ("Q8_0", 2e-2), ("Q4_0", 0.3),
   ("Q4_1", 0.3), ("Q5_0", 0.2), ("Q5_1", 0.2)],
)  # fmt: skip
def test_values_come_back(tmp_path, kind, worst):
  array = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)
  tensors = one_tensor(tmp_path, write_gguf.quantised(array, kind))
  assert tensors.names() == ["w"] and tensors.shape("w") == (6, 64)
  got = tensors.read("w")
  assert got.dtype == np.float32
  np.testing.assert_allclose(got, array, rtol=0, atol=worst)
  part = tensors.read("w", slice(1, 4), slice(5, 60))
  np.testing.assert_array_equal(part, got[1:4, 5:60])


def half(raw, at):
  return float(raw[at : at + 2].view(np.float16)[0])


def q4_k(raw):
  """256 values of a Q4_K block, one by one as its description has it."""
  scales, quants = raw[4:16].astype(int), raw[16:].astype(int)
  values = []
  for group in range(8):
    if group < 4:
      scale, least = scales[group] & 63, scales[group + 4] & 63
    else:
      scale = (scales[group + 4] & 15) | (scales[group - 4] >> 6 << 4)
      least = (scales[group + 4] >> 4) | (scales[group] >> 6 << 4)
    for i in range(32):
      byte = quants[group // 2 * 32 + i]
      value = byte >> 4 if group % 2 else byte & 15
      values.append(half(raw, 0) * scale * value - half(raw, 2) * least)
  return values


def q6_k(raw):
  """256 values of a Q6_K block."""
  low, high = raw[:128].astype(int), raw[128:192].astype(int)
  scales = raw[192:208].view(np.int8).astype(int)
  values = []
  for i in range(256):
    part, within = divmod(i, 128)
    quarter, k = divmod(within, 32)
    byte = low[part * 64 + within % 64]
    nibble = byte >> 4 if quarter > 1 else byte & 15
    top = high[part * 32 + k] >> (2 * quarter) & 3
    values.append(half(raw, 208) * scales[i // 16] * ((nibble | top << 4) - 32))
  return values


@pytest.mark.parametrize(
  "kind, size, decode", [("Q4_K", 144, q4_k), ("Q6_K", 210, q6_k)]
)
def test_blocks_of_256_values(tmp_path, kind, size, decode):
  raw = np.random.default_rng(0).integers(0, 256, (3, 2, size), np.uint8)
  scale = np.array([0.01], np.float16).view(np.uint8)
  raw[..., slice(0, 2) if kind == "Q4_K" else slice(208, 210)] = scale
  if kind == "Q4_K":
    raw[..., 2:4] = scale
  stored = raw.reshape(3, -1), gguf.GGMLQuantizationType[kind]
  tensors = one_tensor(tmp_path, stored)
  assert tensors.shape("w") == (3, 512)
  expected = [sum((decode(block) for block in row), []) for row in raw]
  np.testing.assert_allclose(tensors.read("w"), expected, rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(
    tensors.read("w", slice(2, 3), slice(250, 260)),
    tensors.read("w")[2:3, 250:260],
  )


def test_only_one_tensor_is_kept(tmp_path):
  path, *_ = file_of(tmp_path)
  tensors = container.GgufTensors(container.read_container(path))
  first = tensors.read("token_embd.weight", slice(0, 8), slice(0, 3))
  again = tensors.read("token_embd.weight", slice(0, 8), slice(3, 6))
  assert np.shares_memory(first.base, again.base)
  tensors.read("output_norm.weight")
  later = tensors.read("token_embd.weight", slice(0, 8), slice(0, 3))
  np.testing.assert_array_equal(later, first)


# Refusals.


def refused(path, *words):
  with pytest.raises(UserError) as caught:
    load(gguf_format.open(path))
  message = str(caught.value)
  assert "\n" not in message and message.startswith(str(path)), message
  for word in words:
    assert word in message, message


@pytest.mark.parametrize(
  "fields, words",
  [
    (
      {"general.architecture": "gemma"},
      "general.architecture is 'gemma'; supported are llama, qwen2, qwen3",
    ),
    ({"llama.block_count": None}, "has no field llama.block_count"),
    ({"llama.block_count": "two"}, "llama.block_count 'two' is not"),
    ({"llama.block_count": 3}, "block_count 3 is not that of the 2 stored"),
    ({"llama.block_count": 1}, "block_count 1 is not that of the 2 stored"),
    ({"llama.attention.head_count": 0}, "head_count 0 must be at least 1"),
    (
      {"llama.attention.head_count": 8},
      "blk.0.attn_q.weight is [32, 24], expected [64, 24]",
    ),
    ({"split.count": 2}, "is one of 2 files; join them"),
    ({"llama.attention.head_count": [4, 4]}, "is not a whole number"),
    (
      {"llama.attention.value_length": 4},
      "value_length 4 is not supported, only 8",
    ),
    (
      {"llama.rope.dimension_count": 4},
      "dimension_count 4 is not supported, only 8",
    ),
    (
      {"llama.attention.causal": False},
      "causal False is not supported, only True",
    ),
    (
      {"llama.expert_count": 8},
      "llama.expert_count 8 is not supported, only 0",
    ),
    ({"llama.logit_scale": 2.0}, "the field llama.logit_scale is not known"),
    (
      {"llama.rope.scaling.type": "yarn"},
      "type 'yarn' is not supported, only 'linear'",
    ),
    (
      {"llama.rope.scaling.attn_factor": 2.0},
      "attn_factor 2.0 is not supported, only 1.0",
    ),
    (
      {"llama.rope.scaling.type": "linear"},
      "has no field llama.rope.scaling.factor",
    ),
    (
      {"llama.rope.scaling.factor": math.nan},
      "scaling.factor nan must be finite and at least 1",
    ),
    (
      {"llama.rope.scaling.factor": 0.5},
      "scaling.factor 0.5 must be finite and at least 1",
    ),
    ({"llama.rope.freq_base": math.inf}, "freq_base inf must be finite"),
    ({"llama.rope.freq_base": -1.0}, "freq_base -1.0 must be finite"),
    (
      {"llama.attention.layer_norm_rms_epsilon": math.nan},
      "epsilon nan must be finite",
    ),
    ({"llama.rope.scale_linear": 4.0}, "llama.rope.scale_linear is not known"),
    ({"llama.logit_scale": 0.5}, "llama.logit_scale is not known"),
    ({"tokenizer.ggml.pre": "tekken"}, "tokenizer.ggml.pre"),
  ],
)
def test_fields_that_are_refused(tmp_path, fields, words):
  path, *_ = file_of(tmp_path, fields=fields)
  refused(path, words)


def test_tensors_that_are_refused(tmp_path):
  biases = np.ones(32, np.float32)
  path, *_ = file_of(tmp_path, tensors={"blk.0.attn_q.bias": biases})
  refused(path, "blk.0.attn_q.bias belongs to no parameter")
  path, *_ = file_of(tmp_path, tensors={"blk.1.ffn_up.weight": None})
  refused(path, "blk.1.ffn_up.weight is missing")
  path, *_ = file_of(tmp_path, tensors={"token_embd.weight": None})
  refused(path, "holds no tensor token_embd.weight")
  wide = np.zeros((24, 256), np.float32)
  kind = gguf.GGMLQuantizationType.TQ2_0
  stored = gguf.quantize(wide, kind), kind
  path, *_ = file_of(tmp_path, tensors={"blk.0.ffn_down.weight": stored})
  refused(path, "blk.0.ffn_down.weight is of type TQ2_0; supported", "Q4_K")


def test_without_the_library(tmp_path, monkeypatch):
  path, *_ = file_of(tmp_path)
  real = builtins.__import__

  def without_gguf(name, *rest):
    if name == "gguf":
      raise ImportError(name)
    return real(name, *rest)

  monkeypatch.setattr(builtins, "__import__", without_gguf)
  refused(path, "need the library gguf; pip install 'mtpjax[gguf]'")


# Damage.


def test_other_files_are_refused(tmp_path):
  path = tmp_path / "x.gguf"
  refused(path, "no such file")
  refused(tmp_path, "is a folder; give the path of a .gguf file")
  path.write_bytes(b"")
  refused(path, "not a GGUF file, or cut off")
  path.write_bytes(b"PK" * 100)
  refused(path, "does not begin with GGUF")
  path.write_bytes(b"GGUF\x01\0\0\0" + b"\0" * 100)
  refused(path, "GGUF version 1 is not read")
  path.write_bytes(b"GGUF\0\0\0\x03" + b"\0" * 100)
  refused(path, "of the other byte order")


def test_every_truncation_is_refused(tmp_path):
  path, *_ = file_of(tmp_path)
  whole = path.read_bytes()
  # The last tensor's padding is all that may be absent.
  for length in [*range(0, 4000, 53), *range(4000, len(whole) - 96, 1009)]:
    path.write_bytes(whole[:length])
    refused(path)
  path.write_bytes(whole[:-200])
  refused(path, "cut off: the tensor", "copy it again")


def test_damage_of_the_header_is_refused_or_changes_nothing_silently(tmp_path):
  path, *_ = file_of(tmp_path)
  whole = path.read_bytes()
  rng = random.Random(0)
  n_refused = 0
  for _ in range(300):
    damaged = bytearray(whole)
    for _ in range(rng.choice([1, 4])):
      damaged[rng.randrange(2500)] ^= 1 << rng.randrange(8)
    path.write_bytes(damaged)
    try:
      gguf_format.open(path)
    except UserError as error:
      assert "\n" not in str(error)
      n_refused += 1
  assert n_refused > 100


def test_a_count_that_is_too_large_ends_at_once(tmp_path):
  path, *_ = file_of(tmp_path)
  whole = path.read_bytes()
  key = b"tokenizer.ggml.token_type"
  at = whole.index(key) + len(key) + 4 + 4
  path.write_bytes(whole[:at] + b"\xff" * 7 + b"\0" + whole[at + 8 :])
  refused(path, "tokenizer.ggml.token_type needs")


def test_values_that_are_not_finite_are_damage(tmp_path):
  path, *_ = file_of(tmp_path)
  opened = container.read_container(path)
  at = opened.tensors["blk.1.ffn_up.weight"].blocks
  offset = path.read_bytes().index(at.tobytes())
  whole = bytearray(path.read_bytes())
  whole[offset : offset + 4] = np.array([np.nan], np.float32).tobytes()
  path.write_bytes(whole)
  refused(path, "the tensor blk.1.ffn_up.weight holds values that are not")


def test_a_tensor_or_a_field_that_is_there_twice(tmp_path):
  path, *_ = file_of(tmp_path)
  whole = path.read_bytes()
  path.write_bytes(
    whole.replace(b"blk.1.attn_q.weight", b"blk.0.attn_q.weight")
  )
  refused(path, "the tensor blk.0.attn_q.weight is there twice")
  # Two keys of the same length.
  path.write_bytes(
    whole.replace(b"tokenizer.ggml.model", b"llama.context_length")
  )
  refused(path, "the field llama.context_length is there twice")
