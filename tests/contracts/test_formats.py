"""What every format of checkpoints must do, and one that is made up here."""

import itertools
import json
import pathlib

import conversions
import hf_checkpoints
import jax
import numpy as np
import pytest
import safetensors.numpy
import tiny
import write_gguf
import write_torch

from mtpjax import api, cli, parallel
from mtpjax import config as config_lib
from mtpjax.checkpoint import convert
from mtpjax.checkpoint.convert.assemble import assemble
from mtpjax.checkpoint.convert.disassemble import disassemble
from mtpjax.checkpoint.convert.formats import hf_names
from mtpjax.checkpoint.convert.layout import lm_leaves
from mtpjax.errors import UserError
from mtpjax.heads import HEADS, MultiTokenModel
from mtpjax.heads.kinds import kind_of
from mtpjax.heads.multi_token import count_values

VALUES = hf_checkpoints.config_values("llama")
TENSORS = hf_checkpoints.random_tensors(VALUES)


# One checkpoint of each format: (folder, tensors to add) -> what is opened.
# The whole models are one and the same.


def hf_example(folder, more):
  return hf_checkpoints.write(folder, VALUES, TENSORS | more)


def gguf_example(folder, more):
  fields, stored = write_gguf.of_model(VALUES, TENSORS)
  folder.mkdir()
  write_gguf.write(folder / "model.gguf", fields, stored | more)
  return folder / "model.gguf"


# Meta's names by those of GGUF, whose rows of queries and keys are as Meta's.
META = {
  "blk": "layers", "attn_norm": "attention_norm", "ffn_norm": "ffn_norm",
  "attn_q": "attention.wq", "attn_k": "attention.wk", "attn_v": "attention.wv",
  "attn_output": "attention.wo", "ffn_gate": "feed_forward.w1",
  "ffn_up": "feed_forward.w3", "ffn_down": "feed_forward.w2",
  "token_embd": "tok_embeddings", "output_norm": "norm",
}  # fmt: skip


def meta_example(folder, more):
  # Where a head is as wide as the model's width allows, which Meta's are.
  values = VALUES | {"head_dim": 6}
  _, stored = write_gguf.of_model(values, hf_checkpoints.random_tensors(values))
  tensors = {
    ".".join(META.get(part, part) for part in name.split(".")): tensor
    for name, tensor in stored.items()
  }
  folder.mkdir()
  write_torch.write_torch(folder / "consolidated.00.pth", tensors | more)
  params = {
    "dim": 24, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "norm_eps": 1e-5,
    "vocab_size": 48,
  }  # fmt: skip
  (folder / "params.json").write_text(json.dumps(params))
  (folder / "tokenizer.json").write_text(hf_checkpoints.tokenizer_json())
  return folder


def medusa_example(folder, more):
  rng = np.random.default_rng(0)
  tensors = {
    f"{head}.0.linear.{name}": rng.normal(size=shape).astype(np.float32)
    for head in range(2)
    for name, shape in (("weight", (24, 24)), ("bias", (24,)))
  }
  folder.mkdir()
  path = folder / "medusa_lm_head.safetensors"
  safetensors.numpy.save_file(tensors | more, path)
  return folder


EXAMPLES = {
  "hf": hf_example,
  "gguf": gguf_example,
  "meta": meta_example,
  "medusa": medusa_example,
}
READ = [name for name, each in convert.FORMATS.items() if each.open]
WRITTEN = [name for name, each in convert.FORMATS.items() if each.write]


def test_every_format_that_is_listed_has_an_example():
  assert EXAMPLES.keys() == set(READ)


def mtpjax(*argv):
  assert cli.main(list(map(str, argv))) == 0


def fails(capsys, *argv):
  capsys.readouterr()
  assert cli.main(list(map(str, argv))) == 2
  line = capsys.readouterr().err
  assert line.startswith("mtpjax: error: ") and line.count("\n") == 1, line
  return line


