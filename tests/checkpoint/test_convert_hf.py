"""Hugging Face folders in and out: every value, every name, every error."""

import json

import conversions
import hf_checkpoints
import jax
import ml_dtypes
import numpy as np
import pytest
import tiny
import tokenizers

from mtpjax import config as config_lib
from mtpjax import parallel
from mtpjax.checkpoint.convert.formats import hf
from mtpjax.data import load_tokenizer
from mtpjax.errors import UserError
from mtpjax.heads import MultiTokenModel

OUTER = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
LAYER = """
input_layernorm.weight post_attention_layernorm.weight self_attn.q_proj.weight
self_attn.k_proj.weight self_attn.v_proj.weight self_attn.o_proj.weight
mlp.gate_proj.weight mlp.up_proj.weight mlp.down_proj.weight
""".split()
QWEN2 = "self_attn.q_proj.bias self_attn.k_proj.bias self_attn.v_proj.bias"
QWEN3 = "self_attn.q_norm.weight self_attn.k_norm.weight"
LAYERS = {
  "llama": LAYER,
  "mistral": LAYER,
  "qwen2": LAYER + QWEN2.split(),
  "qwen3": LAYER + QWEN3.split(),
}


def golden_names(family):
  return OUTER | {
    f"model.layers.{i}.{name}" for i in range(2) for name in LAYERS[family]
  }


def load(folder, mesh=None, **changes):
  """Opens and reads a folder; returns the model and its parameters."""
  source = hf.open(folder)
  mesh = parallel.single_device_mesh() if mesh is None else mesh
  config = config_lib.Config(model=source.model, heads=source.heads)
  config = config_lib.override(config, changes)
  model = MultiTokenModel(config.model, config.heads, mesh)
  return model, source.load(model)


def export(model, params, folder, dtype="float32", most=10**9):
  folder.mkdir()
  target = conversions.target(model, {"lm": params["lm"]}, dtype, most)
  return hf.write(folder, target).params


def checkpoint(folder, family="llama", **changes):
  """Writes a tiny checkpoint; returns its values and tensors."""
  values = hf_checkpoints.config_values(family, **changes)
  tensors = hf_checkpoints.random_tensors(values)
  hf_checkpoints.write(folder, values, tensors)
  return values, tensors


def rewrite(folder, values, tensors):
  hf_checkpoints.write(folder, values, tensors)
  return folder


@pytest.mark.parametrize("family", LAYERS)
def test_import_then_export_returns_every_byte(tmp_path, family):
  _, tensors = checkpoint(tmp_path / "in", family)
  model, params = load(tmp_path / "in")
  n_params = export(model, params, tmp_path / "out")
  written = hf_checkpoints.read_tensors(tmp_path / "out")
  assert set(written) == golden_names(family)
  assert n_params == sum(tensor.size for tensor in tensors.values())
  for name, tensor in tensors.items():
    assert written[name].dtype == tensor.dtype
    assert written[name].shape == tensor.shape
    assert written[name].tobytes() == tensor.tobytes()


def test_a_tied_model_has_no_unembedding_in_its_file(tmp_path):
  checkpoint(tmp_path / "in", tie_word_embeddings=True)
  model, params = load(tmp_path / "in")
  assert "unembedding" not in params["lm"]
  export(model, params, tmp_path / "out")
  written = hf_checkpoints.read_tensors(tmp_path / "out")
  assert set(written) == golden_names("llama") - {"lm_head.weight"}


def test_bfloat16_stays_bfloat16(tmp_path):
  values = hf_checkpoints.config_values("llama", torch_dtype="bfloat16")
  tensors = hf_checkpoints.random_tensors(values, dtype=ml_dtypes.bfloat16)
  rewrite(tmp_path / "in", values, tensors)
  model, params = load(tmp_path / "in")
  assert model.config.dtype == model.config.param_dtype == "bfloat16"
  export(model, params, tmp_path / "out", "bfloat16")
  written = hf_checkpoints.read_tensors(tmp_path / "out")
  for name, tensor in tensors.items():
    assert written[name].dtype == ml_dtypes.bfloat16
    assert written[name].tobytes() == tensor.tobytes()


