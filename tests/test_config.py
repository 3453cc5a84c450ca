"""Configurations: checked, overridden, written and read back."""

import dataclasses
import json

import pytest

from mtpjax import config as config_lib
from mtpjax.config import Config
from mtpjax.errors import UserError

# A value unlike the default for every field, by the type of the default.
UNLIKE = {
  "model.vocab_size": 300, "model.d_model": 64, "model.n_layers": 9,
  "model.n_attention_heads": 12, "model.n_kv_heads": 2, "model.d_head": 16,
  "model.d_ff": 100, "model.rope_theta": 5e5, "model.norm_eps": 1e-6,
  "model.tied_embeddings": True, "model.dtype": "float32",
  "model.param_dtype": "bfloat16", "model.remat": "full",
  "model.attention": "cudnn", "heads.kind": "medusa",
  "heads.offsets": (1, 3, 8), "heads.tap": "last", "heads.matched": False,
  "loss.mode": "remat", "loss.chunk_tokens": 7,
  "loss.weights": (1.0, 0.5, 0.1), "loss.z_loss": 1e-4,
  "data.sources": ("text:a,b", "jsonl:x:y"), "data.row_length": 64,
  "train.batch_size": 12, "train.accumulation": 3,
  "optim.peak_lr": 0.1 + 0.2, "mesh.data": -1, "decode.mode": "next",
}  # fmt: skip


def values(config):
  return {
    path: getattr(getattr(config, path.split(".")[0]), path.split(".")[1])
    for path, _ in config_lib.fields()
  }


def refused(changes, *words):
  """Asserts that an override is a UserError of one line with these words."""
  with pytest.raises(UserError) as error:
    config_lib.override(Config(), changes)
  text = str(error.value)
  assert "\n" not in text and len(text) < 300
  for word in words:
    assert word in text


def test_a_configuration_survives_json(tmp_path):
  config = config_lib.override(Config(), UNLIKE)
  before = values(Config())
  assert all(values(config)[path] != before[path] for path in UNLIKE)
  config.save(tmp_path / "config.json")
  again = config_lib.load_config(tmp_path / "config.json")
  assert again == config
  assert [type(v) for v in values(again).values()] == [
    type(v) for v in values(config).values()
  ]
  assert list(tmp_path.iterdir()) == [tmp_path / "config.json"]


@pytest.mark.parametrize(
  "path, text, value",
  [
    ("optim.peak-lr", "3e-4", 3e-4),
    ("optim.peak_lr", "1", 1.0),
    ("model.n_layers", "3", 3),
    ("model.tied-embeddings", "true", True),
    ("heads.matched", "False", False),
    ("heads.offsets", "1,2,5", (1, 2, 5)),
    ("heads.offsets", " 1, 2", (1, 2)),
    ("heads.offsets", "1,", (1,)),
    ("loss.weights", "1,.5,.25,0", (1.0, 0.5, 0.25, 0.0)),
    ("loss.weights", "", ()),
    ("data.path", "3", "3"),
    # Texts are parted by semicolons: they may hold commas themselves.
    ("data.eos_tokens", "<a>;<b>", ("<a>", "<b>")),
    ("data.sources", "jsonl:x:a,b", ("jsonl:x:a,b",)),
    ("mesh.data", "-1", -1),
  ],
)
def test_overrides_are_read_with_the_type_of_the_field(path, text, value):
  config = config_lib.override(Config(), {path: text})
  got = values(config)[path.replace("-", "_")]
  assert got == value and type(got) is type(value)
  changed = {p for p, v in values(config).items() if v != values(Config())[p]}
  assert changed <= {path.replace("-", "_")}


def test_fields_that_need_each_other_change_together():
  # Either alone would be refused.
  config = config_lib.override(
    Config(), {"loss.weights": "1,2", "heads.offsets": "1,2"}
  )
  assert config.loss.weights == (1.0, 2.0)