@pytest.fixture
def arguments(tmp_path, monkeypatch):
  """(name, source) -> the arguments of a conversion to the folder `run`."""
  monkeypatch.chdir(tmp_path)

  def arguments(name, source):
    base = []
    if convert.FORMATS[name].is_on_base:
      base = ["base"]
      if not pathlib.Path("base").exists():
        mtpjax("convert", "hf", hf_example(tmp_path / "base_hf", {}), "base")
    return ["convert", name, source, *base, "run"]

  return arguments


# What holds for each.


@pytest.mark.parametrize("name", READ)
def test_it_becomes_a_work_directory(name, tmp_path, arguments, capsys):
  source = EXAMPLES[name](tmp_path / "source", {})
  argv = arguments(name, source)
  capsys.readouterr()
  mtpjax(*argv, "--json", "figures.json")
  assert capsys.readouterr().out.startswith("run: ")
  figures = json.loads(pathlib.Path("figures.json").read_text())
  loaded = api.load("run")
  origin = json.loads(pathlib.Path("run/origin.json").read_text())
  assert origin["format"] and origin["path"] == str(source.absolute())
  part = "heads" if convert.FORMATS[name].is_on_base else "lm"
  assert figures["params"] == count_values(loaded.params[part])
  [result] = loaded.generate([{"ids": [5, 6]}], max_new_tokens=3)
  assert result.ids


def test_the_same_model_in_another_format_has_the_same_parameters(tmp_path):
  found = {}
  for name in ("hf", "gguf"):
    source = convert.FORMATS[name].open(EXAMPLES[name](tmp_path / name, {}))
    mesh = parallel.single_device_mesh()
    model = MultiTokenModel(source.model, source.heads, mesh)
    found[name] = source.load(model)
  jax.tree.map(np.testing.assert_array_equal, found["gguf"], found["hf"])


@pytest.mark.parametrize("name", READ)
def test_a_tensor_too_many_is_named(name, tmp_path, arguments, capsys):
  more = {"odd.tensor": np.ones(3, np.float32)}
  source = EXAMPLES[name](tmp_path / "source", more)
  line = fails(capsys, *arguments(name, source))
  assert "odd.tensor" in line and str(source) in line
  assert not pathlib.Path("run").exists()