def test_float16_becomes_float32_exactly(tmp_path):
  values = hf_checkpoints.config_values("llama", torch_dtype="float16")
  tensors = hf_checkpoints.random_tensors(values, dtype=np.float16)
  _, params = load(rewrite(tmp_path, values, tensors))
  got_VD = np.asarray(params["lm"]["embedding"])
  assert got_VD.dtype == np.float32
  np.testing.assert_array_equal(got_VD, tensors["model.embed_tokens.weight"])


@pytest.mark.parametrize("tied", [False, True])
def test_export_then_import_returns_the_parameters(tmp_path, tied):
  config = config_lib.Model(
    vocab_size=48, d_model=24, n_layers=3, n_attention_heads=4, n_kv_heads=2,
    d_head=8, d_ff=40, dtype="float32", tied_embeddings=tied,
  )  # fmt: skip
  heads = config_lib.Heads(offsets=(1,))
  model = MultiTokenModel(config, heads, parallel.single_device_mesh())
  params = tiny.random_params(model.abstract(), seed=3)
  export(model, params, tmp_path / "out")
  values = hf_checkpoints.config_values(
    "llama", num_hidden_layers=3, tie_word_embeddings=tied
  )
  (tmp_path / "out" / "config.json").write_text(json.dumps(values))
  tokenizer = hf_checkpoints.tokenizer_json()
  (tmp_path / "out" / "tokenizer.json").write_text(tokenizer)
  back, again = load(tmp_path / "out")
  assert field_differences(config, back.config) == {}
  jax.tree.map(np.testing.assert_array_equal, again, params)


def field_differences(a, b):
  return {
    name: (value, getattr(b, name))
    for name, value in vars(a).items()
    if value != getattr(b, name)
  }


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_sharded_mesh_gives_the_same_values(tmp_path, family):
  checkpoint(tmp_path, family)
  _, whole = load(tmp_path)
  mesh = parallel.make_mesh(config_lib.Mesh(data=2, fsdp=2, model=2))
  model, params = load(tmp_path, mesh)
  expected = parallel.shardings(model.abstract(), mesh)

  def compare(got, want, sharding):
    assert got.sharding == sharding
    np.testing.assert_array_equal(got, want)

  jax.tree.map(compare, params, whole, expected)
  kernel = params["lm"]["layers"]["attention"]["query"]["kernel"]
  assert kernel.addressable_shards[0].data.shape == (2, 12, 2, 8)
  # And out again, from the shards.
  export(model, params, tmp_path / "out")
  written = hf_checkpoints.read_tensors(tmp_path / "out")
  for name, tensor in hf_checkpoints.read_tensors(tmp_path).items():
    assert written[name].tobytes() == tensor.tobytes()


def test_parts_of_a_sharded_checkpoint_are_found(tmp_path):
  values, tensors = checkpoint(tmp_path / "one")
  hf_checkpoints.write(tmp_path / "many", values, tensors, shards=3)
  _, one = load(tmp_path / "one")
  _, many = load(tmp_path / "many")
  jax.tree.map(np.testing.assert_array_equal, one, many)


def test_shards_are_as_small_as_asked(tmp_path):
  _, tensors = checkpoint(tmp_path / "in")
  model, params = load(tmp_path / "in")
  most = 48 * 24 * 4  # the embedding; nothing is larger
  export(model, params, tmp_path / "out", most=most)
  index = json.loads(
    (tmp_path / "out" / "model.safetensors.index.json").read_text()
  )
  shards = sorted((tmp_path / "out").glob("*.safetensors"))
  assert [s.name for s in shards] == sorted(set(index["weight_map"].values()))
  assert shards[0].name == f"model-00001-of-{len(shards):05}.safetensors"
  total = 0
  for shard in shards:
    held = hf_checkpoints.load_file(shard)
    size = sum(tensor.nbytes for tensor in held.values())
    assert size <= most
    total += size
    assert {index["weight_map"][name] for name in held} == {shard.name}
  assert total == index["metadata"]["total_size"]
  assert set(index["weight_map"]) == set(tensors)
  # And they are read back.
  for file in ("config.json", "tokenizer.json"):
    (tmp_path / "out" / file).write_text((tmp_path / "in" / file).read_text())
  jax.tree.map(np.testing.assert_array_equal, load(tmp_path / "out")[1], params)


