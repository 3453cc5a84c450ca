"""Tokenizer folders as they are published: what lies beside, and saved."""

import hashlib
import json

import pytest
from chats import CHATML, IM_END, IM_START, write_chatml, write_folder

from mtpjax.data import load_tokenizer
from mtpjax.errors import UserError

TOKENS = ("<a>", "<b>", "<c>")  # ids 280, 281, 282


def load(folder, *arguments):
  return load_tokenizer(str(folder), *arguments)


def test_tokens_are_those_of_the_config(tmp_path):
  folder = write_chatml(tmp_path)
  tokenizer = load(folder)
  assert (tokenizer.bos_id, tokenizer.eos_ids) == (280, (281,))
  assert not tokenizer.adds_bos
  template = tokenizer.chat_template
  assert template.source == CHATML
  assert (template.bos_token, template.eos_token) == (IM_START, IM_END)
  # The file by itself: the usual names, and nothing of what lies beside it.
  alone = load(folder / "tokenizer.json")
  assert (alone.bos_id, alone.eos_ids) == (0, (1, 281))
  assert alone.chat_template is None


def test_all_ids_of_the_generation_config_end_a_text(tmp_path):
  for config, ids, expected in (
    ({"eos_token": "<b>"}, [282, 281, 280], (281, 282, 280)),
    ({"eos_token": "<b>"}, 281, (281,)),
    ({"eos_token": None}, [282], (282,)),
    (None, [282, 280, 282], (282, 280)),
    ({"eos_token": {"content": "<c>"}}, None, (282,)),
    # Nobody says it: the usual names.
    ({"eos_token": None}, None, (1,)),
  ):
    folder = tmp_path / str(ids) / str(expected)
    write_folder(
      folder, TOKENS, config=config, generation={"eos_token_id": ids}
    )
    assert load(folder).eos_ids == expected
    assert load(folder, "", ("<a>",)).eos_ids == (280,)


HF = {"model_type": "llama"}


@pytest.mark.parametrize(
  ("files", "expected"),
  [
    # What the usual library stops at, and its tokenizer's own.
    (
      {
        "config": HF | {"eos_token_id": 5},
        "tokenizer_config": {"eos_token": "</s>"},
      },
      (1, 5),
    ),
    ({"config": HF | {"eos_token_id": [280, 5, 280]}}, (280, 5)),
    (
      {
        "config": HF | {"text_config": {"eos_token_id": 282}},
        "generation_config": {"eos_token_id": [281], "temperature": 0.5},
        "tokenizer_config": {"eos_token": {"content": "<a>"}},
      },
      (280, 281, 282),
    ),
    ({"special_tokens_map": {"eos_token": {"content": "<b>"}}}, (281,)),
    (
      {
        "special_tokens_map": {"eos_token": "<b>"},
        "tokenizer_config": {"eos_token": "<a>"},
      },
      (280, 281),
    ),
    # The model's vocabulary may be larger; a run's configuration is none.
    ({"config": HF | {"eos_token_id": [999, 5]}}, (5,)),
    ({"config": {"data": {}, "eos_token_id": 5}}, (1,)),
    ({"config": [5]}, (1,)),
  ],
)
def test_a_text_ends_at_what_any_file_names(tmp_path, files, expected):
  folder = write_folder(tmp_path / "tok", TOKENS)
  for name, values in files.items():
    (folder / f"{name}.json").write_text(json.dumps(values))
  tokenizer = load(folder)
  assert tokenizer.eos_ids == expected
  # A run has a config.json of its own, and must stop there as well.
  saved = tmp_path / "saved"
  saved.mkdir()
  tokenizer.save(saved)
  assert not (saved / "config.json").exists()
  assert load(saved).eos_ids == expected
  if "generation_config" in files:
    kept = json.loads((saved / "generation_config.json").read_text())
    assert kept["temperature"] == 0.5