@pytest.mark.parametrize(
  "changes, words",
  [
    ({"optim.peak_rl": "1"}, ["optim.peak_rl", "did you mean optim.peak_lr?"]),
    ({"modle.d-model": "1"}, ["did you mean model.d_model?"]),
    ({"zzz": "1"}, ["zzz: no such configuration field"]),
    ({"model.n_layers": "3.5"}, ["model.n_layers: '3.5'", "int"]),
    ({"optim.peak_lr": "fast"}, ["optim.peak_lr: 'fast'", "float"]),
    ({"heads.matched": "yes"}, ["heads.matched: 'yes'", "true|false"]),
    ({"heads.offsets": "1,b"}, ["heads.offsets: '1,b'", "int,..."]),
    ({"heads.offsets": "1,3,2"}, ["heads.offsets: (1, 3, 2)"]),
    ({"heads.offsets": "1,2,2"}, ["heads.offsets: (1, 2, 2)"]),
    ({"heads.offsets": "0,1"}, ["heads.offsets: (0, 1)"]),
    ({"heads.offsets": "2,3"}, ["heads.offsets: (2, 3)", "begin with 1"]),
    ({"heads.offsets": ""}, ["heads.offsets: ()"]),
    ({"heads.offsets": "1,8", "data.row_length": "8"},
     ["data.row_length: 8", "heads.offsets"]),
    ({"loss.weights": "1,2"}, ["loss.weights: (1.0, 2.0)", "(1, 2, 3, 4)"]),
    ({"loss.weights": "1,1,1,-1"}, ["loss.weights"]),
    ({"loss.weights": "1,1,1,nan"}, ["loss.weights"]),
    ({"loss.z_loss": "-1"}, ["loss.z_loss: -1.0"]),
    ({"loss.mode": "fast"}, ["loss.mode: 'fast'", "fused, remat, unrolled"]),
    ({"heads.tap": "first"}, ["heads.tap: 'first'"]),
    ({"model.dtype": "float8"}, ["model.dtype: 'float8'"]),
    ({"model.n_kv_heads": "3"}, ["model.n_kv_heads: 3", "8"]),
    ({"model.d_head": "5"}, ["model.d_head: 5", "even"]),
    ({"model.n_layers": "0"}, ["model.n_layers: 0", "greater than 0"]),
    ({"model.n_layers": "1"}, ["model.n_layers: 1", "--heads.tap last"]),
    ({"model.vocab_size": "-1"}, ["model.vocab_size: -1"]),
    ({"optim.peak_lr": "nan"}, ["optim.peak_lr"]),
    ({"optim.warmup_steps": "2000"}, ["optim.warmup_steps: 2000"]),
    ({"optim.clip_norm": "-1"}, ["optim.clip_norm: -1.0", ">= 0"]),
    ({"optim.clip_norm": "nan"}, ["optim.clip_norm"]),
    ({"optim.weight_decay": "-0.1"}, ["optim.weight_decay: -0.1"]),
    ({"optim.final_lr_fraction": "-1"}, ["optim.final_lr_fraction: -1.0"]),
    ({"optim.b1": "1"}, ["optim.b1: 1.0", "below 1"]),
    ({"optim.b2": "-0.1"}, ["optim.b2: -0.1"]),
    ({"train.eval_batches": "0"}, ["train.eval_batches: 0"]),
    ({"train.eval_every": "-1"}, ["train.eval_every: -1"]),
    ({"train.peak_tflops": "-1"}, ["train.peak_tflops: -1.0"]),
    ({"data.max_documents": "-1"}, ["data.max_documents: -1"]),
    ({"decode.cache_tokens": "-1"}, ["decode.cache_tokens: -1"]),
    ({"decode.seed": "-1"}, ["decode.seed: -1"]),
    ({"decode.lookup_ngram": "17"}, ["decode.lookup_ngram: 17", "1 to 16"]),
    ({"decode.lookup_ngram": "0"}, ["decode.lookup_ngram: 0"]),
    ({"decode.chunk_passes": "2147483648"}, ["passes: 2147483648"]),
    ({"model.n_layers": "9" * 5000}, ["model.n_layers: '9999", "int"]),
    ({"model.tied_embeddings": 10**5000}, ["<int too large to show>"]),
    ({"train.accumulation": "3"}, ["train.batch_size: 16", "= 3"]),
    ({"data.sources": ""}, ["data.sources"]),
    ({"data.validation_fraction": "1"}, ["data.validation_fraction: 1.0"]),
    ({"mesh.data": "0"}, ["mesh: (0, 1, 1)"]),
  ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_it(changes, words):
  refused(changes, *words)


def test_the_largest_values_are_allowed_too():
  changes = {"decode.lookup_ngram": 16, "decode.chunk_passes": (1 << 31) - 1}
  got = values(config_lib.override(Config(), changes))
  assert all(got[path] == value for path, value in changes.items())


def test_zero_is_allowed_where_it_means_off():
  for path in (
    "optim.clip_norm", "optim.weight_decay", "optim.final_lr_fraction",
    "optim.b1", "train.eval_every", "train.peak_tflops", "data.max_documents",
    "decode.cache_tokens", "decode.seed",
  ):  # fmt: skip
    assert values(config_lib.override(Config(), {path: "0"}))[path] == 0


def test_one_layer_is_enough_where_no_head_needs_another():
  for changes in ({"heads.offsets": "1"}, {"heads.tap": "last"}):
    config_lib.override(Config(), {"model.n_layers": "1"} | changes)


@pytest.mark.parametrize(
  "offsets, n_extra, chain_length",
  [((1,), 0, 0), ((1, 2, 3, 4), 3, 3), ((1, 2, 4, 5), 3, 1), ((1, 3), 1, 0)],
)
def test_a_chain_is_the_unbroken_run_of_offsets(offsets, n_extra, chain_length):
  heads = config_lib.Heads(offsets=offsets)
  assert (heads.n_extra, heads.chain_length) == (n_extra, chain_length)


def test_differences_are_those_of_identity():
  old = Config()
  new = config_lib.override(
    old,
    {
      "model.d_model": 128,
      "heads.kind": "linear",
      "train.seed": 4,
      # These may change when a run is resumed.
      "model.remat": "full",
      "loss.mode": "unrolled",
      "loss.chunk_tokens": 3,
      "mesh.fsdp": 8,
      "train.steps": 7,
      "train.accumulation": 2,
      "data.path": "elsewhere",
      "data.tokenizer": "elsewhere/tokenizer.json",
    },
  )
  assert config_lib.differences(old, new) == [
    ("model.d_model", 256, 128),
    ("heads.kind", "block", "linear"),
    ("train.seed", 0, 4),
  ]
  assert config_lib.differences(old, old) == []


def test_what_decides_the_parameters_and_the_data_is_identity():
  may_change = {
    path for path, f in config_lib.fields() if f.metadata["may_change"]
  }
  sections = {path.split(".")[0] for path in may_change}
  # Never of these, beside how the same model is computed and stored, and where
  # data and tokenizer lie: fingerprints say what they are.
  assert "heads" not in sections
  decisive = ("model", "data", "optim")
  assert {p for p in may_change if p.split(".")[0] in decisive} == {
    "model.remat", "model.attention", "data.path", "data.tokenizer",
    # What a schedule is stretched by, which is said when it happens.
    "optim.decay_steps",
  }  # fmt: skip


def test_every_field_has_help_and_cannot_be_assigned():
  for path, field in config_lib.fields():
    assert field.metadata["help"].strip(), path
  with pytest.raises(dataclasses.FrozenInstanceError):
    Config().model.d_model = 3


@pytest.mark.parametrize(
  "source, variant, words",
  [
    (None, "", "no such file"),
    ("x = 1", "", "defines no function config()"),
    ("def config(): return 3", "", "returned int"),
    ("def config(): return 3", "big", "takes no variant"),
    ("def config(variant): return 3", "", "give --variant"),
  ],
)
def test_an_experiment_that_is_none_is_one_line(
  tmp_path, source, variant, words
):
  path = tmp_path / "experiment.py"
  if source is not None:
    path.write_text(source)
  with pytest.raises(UserError, match="^experiment ") as error:
    config_lib.load_experiment(path, variant)
  assert "\n" not in str(error.value)
  assert words in str(error.value) and str(path) in str(error.value)


IMPORTS = "from mtpjax.config import Config, Data, Heads, Model, Optim\n"


@pytest.mark.parametrize(
  "source, line, words",
  [
    ("def config():\n  return Config(optim=Optim(lr=1e-3))", 3,
     ["'lr'", "did you mean peak_lr?"]),
    ("def config():\n  return Config(\n    optim=Optim(\n      peaklr=1,\n"
     "    ),\n  )", 4, ["peak_lr"]),
    ("def config():\n  return Config(optimizer=Optim())", 3,
     ["'optimizer'", "did you mean optim?"]),
    ("def config():\n  return Config(optim=Optim(peak_lr='3e-4'))", 3,
     ["optim.peak_lr: '3e-4' is not of the form float"]),
    ("def config():\n  return Config(model=Model(n_layers=2.0))", 3,
     ["model.n_layers: 2.0 is not of the form int"]),
    ("def config():\n  return Config(data=Data(sources=('a')))", 3,
     ["data.sources: 'a'", "('a',)"]),
    ("def config():\n  return Config(heads=Heads(offsets=2))", 3,
     ["heads.offsets: 2"]),
    ("def config():\n  return Config(Optim())", 3,
     ["model: Optim(", "is not a mtpjax.config.Model"]),
    ("def config():\n  return Config(optim=Optim(peak_lr=-1))", 3,
     ["optim.peak_lr: -1 must be greater than 0"]),
    ("def config():\n  c = Config()\n  c.optim.peak_lr = 1\n  return c", 4,
     ["cannot assign to field 'peak_lr'"]),
    ("def config():\n  return Confg()", 3, ["NameError", "'Confg'", "Config"]),
    ("def config(:\n  return", 2, ["SyntaxError"]),
    ("def config():\nreturn Config()", 3, ["IndentationError"]),
    ("x = '", 2, ["SyntaxError"]),
    ("from mtpjax.config import Optin", 2, ["'Optin'", "did you mean Optim?"]),
    ("import no_such_package", 2, ["pip install no_such_package"]),
    ("raise SystemExit('install it')", 2, ["install it"]),
    ("def config():\n  return [][3]", 3, ["IndexError"]),
    ("def config():\n  raise ValueError('two\\nlines')", 3, ["two"]),
    ("1 / 0", 2, ["ZeroDivisionError"]),
    ("config = 3", None, ["config is 3, not a function"]),
    ("config = Config()", None, ["not a function"]),
    ("async def config(): pass", None, ["returned coroutine"]),
    ("def config(a, b): pass", None, ["config(a, b)", "variant alone"]),
    ("def config(*, a): pass", None, ["config(*, a)"]),
    ("def config():\n  return {}", None, ["returned dict"]),
    ("\0", None, ["null bytes"]),
  ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_mistake_in_an_experiment_names_its_line(
  tmp_path, source, line, words
):
  path = tmp_path / "[mine].py"
  path.write_text(IMPORTS + source)
  with pytest.raises(UserError) as error:
    config_lib.load_experiment(path)
  text = str(error.value)
  where = f"experiment {path}" + (f", line {line}: " if line else "")
  assert text.startswith(where)
  for word in words:
    assert word in text


def test_an_experiment_that_is_not_of_utf_8(tmp_path):
  path = tmp_path / "mine.py"
  path.write_bytes(b"x = 1\ny = '\xff'\n")
  with pytest.raises(UserError, match="line 2: SyntaxError"):
    config_lib.load_experiment(path)


def test_an_experiment_is_read_as_it_is_now(tmp_path):
  # Within a second, and as long as before: by its time it is the same.
  path = tmp_path / "mine.py"
  for rate in (0.1, 0.2, 0.3):
    path.write_text(
      f"{IMPORTS}def config(): return Config(optim=Optim(peak_lr={rate}))"
    )
    assert config_lib.load_experiment(path).optim.peak_lr == rate
  assert list(tmp_path.iterdir()) == [path]


def test_data_classes_of_an_experiment_find_their_module(tmp_path):
  path = tmp_path / "mine.py"
  path.write_text(
    "from __future__ import annotations\n"
    "import dataclasses, typing\n"
    "from mtpjax.config import Config\n"
    "@dataclasses.dataclass\n"
    "class Own:\n"
    "  x: typing.ClassVar[int] = 3\n"
    "def config(): return Config()\n"
  )
  assert config_lib.load_experiment(path) == Config()


@pytest.mark.parametrize(
  "name, words",
  [
    ("", ["a folder"]),
    ("quickstar", ["did you mean quickstart?", "mtpjax list"]),
    ("experiments/quickstart.py", ["no such file", "mtpjax list"]),
    ("folder", ["a folder"]),
    ("notes.txt", ["must end in .py"]),
    ("/dev/null", ["not a file"]),
  ],
)
def test_no_experiment_of_that_name(tmp_path, monkeypatch, name, words):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "folder").mkdir()
  (tmp_path / "notes.txt").touch()
  with pytest.raises(UserError, match="^experiment ") as error:
    config_lib.load_experiment(name)
  for word in words:
    assert word in str(error.value)


def test_built_in_experiments_by_name_unless_there_is_a_file(
  tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  names = [each.name for each in config_lib.built_in_experiments()]
  assert names == ["quickstart", "smollm2_medusa"]
  for each in config_lib.built_in_experiments():
    (tmp_path / each.name).mkdir()  # no file
    config = config_lib.load_experiment(each.name)
    assert config == config_lib.load_experiment(each.path)
    assert each.title and "Expected: " in each.expected
  (tmp_path / "quickstart.py").write_text("1 / 0")
  with pytest.raises(UserError, match="ZeroDivisionError"):
    config_lib.load_experiment("quickstart.py")


def test_sections_check_their_values_where_they_are_made():
  # As lists are turned into tuples, a configuration is equal to itself read.
  heads = config_lib.Heads(offsets=[1, 2])
  assert heads.offsets == (1, 2)
  assert hash(heads) == hash(config_lib.Heads(offsets=(1, 2)))
  for path, field in config_lib.fields():
    section, name = path.split(".")
    kind = type(getattr(Config(), section))
    for value in (None, object(), {1}, b"x"):
      with pytest.raises(UserError, match=f"^{path}: .* not of the form"):
        kind(**{name: value})
    if field.type in (int, float):
      for value in ("1", float("nan"), float("inf"), 1 << 40):
        if (field.type, value) != (float, 1 << 40):
          with pytest.raises(UserError, match=f"^{path}: "):
            kind(**{name: value})


def test_an_experiment_gets_its_variant(tmp_path):
  path = tmp_path / "experiment.py"
  path.write_text(
    "from mtpjax import config as c\n"
    "def config(variant='small'):\n"
    "  return c.Config(model=c.Model(d_ff=10 * len(variant)))\n"
  )
  assert config_lib.load_experiment(path).model.d_ff == 50
  assert config_lib.load_experiment(path, "big").model.d_ff == 30


@pytest.mark.parametrize(
  "content, words",
  [
    (None, "no such file"),
    ("{", "not valid JSON"),
    ('{"model": {"width": 3}}', "model.width: no such configuration field"),
    ('{"model": {"d_model": "wide"}}', "model.d_model: 'wide'"),
  ],
)
def test_a_file_that_is_no_configuration_is_one_line(tmp_path, content, words):
  path = tmp_path / "config.json"
  if content is not None:
    path.write_text(content)
  with pytest.raises(UserError) as error:
    config_lib.load_config(path)
  assert "\n" not in str(error.value) and words in str(error.value)


def test_a_file_may_leave_fields_out():
  # As one written before the field existed does.
  values = {"model": {"d_model": 64}}
  config = config_lib.config_from_dict(json.loads(json.dumps(values)))
  assert config == Config(model=config_lib.Model(d_model=64))


@pytest.mark.parametrize(
  "values",
  [
    {"model": {"d_model": 1.5}},
    {"model": {"d_model": True}},
    {"model": {"d_model": None}},
    {"heads": {"matched": 1}},
    {"heads": {"offsets": [1, "a"]}},
    {"heads": {"offsets": 2}},
    {"model": 3},
    ["model"],
  ],
)
def test_a_hand_edited_file_with_wrong_types_is_one_line(values, tmp_path):
  path = tmp_path / "config.json"
  path.write_text(json.dumps(values))
  with pytest.raises(UserError) as error:
    config_lib.load_config(path)
  assert "\n" not in str(error.value)