def test_a_file_begins_aligned_and_goes_layer_by_layer(tmp_path):
  checkpoint(tmp_path / "in")
  model, params = load(tmp_path / "in")
  export(model, params, tmp_path / "out")
  raw = (tmp_path / "out" / "model.safetensors").read_bytes()
  length = int.from_bytes(raw[:8], "little")
  assert length % 8 == 0  # as the format asks
  header = json.loads(raw[8 : 8 + length])
  assert header.pop("__metadata__") == {"format": "pt"}
  names = sorted(header, key=lambda name: header[name]["data_offsets"])
  assert names[0] == "model.embed_tokens.weight"
  assert names[-2:] == ["model.norm.weight", "lm_head.weight"]
  assert [name.split(".")[2] for name in names[1:-2]] == ["0"] * 9 + ["1"] * 9


def test_a_layer_larger_than_a_shard_has_one_of_its_own(tmp_path):
  _, tensors = checkpoint(tmp_path / "in")
  model, params = load(tmp_path / "in")
  export(model, params, tmp_path / "out", most=1)
  shards = list((tmp_path / "out").glob("*.safetensors"))
  assert len(shards) == len(tensors)


def test_rotary_buffers_of_old_checkpoints_are_ignored(tmp_path):
  values, tensors = checkpoint(tmp_path)
  _, before = load(tmp_path)
  name = "model.layers.0.self_attn.rotary_emb.inv_freq"
  tensors[name] = np.ones(4, np.float32)
  _, after = load(rewrite(tmp_path, values, tensors))
  jax.tree.map(np.testing.assert_array_equal, before, after)


def test_an_unembedding_that_is_the_embedding_is_tied(tmp_path):
  values, tensors = checkpoint(tmp_path, tie_word_embeddings=True)
  tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
  _, params = load(rewrite(tmp_path, values, tensors))
  assert "unembedding" not in params["lm"]
  tensors["lm_head.weight"][-1, -1] += 1
  rewrite(tmp_path, values, tensors)
  with pytest.raises(UserError, match="tie_word_embeddings true; set it to"):
    load(tmp_path)


def test_an_untied_model_needs_its_unembedding(tmp_path):
  values, tensors = checkpoint(tmp_path)
  del tensors["lm_head.weight"]
  rewrite(tmp_path, values, tensors)
  with pytest.raises(UserError, match="no lm_head.weight.*false; set it to"):
    hf.open(tmp_path)


def test_all_that_does_not_fit_is_named_at_once(tmp_path):
  values, tensors = checkpoint(tmp_path)
  del tensors["model.layers.1.mlp.up_proj.weight"]
  tensors["model.layers.0.self_attn.q_proj.bias"] = np.ones(32, np.float32)
  tensors["model.norm.weight"] = np.ones(25, np.float32)
  rewrite(tmp_path, values, tensors)
  with pytest.raises(UserError) as failure:
    load(tmp_path)
  line = str(failure.value)
  assert line.startswith(f"{tmp_path}: ") and "\n" not in line
  assert "model.layers.1.mlp.up_proj.weight is missing" in line
  assert "q_proj.bias belongs to no parameter" in line
  assert "model.norm.weight is [25], expected [24]" in line


def test_a_wholly_different_model_is_one_line(tmp_path):
  values, tensors = checkpoint(tmp_path)
  rewrite(tmp_path, values | {"hidden_size": 32}, tensors)
  with pytest.raises(UserError, match="; and 11 more$") as failure:
    load(tmp_path)
  assert str(failure.value).count("expected") == 10


def test_more_layers_than_tensors_are_found_at_once(tmp_path):
  values, tensors = checkpoint(tmp_path)
  rewrite(tmp_path, values | {"num_hidden_layers": 10**9}, tensors)
  with pytest.raises(UserError, match="1,000,000,000 is more than the 21 ten"):
    hf.open(tmp_path)


def test_layers_beyond_those_configured_are_not_dropped(tmp_path):
  values, tensors = checkpoint(tmp_path)
  rewrite(tmp_path, values | {"num_hidden_layers": 1}, tensors)
  with pytest.raises(UserError, match="layers.1.* belongs to no parameter"):
    load(tmp_path)