@pytest.mark.parametrize("name", READ)
def test_a_damaged_file_is_one_line(name, tmp_path, arguments, capsys):
  source = EXAMPLES[name](tmp_path / "source", {})
  files = [source] if source.is_file() else list(source.iterdir())
  largest = max(files, key=lambda file: file.stat().st_size)
  whole = largest.read_bytes()
  argv = arguments(name, source)
  for n_bytes in (0, 100, len(whole) // 2, len(whole) - 1):
    largest.write_bytes(whole[:n_bytes])
    assert str(source) in fails(capsys, *argv), n_bytes
    assert not pathlib.Path("run").exists()


@pytest.mark.parametrize("name", READ)
def test_help_says_what_it_reads(name, capsys):
  with pytest.raises(SystemExit):
    cli.main(["convert", "--help"])
  shown = " ".join(capsys.readouterr().out.split())
  assert name in shown and convert.FORMATS[name].help in shown


def published_models():
  """A model of each kind of heads, with a tap of each; some are published."""
  for kind, tap in itertools.product(HEADS, ("last", "normed")):
    heads = config_lib.Heads(
      kind=kind, offsets=(1, 2, 3), tap=tap, matched=False
    )
    try:
      kind_of(heads)
    except UserError:
      continue  # a kind that has no such tap, or no heads
    yield tiny.multi_token_model(heads_config=heads)
  yield tiny.multi_token_model(heads_config=config_lib.Heads.none())


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_read_as_the_same(name, tmp_path):
  format = convert.FORMATS[name]
  n_held = 0
  for i, model in enumerate(published_models()):
    if model.heads.n_extra:
      try:
        format.check(model.heads, "here")
      except UserError as error:
        assert "--next-only" in str(error)
        continue
    n_held += bool(model.heads.n_extra)
    params = tiny.random_params(model.abstract(), i)
    folder = tmp_path / str(i)
    folder.mkdir()
    written = format.write(folder, conversions.target(model, params))
    source = format.open(folder)
    sources = [source]
    if model.heads.n_extra and not source.heads.n_extra:  # they lie beside
      sources.append(convert.FORMATS["medusa"].open(folder / "medusa"))
    mesh = parallel.single_device_mesh()
    back = MultiTokenModel(source.model, sources[-1].heads, mesh)
    plain = MultiTokenModel(source.model, source.heads, mesh)
    assert back.config == model.config and back.heads == model.heads
    got = source.load(plain)
    for each in sources[1:]:
      got |= each.load(back)
    jax.tree.map(np.testing.assert_array_equal, got, params)
    assert written.params >= sum(
      leaf.size for leaf in jax.tree.leaves(got["lm"])
    )
  assert n_held >= 2, "Medusa's and sequential heads have a place"


# A format of arrays in an .npz, in a few lines.

TOY_NAMES = {
  path: path.replace("layers/", "layers/{i}/") for path in hf_names.HF_NAMES
}


class Arrays:
  """Named tensors in an .npz."""

  def __init__(self, path):
    self.source = str(path)
    self._arrays = np.load(path)

  def names(self):
    return [name for name in self._arrays.files if name != "config"]

  def shape(self, name):
    return self._arrays[name].shape

  def read(self, name, rows=slice(None), columns=slice(None)):
    array = self._arrays[name]
    return array[(rows, columns)[: array.ndim]]


def open_toy(path):
  if not path.is_file():
    raise UserError(f"{path}: no such file")
  values = json.loads(str(np.load(path)["config"]))
  model = config_lib.Model(**values)

  def load(model, **kwargs):
    leaves = lm_leaves(model.config, TOY_NAMES)
    boxes = model.abstract()["lm"]
    return {"lm": assemble(boxes, leaves, Arrays(path), model.mesh, **kwargs)}

  return convert.Source(
    model=model,
    heads=config_lib.Heads.none(),
    load=load,
    tokenizer={"tokenizer.json": hf_checkpoints.tokenizer_json()},
    origin={"format": "toy", "path": str(path.absolute())},
  )


def write_toy(folder, target):
  leaves = lm_leaves(target.model.config, TOY_NAMES)
  tensors = disassemble(leaves, target.params["lm"])
  config = config_lib.Config(model=target.model.config).to_dict()["model"]
  np.savez(
    folder / "toy.npz",
    config=json.dumps(config),
    **{tensor.name: tensor.read(target.dtype) for tensor in tensors},
  )
  return convert.Written(sum(t.size() for t in tensors), "Toy")


TOY = convert.Format(
  help="a toy", metavar="FILE", open=open_toy, export_help="a toy",
  write=write_toy,
)  # fmt: skip


def test_a_format_is_one_entry(tmp_path, monkeypatch, arguments, capsys):
  monkeypatch.setitem(convert.FORMATS, "toy", TOY)
  mtpjax(*arguments("hf", hf_example(tmp_path / "source", {})))
  mtpjax("export", "toy", "run", "out")
  assert capsys.readouterr().out.splitlines()[-1].startswith("out: Toy, ")
  mtpjax("convert", "toy", "out/toy.npz", "again")
  ours, back = api.load("run"), api.load("again")
  jax.tree.map(np.testing.assert_array_equal, back.params, ours.params)
  texts = []
  for run in ("run", "again"):
    capsys.readouterr()
    mtpjax("generate", run, "--prompt", "w1 w2", "--max-new-tokens", "5")
    texts.append(capsys.readouterr().out)
  assert texts[0] == texts[1] and texts[0].strip()
  assert "no such file" in fails(capsys, "convert", "toy", "none", "more")
  with pytest.raises(SystemExit):
    cli.main(["convert", "toy", "--help"])
  assert "a toy" in capsys.readouterr().out
  line = fails(capsys, "convert", "tyo", "out/toy.npz", "more")
  assert "'tyo'" in line and "toy" in line.replace("'tyo'", "")
