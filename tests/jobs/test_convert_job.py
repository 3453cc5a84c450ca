"""`mtpjax convert` and `mtpjax export`, by the command line."""

import json

import hf_checkpoints
import hf_forward
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from mtpjax import api, cli, config, data, parallel
from mtpjax.checkpoint import Store
from mtpjax.model import Placement


def mtpjax(*argv):
  assert cli.main(list(map(str, argv))) == 0


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
  """A folder hf/ to be converted, in the working directory."""
  monkeypatch.chdir(tmp_path)
  values = hf_checkpoints.config_values("llama")
  tensors = hf_checkpoints.random_tensors(values)
  return hf_checkpoints.write(tmp_path / "hf", values, tensors)


def logits(loaded, ids_T):
  """Of the next-token model, [T, V]."""
  tokens_BT = jnp.asarray(ids_T)[None]
  hidden_BTD = loaded.model.apply_trunk(
    loaded.params["lm"],
    tokens_BT,
    Placement.packed(jnp.arange(len(ids_T))[None], tokens_BT * 0 + 1),
  ).hidden_BTD
  return loaded.model.trunk.logits(loaded.params["lm"], hidden_BTD)[0]


def assert_same(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


def test_a_converted_model_continues_a_text_as_published(checkpoint, capsys):
  mtpjax("convert", "hf", "hf", "runs/tiny", "--json", "figures.json")
  printed = capsys.readouterr().out
  assert printed.startswith("runs/tiny: LlamaForCausalLM, ")
  assert printed.count("\n") == 1
  figures = json.loads((checkpoint.parent / "figures.json").read_text())
  tensors = hf_checkpoints.read_tensors(checkpoint)
  assert figures["params"] == sum(t.size for t in tensors.values())
  assert figures["dtype"] == "float32" and figures["secs"] > 0

  loaded = api.load("runs/tiny")
  assert loaded.step == 0 and loaded.data_id == ""
  assert loaded.encode("w1 w2") == [0, 4, 5]  # BOS before it
  [result] = loaded.generate(["w1 w2"], ignore_eos=True, max_new_tokens=6)
  values = hf_checkpoints.config_values("llama")
  ids = [0, 4, 5]
  for _ in range(6):
    ids.append(int(hf_forward.logits(values, tensors, ids)[-1].argmax()))
  assert result.ids == ids[3:]


def test_what_lies_in_the_work_directory(checkpoint):
  (checkpoint / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
  (checkpoint / "chat_template.jinja").write_text("{{ messages }}")
  mtpjax("convert", "hf", "hf", "runs/tiny")
  workdir = checkpoint.parent / "runs" / "tiny"
  assert {path.name for path in workdir.iterdir()} == {
    "config.json", "origin.json", "checkpoints", "tokenizer.json",
    "tokenizer_config.json", "chat_template.jinja", "generation_config.json",
  }  # fmt: skip
  for name in ("tokenizer.json", "tokenizer_config.json"):
    assert (workdir / name).read_bytes() == (checkpoint / name).read_bytes()
  assert [path.name for path in workdir.parent.iterdir()] == ["tiny"]
  origin = json.loads((workdir / "origin.json").read_text())
  size = (checkpoint / "model.safetensors").stat().st_size
  assert origin == {
    "format": "hugging-face",
    "path": str(checkpoint),
    "architecture": "LlamaForCausalLM",
    "max_length": 64,
    "bytes": {"model.safetensors": size},
  }
  made = config.load_config(workdir / "config.json")
  assert made.heads == config.Heads.none() and made.heads.kind == "none"
  assert made.data == config.Data(
    tokenizer="runs/tiny", bos_token="<s>", eos_tokens=("</s>",)
  )
  assert made.decode == config.Decode(mode="next")
  with Store(workdir / "checkpoints") as store:
    metadata = store.read_metadata(0)
  assert metadata == {
    "config": made.to_dict(), "data": "", "tokenizer": "", "step": 0
  }  # fmt: skip


def test_a_model_of_an_earlier_version_loads(checkpoint, monkeypatch):
  """Its config.json calls the heads that are not there Medusa's."""
  mtpjax("convert", "hf", "hf", "new")
  old = config.Heads(kind="medusa", offsets=(1,), tap="normed", matched=False)
  monkeypatch.setattr(config.Heads, "none", lambda: old)
  mtpjax("convert", "hf", "hf", "tiny")
  monkeypatch.undo()
  monkeypatch.chdir(checkpoint.parent)
  new, loaded = api.load("new"), api.load("tiny")
  assert (new.config.heads.kind, loaded.config.heads.kind) == ("none", "medusa")
  assert_same(loaded.params, new.params)
  asked = dict(prompts=["w1 w2"], max_new_tokens=6, ignore_eos=True)
  assert loaded.generate(**asked)[0].ids == new.generate(**asked)[0].ids
  # Heads go on it, and it goes out, as ever.
  write_medusa_heads(checkpoint.parent / "heads", medusa_tensors(1))
  mtpjax("convert", "medusa", "heads", "tiny", "drafts")
  assert_same(api.load("drafts").params["lm"], new.params["lm"])
  mtpjax("export", "hf", "tiny", "out")


def test_dtypes_and_the_mesh_may_be_chosen(checkpoint):
  values = hf_checkpoints.config_values("llama", torch_dtype="bfloat16")
  tensors = hf_checkpoints.random_tensors(values, dtype=ml_dtypes.bfloat16)
  hf_checkpoints.write(checkpoint, values, tensors)
  mtpjax("convert", "hf", "hf", "plain")
  mtpjax(
    "convert", "hf", "hf", "wide", "--model.dtype", "float32",
    "--model.param-dtype", "float32", "--mesh.fsdp", "2", "--mesh.model", "2",
  )  # fmt: skip
  plain, wide = api.load("plain"), api.load("wide")
  assert plain.config.model.dtype == "bfloat16"
  assert {leaf.dtype.name for leaf in jax.tree.leaves(plain.params)} == {
    "bfloat16"
  }
  assert {leaf.dtype.name for leaf in jax.tree.leaves(wide.params)} == {
    "float32"
  }
  assert (wide.config.mesh.fsdp, wide.config.mesh.model) == (2, 2)
  as_float32 = jax.tree.map(lambda x: x.astype(jnp.float32), plain.params)
  assert_same(as_float32, wide.params)


def test_a_converted_model_loads_onto_a_mesh(checkpoint):
  mtpjax("convert", "hf", "hf", "tiny")
  mesh = parallel.make_mesh(config.Mesh(data=2, fsdp=2, model=2))
  assert_same(api.load("tiny", mesh=mesh).params, api.load("tiny").params)


def test_other_fields_cannot_be_overridden(checkpoint, fails):
  line = fails("convert", "hf", "hf", "tiny", "--model.d-model", "32")
  assert "--model.d-model: no such option" in line


@pytest.mark.parametrize("kind", ["hf", "gguf", "meta"])
def test_a_source_that_is_not_there(checkpoint, fails, kind):
  assert "nowhere" in fails("convert", kind, "nowhere", "tiny")
  assert not (checkpoint.parent / "tiny").exists()


def test_an_existing_work_directory_is_left_alone(checkpoint, fails):
  mtpjax("convert", "hf", "hf", "tiny")
  before = (checkpoint.parent / "tiny" / "config.json").read_bytes()
  line = fails("convert", "hf", "hf", "tiny")
  assert "tiny: exists and is not empty; take another" in line
  assert (checkpoint.parent / "tiny" / "config.json").read_bytes() == before
  (checkpoint.parent / "file").write_text("")
  assert "file: exists" in fails("convert", "hf", "hf", "file")


def test_a_work_directory_that_cannot_be_made(checkpoint, fails):
  line = fails("convert", "hf", "hf", "hf/config.json/tiny")
  assert "hf/config.json/tiny: cannot be made (Not a directory)" in line
  assert "exists and is not empty" in fails("convert", "hf", "hf", ".")


def test_an_empty_folder_may_become_the_work_directory(checkpoint):
  (checkpoint.parent / "tiny").mkdir()
  mtpjax("convert", "hf", "hf", "tiny")
  assert api.load("tiny").step == 0


def names(folder):
  return sorted(path.name for path in folder.iterdir())


def test_bad_weights_leave_nothing_behind(checkpoint, fails):
  values = hf_checkpoints.config_values("llama")
  tensors = hf_checkpoints.random_tensors(values)
  del tensors["model.norm.weight"]
  hf_checkpoints.write(checkpoint, values, tensors)
  line = fails("convert", "hf", "hf", "tiny")
  assert "model.norm.weight is missing" in line
  assert names(checkpoint.parent) == ["hf"]


def test_a_crash_leaves_nothing_that_looks_complete(checkpoint, monkeypatch):
  def save(*args, **kwargs):
    raise KeyboardInterrupt

  monkeypatch.setattr(Store, "save", save)
  assert cli.main(["convert", "hf", "hf", "tiny"]) == 130
  assert names(checkpoint.parent) == ["hf"]


def test_a_work_directory_that_appears_meanwhile_is_kept(
  checkpoint, monkeypatch, fails
):
  save = Store.save

  def save_late(*args, **kwargs):
    (checkpoint.parent / "tiny").mkdir()
    (checkpoint.parent / "tiny" / "mine").write_text("")
    save(*args, **kwargs)

  monkeypatch.setattr(Store, "save", save_late)
  line = fails("convert", "hf", "hf", "tiny")
  assert "tiny: appeared while it was being made" in line
  assert names(checkpoint.parent / "tiny") == ["mine"]
  assert names(checkpoint.parent) == ["hf", "tiny"]


def test_export_returns_what_was_converted(checkpoint, capsys):
  (checkpoint / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
  (checkpoint / "generation_config.json").write_text('{"eos_token_id": [1, 3]}')
  mtpjax("convert", "hf", "hf", "tiny")
  capsys.readouterr()
  mtpjax("export", "hf", "tiny", "out")
  printed = capsys.readouterr().out
  assert printed.startswith("out: LlamaForCausalLM, ")
  assert printed.count("\n") == 1
  out = checkpoint.parent / "out"
  assert names(out) == names(checkpoint)
  for name in ("tokenizer.json", "tokenizer_config.json",
               "generation_config.json"):  # fmt: skip
    assert (out / name).read_bytes() == (checkpoint / name).read_bytes()
  before = hf_checkpoints.read_tensors(checkpoint)
  after = hf_checkpoints.read_tensors(out)
  assert before.keys() == after.keys()
  for name, tensor in before.items():
    assert after[name].tobytes() == tensor.tobytes()
  values = json.loads((out / "config.json").read_text())
  assert values["max_position_embeddings"] == 64
  assert (values["bos_token_id"], values["eos_token_id"]) == (0, [1, 3])
  mtpjax("convert", "hf", "out", "again")
  assert_same(api.load("again").params, api.load("tiny").params)
  assert api.load("again").config.model == api.load("tiny").config.model


def test_export_in_bfloat16(checkpoint):
  mtpjax("convert", "hf", "hf", "tiny")
  mtpjax("export", "hf", "tiny", "out", "--dtype", "bfloat16")
  out = checkpoint.parent / "out"
  values = json.loads((out / "config.json").read_text())
  assert values["torch_dtype"] == "bfloat16"
  after = hf_checkpoints.read_tensors(out)
  for name, tensor in hf_checkpoints.read_tensors(checkpoint).items():
    assert after[name].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(
      after[name], tensor.astype(ml_dtypes.bfloat16)
    )


def test_export_in_shards(checkpoint, fails):
  # An embedding of 1.2 MB of all 1.3.
  values = hf_checkpoints.config_values("llama", vocab_size=12_500)
  tensors = hf_checkpoints.random_tensors(values)
  hf_checkpoints.write(checkpoint, values, tensors)
  mtpjax("convert", "hf", "hf", "tiny")
  mtpjax("export", "hf", "tiny", "out", "--max-shard-mb", "1")
  out = checkpoint.parent / "out"
  assert "model-00001-of-00003.safetensors" in names(out)
  assert "model.safetensors.index.json" in names(out)
  mtpjax("convert", "hf", "out", "again")
  assert_same(api.load("again").params, api.load("tiny").params)
  line = fails("export", "hf", "tiny", "none", "--max-shard-mb", "0")
  assert "--max-shard-mb" in line


@pytest.mark.parametrize(
  "files",
  [
    {},
    {"generation_config": {"eos_token_id": [3, 1]}},
    {"tokenizer_config": {"bos_token": "w0", "eos_token": "w1"}},
    {
      "tokenizer_config": {"bos_token": None, "eos_token": "w1"},
      "generation_config": {"eos_token_id": 1},
    },
  ],
)
def test_the_folder_alone_says_what_the_configuration_does(checkpoint, files):
  """So that an experiment which names it as tokenizer has the same one."""
  for name, content in files.items():
    (checkpoint / f"{name}.json").write_text(json.dumps(content))
  begins = files.get("tokenizer_config", {}).get("bos_token", "<s>")
  tokenizer = hf_checkpoints.tokenizer_json(begins=begins == "<s>")
  (checkpoint / "tokenizer.json").write_text(tokenizer)
  mtpjax("convert", "hf", "hf", "tiny")
  configured = api.load("tiny").tokenizer
  alone = data.load_tokenizer("tiny")
  assert alone.fingerprint == configured.fingerprint
  assert (alone.bos_id is None) == (begins is None)


def test_a_tokenizer_that_could_not_be_loaded_stops_at_once(checkpoint, fails):
  (checkpoint / "tokenizer_config.json").write_text('{"chat_template": 3}')
  assert "chat_template is neither" in fails("convert", "hf", "hf", "tiny")
  assert names(checkpoint.parent) == ["hf"]


def test_an_export_that_makes_its_own_companions(checkpoint):
  mtpjax("convert", "hf", "hf", "tiny")
  (checkpoint.parent / "tiny" / "generation_config.json").unlink()
  mtpjax("export", "hf", "tiny", "out")
  out = checkpoint.parent / "out"
  generation = json.loads((out / "generation_config.json").read_text())
  assert generation == {"bos_token_id": 0, "eos_token_id": 1}
  settings = json.loads((out / "tokenizer_config.json").read_text())
  assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
  assert (settings["bos_token"], settings["eos_token"]) == ("<s>", "</s>")


def test_a_model_from_scratch_is_exported_without_its_heads(
  in_tiny_root, tmp_path, capsys, fails
):
  out = tmp_path / "out"
  line = fails("export", "hf", "runs/quickstart", out)
  assert "2 extra heads of kind block" in line and "--next-only" in line
  assert not out.exists()
  mtpjax("export", "hf", "runs/quickstart", out, "--next-only")
  assert "LlamaForCausalLM" in capsys.readouterr().out
  assert names(out) == [
    "config.json", "generation_config.json", "model.safetensors",
    "tokenizer.json", "tokenizer_config.json",
  ]  # fmt: skip
  values = json.loads((out / "config.json").read_text())
  # Two of four layers paid for the heads.
  assert values["num_hidden_layers"] == 2
  assert (values["bos_token_id"], values["eos_token_id"]) == (256, 257)
  assert values["max_position_embeddings"] == 48
  ids_T = np.array([256, *b"def f(x):"])
  expected_TV = hf_forward.logits(
    values, hf_checkpoints.read_tensors(out), ids_T
  )
  got_TV = np.asarray(logits(api.load("runs/quickstart"), ids_T))
  error = np.max(np.abs(got_TV - expected_TV))
  assert error <= 1e-5 * np.max(np.abs(expected_TV))


def test_a_model_of_bytes_comes_back_as_one(in_tiny_root, tmp_path):
  out, again = tmp_path / "out", tmp_path / "again"
  mtpjax("export", "hf", "runs/quickstart", out, "--next-only")
  mtpjax("convert", "hf", out, again)
  ours, back = api.load("runs/quickstart"), api.load(again)
  assert back.config.data.tokenizer == "bytes"
  assert back.tokenizer.fingerprint == ours.tokenizer.fingerprint
  assert not (again / "tokenizer.json").exists()
  assert_same(back.params["lm"], ours.params["lm"])
  asked = dict(prompts=["def f("], mode="next", max_new_tokens=8)
  assert back.generate(**asked)[0].ids == ours.generate(**asked)[0].ids
  # And from there once more, the same files.
  mtpjax("export", "hf", again, tmp_path / "twice")
  for file in out.iterdir():
    assert (tmp_path / "twice" / file.name).read_bytes() == file.read_bytes()


def test_an_existing_export_is_left_alone(in_tiny_root, tmp_path, fails):
  (tmp_path / "mine").write_text("")
  line = fails("export", "hf", "runs/quickstart", tmp_path, "--next-only")
  assert "exists and is not empty" in line
  assert names(tmp_path) == ["mine"]


def test_export_of_no_such_step(in_tiny_root, tmp_path, fails):
  line = fails(
    "export", "hf", "runs/quickstart", tmp_path / "out", "--next-only",
    "--step", "7",
  )  # fmt: skip
  assert "checkpoint step 7: not in" in line
  assert not (tmp_path / "out").exists()


def medusa_tensors(n_heads, n_layers=1):
  rng = np.random.default_rng(5)
  return {
    f"{head}.{layer}.linear.{name}": (
      rng.normal(0, 0.3, shape).astype(np.float32)
    )
    for head in range(n_heads)
    for layer in range(n_layers)
    for name, shape in (("weight", (24, 24)), ("bias", (24,)))
  }


def write_medusa_heads(folder, tensors):
  from safetensors.numpy import save_file

  folder.mkdir()
  save_file(tensors, folder / "medusa_lm_head.safetensors")
  return folder


def test_medusa_heads_on_a_converted_base(checkpoint, capsys):
  tensors = medusa_tensors(3)
  write_medusa_heads(checkpoint.parent / "heads", tensors)
  mtpjax("convert", "hf", "hf", "base")
  capsys.readouterr()
  mtpjax("convert", "medusa", "heads", "base", "drafts")
  printed = capsys.readouterr().out
  assert printed.startswith(
    "drafts: 3 Medusa heads of 1,800 parameters on base"
  )
  base, loaded = api.load("base"), api.load("drafts")
  assert loaded.config.heads.offsets == (1, 2, 3, 4)
  assert_same(loaded.params["lm"], base.params["lm"])
  np.testing.assert_array_equal(
    loaded.params["heads"]["map"]["kernel"][1], tensors["1.0.linear.weight"].T
  )
  # The heads only draft: the text is that of the base.
  asked = dict(prompts=["w1 w2"], ignore_eos=True, max_new_tokens=8)
  [drafted] = loaded.generate(**asked, mode="chain")
  [plain] = base.generate(**asked)
  assert drafted.ids == plain.ids and drafted.proposed > 0
  assert plain.proposed == 0

  mtpjax("export", "hf", "drafts", "out")
  out = checkpoint.parent / "out"
  assert "Medusa heads in medusa/" in capsys.readouterr().out
  back = hf_checkpoints.read_tensors(out / "medusa")
  assert back.keys() == tensors.keys()
  for name, tensor in tensors.items():
    assert back[name].tobytes() == tensor.tobytes()
  values = json.loads((out / "config.json").read_text())
  assert values["max_position_embeddings"] == 64
  for name, tensor in hf_checkpoints.read_tensors(checkpoint).items():
    assert hf_checkpoints.read_tensors(out)[name].tobytes() == tensor.tobytes()
  mtpjax("export", "hf", "drafts", "plain", "--next-only")
  assert "medusa" not in names(checkpoint.parent / "plain")


def test_medusa_heads_of_another_width_are_refused(checkpoint, fails):
  tensors = medusa_tensors(1)
  tensors["0.0.linear.bias"] = np.zeros(25, np.float32)
  write_medusa_heads(checkpoint.parent / "heads", tensors)
  mtpjax("convert", "hf", "hf", "base")
  line = fails("convert", "medusa", "heads", "base", "drafts")
  assert "0.0.linear.bias is [25], expected [24]" in line
  assert names(checkpoint.parent) == ["base", "heads", "hf"]


def test_medusa_heads_need_their_base(checkpoint, fails):
  write_medusa_heads(checkpoint.parent / "heads", medusa_tensors(1))
  line = fails("convert", "medusa", "heads", "base", "drafts")
  assert "'base' is not there" in line
  assert names(checkpoint.parent) == ["heads", "hf"]


@pytest.fixture
def drafts(checkpoint):
  """Heads in lab/runs/drafts on lab/runs/base, named by relative paths."""
  root = checkpoint.parent
  write_medusa_heads(root / "heads", medusa_tensors(1))
  (root / "lab").mkdir()
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(root / "lab")
    mtpjax("convert", "hf", "../hf", "runs/base")
    mtpjax("convert", "medusa", "../heads", "runs/base", "runs/drafts")
  return root


def test_heads_find_their_base_from_anywhere_and_after_both_moved(
  drafts, monkeypatch, fails
):
  want = api.load("lab/runs/drafts").params["lm"]  # from another folder
  monkeypatch.chdir("/")
  assert_same(api.load(drafts / "lab" / "runs" / "drafts").params["lm"], want)
  # Both moved, and to other places than they had to each other's.
  (drafts / "new").mkdir()
  for name in ("base", "drafts"):
    (drafts / "lab" / "runs" / name).rename(drafts / "new" / name)
  loaded = api.load(drafts / "new" / "drafts")
  assert_same(loaded.params["lm"], want)
  assert loaded.base.place.path == drafts / "new" / "base"
  # Apart, it has to be said where the base is.
  (drafts / "new" / "base").rename(drafts / "far")
  line = fails("generate", drafts / "new" / "drafts", "--prompt", "w1")
  assert "'runs/base'" in line and "say where it is with --base.path" in line
  given = api.load(drafts / "new" / "drafts", base=drafts / "far")
  assert_same(given.params["lm"], want)
  mtpjax(
    "export", "hf", drafts / "new" / "drafts", drafts / "out", "--base.path",
    drafts / "far",
  )  # fmt: skip
  values = json.loads((drafts / "out" / "config.json").read_text())
  assert values["max_position_embeddings"] == 64  # as the base's origin says


def test_another_model_of_the_right_name_is_never_taken(
  drafts, monkeypatch, fails
):
  want = api.load("lab/runs/drafts").params["lm"]
  values = hf_checkpoints.config_values("llama")
  tensors = hf_checkpoints.random_tensors(values, seed=1)
  hf_checkpoints.write(drafts / "hf", values, tensors)
  (drafts / "here").mkdir()
  monkeypatch.chdir(drafts / "here")
  mtpjax("convert", "hf", "../hf", "runs/base")
  # Here is one of its name; the right one lies near the heads.
  assert_same(api.load("../lab/runs/drafts").params["lm"], want)
  for argv in (
    ("generate", "../lab/runs/drafts", "--prompt", "w1"),
    ("evaluate", "../lab/runs/drafts", "--classes", "code"),
    ("calibrate", "../lab/runs/drafts"),
    ("bench", "decode", "../lab/runs/drafts"),
    ("export", "hf", "../lab/runs/drafts", "out"),
  ):
    line = fails(*argv, "--base.path", "runs/base")
    assert "changed after the heads" in line, argv
    line = fails(*argv, "--base.path", "none")
    assert "base.path: 'none' is not there" in line, argv
  line = fails("generate", "runs/base", "--prompt", "w", "--base.path", "x")
  assert "is not needed" in line


def test_what_was_not_read_is_said(checkpoint, capsys):
  values = hf_checkpoints.config_values("llama", brew="tea")
  hf_checkpoints.write(
    checkpoint, values, hf_checkpoints.random_tensors(values)
  )
  mtpjax("convert", "hf", "hf", "tiny")
  printed = capsys.readouterr().out
  assert printed.startswith("WARNING: hf/config.json: fields that are not")
  assert "not read: brew\n" in printed


def test_calibration_of_published_heads(drafts, monkeypatch, capsys, fails):
  """Prompts of one's own, or rows, are all that it takes."""
  monkeypatch.chdir(drafts)
  line = fails("calibrate", "lab/runs/drafts")
  assert "was imported and has no rows" in line and "--data-path" in line
  prompts = drafts / "prompts.jsonl"
  prompts.write_text('{"text": "w1 w2"}\n')
  calibrate = (
    "calibrate", "lab/runs/drafts", "--prompts", prompts, "--new-tokens", "8",
    "--max-nodes", "2", "--repeats", "1", "--batches", "3",
  )  # fmt: skip
  assert "give two prompts or more" in fails(*calibrate)
  assert "leave --data-path out" in fails(*calibrate, "--data-path", "data")
  prompts.write_text(
    '{"text": "w1 w2"}\n{"ids": [5, 6, 7, 8]}\n{"text": "w9"}\n'
  )
  mtpjax(*calibrate, "--json", "report.json")
  report = json.loads((drafts / "report.json").read_text())
  assert report["settings"]["texts"] == 3
  assert report["settings"]["prompts"] == str(prompts)
  assert report["rows"][0]["positions"] > 0
  capsys.readouterr()
  mtpjax(
    "generate", "lab/runs/drafts", "--prompts", prompts, "--mode", "auto",
    "--max-new-tokens", "4",
  )  # fmt: skip
  assert len(capsys.readouterr().out.splitlines()) == 3