def test_integer_weights_are_refused(tmp_path):
  values, tensors = checkpoint(tmp_path)
  name = "model.layers.0.mlp.up_proj.weight"
  tensors[name] = tensors[name].astype(np.int8)
  rewrite(tmp_path, values, tensors)
  with pytest.raises(UserError, match=f"{name} is of dtype I8"):
    load(tmp_path)


@pytest.mark.parametrize("left", [0, 5, 600, -1])
def test_a_truncated_file_is_damaged(tmp_path, left):
  checkpoint(tmp_path)
  file = tmp_path / "model.safetensors"
  file.write_bytes(file.read_bytes()[:left])
  with pytest.raises(UserError, match="model.safetensors: is damaged"):
    load(tmp_path)


def sharded(folder):
  values = hf_checkpoints.config_values("llama")
  tensors = hf_checkpoints.random_tensors(values)
  return hf_checkpoints.write(folder, values, tensors, shards=2)


def test_a_missing_shard_is_named(tmp_path):
  sharded(tmp_path)
  (tmp_path / "model-00002-of-00002.safetensors").unlink()
  with pytest.raises(UserError, match="00002-of-00002.safetensors: is missing"):
    hf.open(tmp_path)


@pytest.mark.parametrize(
  "index, message",
  [
    ("[", "not the index"),
    ("{}", "not the index"),
    ("[" * 100_000, "not the index"),
    ('{"weight_map": []}', "not the index"),
    ('{"weight_map": {"a": "b", "a": "c"}}', "not the index"),
    ('{"weight_map": {"a": 3}}', "not the index"),
    ('{"weight_map": {"a": "../b.safetensors"}}', "outside of its folder"),
    (
      '{"weight_map": {"a": "model-00001-of-00002.safetensors"}}',
      "holds no tensor a",
    ),
  ],
)
def test_a_damaged_index_is_said(tmp_path, index, message):
  sharded(tmp_path)
  (tmp_path / "model.safetensors.index.json").write_text(index)
  with pytest.raises(UserError, match=message):
    hf.open(tmp_path)