def test_byte_order_marks_before_json_and_templates_are_no_text(tmp_path):
  folder = write_folder(
    tmp_path / "tok", TOKENS, config={"eos_token": "<b>"},
    generation={"eos_token_id": 282}, template="{{ 'Hi' }}",
  )  # fmt: skip
  plain = load(folder)
  for file in folder.iterdir():
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
  marked = load(folder)
  assert marked.eos_ids == (281, 282)
  assert marked.fingerprint == plain.fingerprint
  assert marked.chat_template.source == "{{ 'Hi' }}"


def test_no_bos_is_said_by_null(tmp_path):
  for config, bos_id in (
    ({"bos_token": None}, None),
    ({}, 0),
    ({"bos_token": "<a>"}, 280),
  ):
    folder = write_folder(tmp_path / str(bos_id), TOKENS, config=config)
    assert load(folder).bos_id == bos_id
    assert load(folder, "<b>").bos_id == 281


def test_whether_a_text_begins_with_bos(tmp_path):
  assert load_tokenizer("bytes").adds_bos
  folder = write_folder(tmp_path / "plain")
  assert not load(folder).adds_bos
  for said in (True, False):
    (folder / "tokenizer_config.json").write_text(
      json.dumps({"add_bos_token": said})
    )
    assert load(folder).adds_bos is said
  (folder / "tokenizer_config.json").unlink()
  definition = json.loads((folder / "tokenizer.json").read_text())
  definition["post_processor"] = {
    "type": "TemplateProcessing",
    "single": [
      {"SpecialToken": {"id": "<s>", "type_id": 0}},
      {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
  }
  (folder / "tokenizer.json").write_text(json.dumps(definition))
  assert load(folder).adds_bos
  # What is encoded has no BOS all the same: it is the caller's to add.
  assert load(folder).encode("a") == load(folder / "tokenizer.json").encode("a")
  assert 0 not in load(folder).encode("a")


def test_where_the_template_is_from(tmp_path):
  several = [
    {"name": "tool_use", "template": "tools"},
    {"name": "default", "template": "plain"},
  ]
  for config, file, expected in (
    ({"chat_template": "one"}, None, "one"),
    ({"chat_template": several}, None, "plain"),
    ({"chat_template": several[:1]}, None, None),
    ({"chat_template": several}, "of the file", "of the file"),
    (None, "of the file", "of the file"),
    ({"chat_template": None}, None, None),
    ({}, None, None),
  ):
    folder = tmp_path / f"{expected}{file}{len(str(config))}"
    write_folder(folder, config=config, template=file)
    template = load(folder).chat_template
    assert (template and template.source) == expected
    if template:
      name = "chat_template.jinja" if file else "tokenizer_config.json"
      assert template.file == str(folder / name)


def test_a_saved_folder_is_the_same_tokenizer(tmp_path):
  folder = write_chatml(tmp_path / "tok")
  # Not as Python would write it: copies are exact.
  (folder / "generation_config.json").write_bytes(
    b'{ "eos_token_id" :\r\n[281, 0]}'
  )
  (folder / "chat_template.jinja").write_bytes("{{ 'é' }}\r\n".encode())
  (folder / "special_tokens_map.json").write_text("{}")
  tokenizer = load(folder)
  assert tokenizer.eos_ids == (281, 0)
  saved = tmp_path / "saved"
  saved.mkdir()
  # The configuration of a run, which is none of Hugging Face's.
  (saved / "config.json").write_text("not JSON")
  tokenizer.save(saved)
  names = {
    "tokenizer.json", "tokenizer_config.json", "generation_config.json",
    "chat_template.jinja",
  }  # fmt: skip
  assert {f.name for f in saved.iterdir()} == names | {"config.json"}
  for name in names:
    assert (saved / name).read_bytes() == (folder / name).read_bytes()
  again = load(saved)
  assert again.fingerprint == tokenizer.fingerprint
  assert again.eos_ids == tokenizer.eos_ids
  assert again.chat_template.source == tokenizer.chat_template.source
  alone = tmp_path / "alone"
  alone.mkdir()
  load(folder / "tokenizer.json").save(alone)
  assert [f.name for f in alone.iterdir()] == ["tokenizer.json"]


def test_the_fingerprint_without_a_template_is_of_ids_alone(tmp_path):
  folder = write_folder(tmp_path, TOKENS)
  definition = json.loads((folder / "tokenizer.json").read_text())

  def expected(**identity):
    text = json.dumps({"tokenizer": definition, **identity}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()

  plain = expected(bos=0, eos=[1])
  assert load(folder).fingerprint == plain
  assert load(folder / "tokenizer.json").fingerprint == plain
  config = folder / "tokenizer_config.json"
  config.write_text('{"model_max_length": 5, "add_bos_token": true}')
  assert load(folder).fingerprint == plain
  config.write_text('{"eos_token": "<a>"}')
  assert load(folder).fingerprint == expected(bos=0, eos=[280])
  config.write_text('{"chat_template": "x"}')
  with_template = expected(bos=0, eos=[1], chat_template="x")
  assert load(folder).fingerprint == with_template
  config.unlink()
  (folder / "chat_template.jinja").write_text("x")
  assert load(folder).fingerprint == with_template


@pytest.mark.parametrize(
  ("name", "text", "words"),
  [
    ("tokenizer_config.json", "{", "not valid JSON"),
    ("tokenizer_config.json", "[]", "no JSON object of fields but a list"),
    ("tokenizer_config.json", "[" * 100_000, "nested too deeply"),
    (
      "tokenizer_config.json",
      '{"a": ' + "9" * 5000 + "}",
      "a number that is too long",
    ),
    ("special_tokens_map.json", '{"eos_token": 5}', "eos_token 5 is neither"),
    ("special_tokens_map.json", "[", "not valid JSON"),
    ("generation_config.json", "{]", "not valid JSON"),
    ("generation_config.json", "5", "no JSON object of fields but a int"),
    ("tokenizer_config.json", '{"bos_token": 5}', "bos_token 5 is neither"),
    ("tokenizer_config.json", '{"eos_token": {}}', "eos_token {} is neither"),
    ("tokenizer_config.json", '{"add_bos_token": 1}', "add_bos_token 1"),
    ("tokenizer_config.json", '{"chat_template": 5}', "chat_template is"),
    ("tokenizer_config.json", '{"chat_template": [5]}', "chat_template is"),
    (
      "tokenizer_config.json",
      '{"chat_template": [{"name": "default", "template": 5}]}',
      "chat_template is",
    ),
    ("generation_config.json", '{"eos_token_id": "x"}', "eos_token_id 'x'"),
    ("generation_config.json", '{"eos_token_id": [true]}', "[True] is"),
    ("generation_config.json", '{"eos_token_id": [1, 999]}', "id 999 is not"),
    ("tokenizer_config.json", '{"bos_token": "<z>"}', "bos_token: '<z>' is"),
    ("tokenizer_config.json", '{"eos_token": "<z>"}', "eos_token: '<z>' is"),
    ("chat_template.jinja", b"\xff", "not UTF-8 at byte 0"),
    ("tokenizer_config.json", b'{"a": "\xff"}', "not UTF-8 at byte 7"),
  ],
)
def test_a_damaged_companion_is_named(tmp_path, name, text, words):
  folder = write_folder(tmp_path, TOKENS)
  raw = text if isinstance(text, bytes) else text.encode()
  (folder / name).write_bytes(raw)
  with pytest.raises(UserError) as caught:
    load(folder)
  message = str(caught.value)
  assert message.startswith(str(folder / name)) and words in message
  assert "\n" not in message
  assert load(folder / "tokenizer.json").eos_ids == (1,)


def test_tokens_that_are_named_win_over_bad_ones_of_the_files(tmp_path):
  folder = write_folder(
    tmp_path, TOKENS, config={"bos_token": "<z>", "eos_token": "<z>"},
    generation={"eos_token_id": 999},
  )  # fmt: skip
  named = load(folder, "<a>", ("<b>", "<c>"))
  assert (named.bos_id, named.eos_ids) == (280, (281, 282))