def test_pickled_weights_are_not_read(tmp_path):
  checkpoint(tmp_path)
  (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
  with pytest.raises(UserError, match="safe_serialization"):
    hf.open(tmp_path)
  (tmp_path / "pytorch_model.bin").unlink()
  with pytest.raises(UserError, match="neither model.safetensors nor"):
    hf.open(tmp_path)


@pytest.mark.parametrize(
  "file, text, message",
  [
    ("config.json", None, "config.json: no such file"),
    ("config.json", "{", "config.json: not valid JSON"),
    ("config.json", "[]", "config.json: is no JSON object"),
    ("config.json", b"\xff", "config.json: is not UTF-8"),
    (
      "tokenizer.json",
      None,
      "tokenizer.json: no such.*save_pretrained",
    ),
    ("tokenizer.json", "{}", "tokenizer.json: the `tokenizers` library cannot"),
    ("generation_config.json", "{", "generation_config.json: not valid JSON"),
  ],
)
def test_files_beside_the_weights_are_checked(tmp_path, file, text, message):
  checkpoint(tmp_path)
  if text is None:
    (tmp_path / file).unlink()
  else:
    (tmp_path / file).write_bytes(
      text if isinstance(text, bytes) else text.encode()
    )
  with pytest.raises(UserError, match=message) as failure:
    conversions.tokenizer_of(hf.open(tmp_path), tmp_path)
  assert "\n" not in str(failure.value)


def test_a_folder_that_is_not_there_is_named(tmp_path):
  with pytest.raises(UserError, match="nowhere: no such folder"):
    hf.open(tmp_path / "nowhere")


def test_a_tokenizer_may_be_smaller_than_the_vocabulary_not_larger(tmp_path):
  values = hf_checkpoints.config_values("llama")
  tensors = hf_checkpoints.random_tensors(values)
  for n_words, fits in ((46, True), (47, False)):
    tokenizer = hf_checkpoints.tokenizer_json(n_words)
    hf_checkpoints.write(tmp_path, values, tensors, tokenizer)
    if fits:
      conversions.tokenizer_of(hf.open(tmp_path), tmp_path)
    else:
      with pytest.raises(UserError, match="ids up to 48, the model 48 in all"):
        conversions.tokenizer_of(hf.open(tmp_path), tmp_path)


def test_a_token_added_beyond_the_vocabulary_is_no_other_tokenizer(tmp_path):
  """As `<pad>` is, which many add and no text has."""
  values = hf_checkpoints.config_values("llama")
  tensors = hf_checkpoints.random_tensors(values)
  tokenizer = tokenizers.Tokenizer.from_str(hf_checkpoints.tokenizer_json(46))
  tokenizer.add_special_tokens(["<pad>"])
  assert tokenizer.token_to_id("<pad>") == values["vocab_size"] == 48
  pad = {"tokenizer_config": {"eos_token": "<pad>", "bos_token": "<s>"}}
  hf_checkpoints.write(tmp_path, values, tensors, tokenizer.to_str(), **pad)
  opened = hf.open(tmp_path)
  assert opened.model.vocab_size == 48
  _, data = conversions.tokenizer_of(opened, tmp_path)
  # What the model cannot write does not end its texts.
  assert data["eos_tokens"] == ("</s>",)
  assert data["bos_token"] == "<s>"


def data_fields(folder, begins=True, values=None, **files):
  values = hf_checkpoints.config_values("llama") | (values or {})
  tensors = hf_checkpoints.random_tensors(values)
  tokenizer = hf_checkpoints.tokenizer_json(begins=begins)
  hf_checkpoints.write(folder, values, tensors, tokenizer, **files)
  return conversions.tokenizer_of(hf.open(folder), folder)[1]


@pytest.mark.parametrize("begins", [True, False])
def test_what_the_tokenizer_adds_decides_about_bos(tmp_path, begins):
  data = data_fields(tmp_path, begins)
  assert data["add_bos"] is begins and data["add_eos"] is True
  assert data["bos_token"] == ("<s>" if begins else "")


@pytest.mark.parametrize("says", [True, False])
def test_what_its_configuration_says_goes_first(tmp_path, says):
  settings = {"add_bos_token": says, "bos_token": {"content": "<s>"}}
  data = data_fields(tmp_path, not says, tokenizer_config=settings)
  assert data["add_bos"] is says and data["bos_token"] == "<s>"


@pytest.mark.parametrize(
  "values, files, expected",
  [
    ({}, {}, ("</s>",)),
    ({}, {"generation_config": {"eos_token_id": [3, 1]}}, ("w0", "</s>")),
    ({}, {"generation_config": {"eos_token_id": 4}}, ("w1", "</s>")),
    ({}, {"generation_config": {}}, ("</s>",)),
    ({}, {"tokenizer_config": {"eos_token": "w2"}}, ("w2", "</s>")),
    ({}, {"tokenizer_config": {"eos_token": "not there"}}, ("</s>",)),
    (
      {},
      {
        "tokenizer_config": {"eos_token": {"content": "w0"}},
        "generation_config": {"eos_token_id": [1, 3]},
      },
      ("w0", "</s>"),
    ),
    ({"eos_token_id": None}, {}, ()),
    ({"eos_token_id": 47}, {}, ()),
    # Ids: w0 is 3, w1 is 4 and so on.
    (
      {"eos_token_id": 5},
      {"tokenizer_config": {"eos_token": "</s>"}},
      ("</s>", "w2"),
    ),
    ({"eos_token_id": [5, 1, 47]}, {}, ("w2", "</s>")),
    (
      {"eos_token_id": None, "text_config": {"eos_token_id": [3, 5]}},
      {"generation_config": {"eos_token_id": 4}},
      ("w1", "w0", "w2"),
    ),
    (
      {"eos_token_id": 3},
      {"special_tokens_map": {"eos_token": {"content": "w2"}}},
      ("w2", "w0"),
    ),
  ],
)
def test_what_ends_a_text(tmp_path, values, files, expected):
  data = data_fields(tmp_path, True, values, **files)
  assert data["eos_tokens"] == expected
  # The files that come along say the same to whoever reads them.
  copy = tmp_path / "copy"
  copy.mkdir()
  files, _ = conversions.tokenizer_of(hf.open(tmp_path), tmp_path)
  for name, raw in files.items():
    (copy / name).write_bytes(raw)
  if "not there" not in str(files) and "47" not in str(values):
    ids = {"</s>": 1} | {f"w{i}": i + 3 for i in range(5)}
    wanted = tuple(ids[name] for name in expected or ("</s>",))
    assert load_tokenizer(str(copy)).eos_ids == wanted


@pytest.mark.parametrize("value", ["</s>", 1.0, [True], [[1]], {"a": 1}])
@pytest.mark.parametrize("file", ["config", "generation_config"])
def test_an_eos_id_that_is_no_number_is_named(tmp_path, file, value):
  named = {"eos_token_id": value}
  values = hf_checkpoints.config_values("llama")
  tensors = hf_checkpoints.random_tensors(values)
  files = {"generation_config": named} if file != "config" else {}
  values |= named if file == "config" else {}
  hf_checkpoints.write(tmp_path, values, tensors, **files)
  with pytest.raises(UserError, match=f"{file}.json: eos_token_id") as caught:
    conversions.tokenizer_of(hf.open(tmp_path), tmp_path)
  assert "\n" not in str(caught.value)


def test_files_come_along_as_they_are(tmp_path):
  checkpoint(tmp_path)
  (tmp_path / "chat_template.jinja").write_bytes(b"{{ a }}\r\n\xc3\xa9")
  (tmp_path / "README.md").write_text("not this one")
  files, _ = conversions.tokenizer_of(hf.open(tmp_path), tmp_path)
  # That of config.json lies beside a tokenizer from here on.
  assert json.loads(files["generation_config.json"]) == {"eos_token_id": 1}
  assert sorted(files) == [
    "chat_template.jinja", "generation_config.json", "tokenizer.json"
  ]  # fmt: skip
  assert files["chat_template.jinja"].decode() == "{{ a }}\r\né"


def compiled(name):
  return f"_orig_mod.{name}"


def data_parallel(name):
  return f"module.{name}"


def fully_sharded(name):
  for part in ("layers.0.", "layers.1."):
    name = name.replace(part, f"{part}_fsdp_wrapped_module.")
  name = name.replace("self_attn.", "self_attn._checkpoint_wrapped_module.")
  return f"_fsdp_wrapped_module.{name}"


def several(name):
  return f"module._orig_mod.{fully_sharded(name)}"


@pytest.mark.parametrize(
  "wrap", [compiled, data_parallel, fully_sharded, several]
)
def test_names_from_inside_a_wrapper_of_pytorch(tmp_path, wrap):
  values, tensors = checkpoint(tmp_path / "plain")
  wrapped = {wrap(name): tensor for name, tensor in tensors.items()}
  assert not wrapped.keys() & tensors.keys()
  _, got = load(rewrite(tmp_path / "wrapped", values, wrapped))
  jax.tree.map(np.testing.assert_array_equal, got, load(tmp_path / "plain")[1])


def test_one_tensor_inside_and_outside_of_a_wrapper(tmp_path):
  values, tensors = checkpoint(tmp_path)
  tensors["_orig_mod.model.norm.weight"] = tensors["model.norm.weight"] + 1
  rewrite(tmp_path, values, tensors)
  with pytest.raises(UserError, match="holds model.norm.weight twice, as"):
    hf.open(tmp_path)


def test_a_model_without_its_prefix_is_not_taken_for_a_tied_one(tmp_path):
  values, tensors = checkpoint(tmp_path)
  bare = {name.removeprefix("model."): t for name, t in tensors.items()}
  del bare["lm_head.weight"]
  with pytest.raises(UserError, match="embed_tokens.weight is missing"):
    load(rewrite(tmp_path, values, bare))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_weights_that_are_no_numbers_are_damage(tmp_path, value):
  values, tensors = checkpoint(tmp_path)
  name = "model.layers.1.mlp.up_proj.weight"
  tensors[name] = tensors[name].astype(np.float64)
  tensors[name][3, 4] = value
  rewrite(tmp_path, values, tensors)
  with pytest.raises(UserError, match=f"{name} holds values that are not fin"):
    load(tmp_path)


def test_a_file_where_the_folder_is_meant(tmp_path):
  checkpoint(tmp_path)
  with pytest.raises(UserError, match="model.safetensors: is a file; give"):
    hf.open(tmp_path / "model.safetensors")
