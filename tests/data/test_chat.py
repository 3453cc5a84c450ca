"""Chat templates: their text, which of it is trained, and rows made of it."""

import json

import pytest
from chats import (
  CHATML,
  IM_END,
  IM_START,
  LLAMA3,
  LLAMA3_TOKENS,
  TALK,
  THINKING,
  VICUNA,
  write_chatml,
  write_folder,
)
from corpora import all_pieces, prepared, write_jsonl
from test_packing import fails
from test_tokenizers import fallback_path  # noqa: F401

from mtpjax.data import ChatTemplate, load_tokenizer, read_documents
from mtpjax.errors import UserError

SYSTEM = {"role": "system", "content": "Be brief"}
SMOL = (
  "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained "
  "by Hugging Face<|im_end|>\n"
)


def template(source):
  return ChatTemplate(source, "t.jinja", "<s>", "</s>")


def trained(source, messages=TALK):
  """The trained texts; all texts must join to the whole."""
  parts = template(source).split(messages, "here")
  assert "".join(t for t, _ in parts) == template(source).render(messages, "")
  return [text for text, on in parts if on]


def test_chatml_has_a_system_message_of_its_own_and_ends_as_asked():
  one = TALK[:1]
  hi = "<|im_start|>user\nHi<|im_end|>\n"
  chatml = template(CHATML)
  assert chatml.render(one, "here") == SMOL + hi
  text = chatml.render([SYSTEM, *one], "here", add_generation_prompt=True)
  assert text == (
    "<|im_start|>system\nBe brief<|im_end|>\n" + hi + "<|im_start|>assistant\n"
  )


def test_llama3_begins_with_bos_and_strips():
  messages = [{"role": "user", "content": "  Hi\n"}]
  text = ChatTemplate(LLAMA3, "", "<|begin_of_text|>").render(
    messages, "here", add_generation_prompt=True
  )
  assert text == (
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
  )


@pytest.mark.parametrize(
  ("source", "answers"),
  [
    (CHATML, ["Hello<|im_end|>\n", "See you<|im_end|>\n"]),
    (LLAMA3, ["Hello<|eot_id|>", "See you<|eot_id|>"]),
    (VICUNA, [" Hello</s>", " See you</s>"]),
    # Once a turn follows, thoughts are gone: what is left of it is trained.
    (
      THINKING,
      ["Hello<|im_end|>\n", "<think>\n\n</think>\n\nSee you<|im_end|>\n"],
    ),
  ],
)  # fmt: skip
def test_all_turns_of_the_assistant_are_trained_with_their_ends(
  source, answers
):
  assert trained(source) == answers
  assert trained(source, [*TALK, SYSTEM | {"role": "user"}])[0] == answers[0]


def test_turns_with_equal_words_are_told_apart():
  talk = [m | {"content": "OK"} for m in TALK]
  for source, messages in (
    (CHATML, [*talk, talk[1]]), (CHATML, talk), (THINKING, talk)
  ):  # fmt: skip
    parts = template(source).split(messages, "here")
    n = sum(m["role"] == "assistant" for m in messages)
    assert [on for _, on in parts].count(True) == n
    for (before, _), (text, on) in zip(parts, parts[1:], strict=False):
      if on:
        assert before.endswith("<|im_start|>assistant\n")
        assert text.endswith("OK<|im_end|>\n")


def test_an_assistant_may_begin_and_may_say_nothing():
  assert trained(CHATML, [TALK[1]]) == ["Hello<|im_end|>\n"]
  empty = [TALK[0], {"role": "assistant", "content": ""}]
  assert trained(CHATML, empty) == ["<|im_end|>\n"]
  assert trained(CHATML, TALK[:1]) == []
  # Cannot be rendered without a message: the first is found by its words.
  needs_one = "{{ messages[0].role + '|' }}" + CHATML
  assert trained(needs_one, TALK[1:3]) == ["Hello<|im_end|>\n"]


def test_a_turn_behind_another_generation_prompt_is_found_by_its_words():
  forced = CHATML.replace("assistant\n' }}", "assistant\n<think>' }}")
  assert forced != CHATML
  assert trained(forced) == ["Hello<|im_end|>\n", "See you<|im_end|>\n"]


def test_what_a_template_says_of_all_messages_confuses_no_turn():
  counted = "{{ messages|length }} messages" + CHATML
  assert trained(counted) == ["Hello<|im_end|>\n", "See you<|im_end|>\n"]


# What is said also stands where it is not said; or nowhere.
SUMMARY = "{{ messages[1].content|length }} characters: " + CHATML
SILENT = CHATML.replace("message['content'] +", "'...' +")
ECHOING = CHATML.replace(
  "message['content'] + ", "message['content'] + message['content'] + "
).replace("assistant\n' }}", "bot\n' }}")


@pytest.mark.parametrize("source", [SUMMARY, SILENT, ECHOING])
def test_a_turn_that_cannot_be_told_is_named(source):
  source = source.replace("assistant\n' }}", "bot\n' }}")
  with pytest.raises(UserError) as caught:
    template(source).split(TALK, "d.jsonl:7")
  message = str(caught.value)
  assert message.startswith("d.jsonl:7: message 1 (assistant): cannot tell")
  assert "t.jinja" in message and "\n" not in message


@pytest.mark.parametrize(
  ("source", "words"),
  [
    ("{{ raise_exception('roles must\nalternate') }}", "roles must alternate"),
    ("{{ messages[0].none.role }}", "none"),
    ("{% for m in messages %}", "endfor"),
    ("{{ 1 + messages }}", "unsupported operand"),
    ("{{ 1 / 0 }}", "division"),
    ("{{ messages.append(1) }}", "unsafe"),
    ("{{ messages.__class__.__mro__[1] }}", "unsafe"),
    ("{{ '\ud83d' }}", "surrogate"),
  ],
)
def test_what_a_template_raises_is_one_line(source, words):
  for run in (template(source).render, template(source).split):
    with pytest.raises(UserError) as caught:
      run(TALK, "d.jsonl:3")
    message = str(caught.value)
    assert message.startswith("d.jsonl:3: ") and "\n" not in message
    assert words in message


def test_the_environment_is_that_of_hugging_face():
  for source, text in (
    ("{{ {'b': '<é>', 'a': 1} | tojson }}", '{"b": "<é>", "a": 1}'),
    ("{{ {'b': 2, 'a': 1} | tojson(indent=1) }}", '{\n "b": 2,\n "a": 1\n}'),
    ("{% for m in messages %}{{ m.role }}{% break %}{% endfor %}", "user"),
    ("  {% if true %}\nx\n  {% endif %}\n", "x\n"),
    ("{{ tools is none }} {{ bos_token }} {{ eos_token }}", "True <s> </s>"),
    ("{{ strftime_now('%%d') }}", "%d"),
    ("{{ messages[1].get('name', 'nobody') }}", "nobody"),
    ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "Hi!"),
  ):
    assert template(source).render(TALK, "here") == text
  named = [TALK[0] | {"name": "Ann"}]
  assert template("{{ messages[0].name }}").render(named, "here") == "Ann"


def test_conversations_are_read_from_json_lines(tmp_path):
  pieces = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
  path = write_jsonl(
    tmp_path / "d.jsonl",
    [
      {"talk": [{"role": "user", "content": pieces, "name": "x"}, TALK[1]]},
      {"talk": "text"},
    ],
  )
  chat, text = read_documents(f"jsonl:{path}:talk")
  assert chat.name == "d.jsonl:1"
  assert chat.messages == (
    {"role": "user", "content": "ab", "name": "x"}, TALK[1]
  )  # fmt: skip
  # What a tokenizer is trained on.
  assert chat.parts == (("ab", False), ("Hello", True))
  assert text.parts == (("text", True),) and text.messages == ()


def test_invalid_text_of_messages_is_replaced_if_asked(tmp_path):
  path = write_jsonl(
    tmp_path / "d.jsonl", [{"m": [{"role": "user", "content": "a\ud83d"}]}]
  )
  with pytest.raises(UserError, match=r"message 0: lone surrogate U\+D83D"):
    list(read_documents(f"jsonl:{path}:m"))
  (document,) = read_documents(f"jsonl:{path}:m", True)
  assert document.messages[0]["content"] == "a\ufffd"


@pytest.mark.parametrize(
  ("value", "words"),
  [
    ([], "no list of messages"),
    (["Hi"], "message 0: str instead of an object"),
    ([TALK[0], {"role": "user"}], 'message 1: no "content"; there are role'),
    ([{"from": "a", "value": "b"}], 'no "role"; there are from, value'),
    ([{"role": 5, "content": ""}], '"role" is 5'),
    ([{"role": "", "content": ""}], "\"role\" is ''"),
    ([{"role": "user", "content": None}], "NoneType, neither a string nor"),
    ([{"role": "user", "content": [{"type": "image"}]}], "only texts"),
    ([{"role": "user", "content": ["a"]}], "only texts"),
    ([{"role": "user", "content": [{"type": "text"}]}], "only texts"),
  ],
)
def test_bad_messages_name_file_line_and_message(tmp_path, value, words):
  path = write_jsonl(tmp_path / "d.jsonl", [{"m": TALK}, {"m": value}])
  with pytest.raises(UserError) as caught:
    list(read_documents(f"jsonl:{path}:m"))
  message = str(caught.value)
  assert f"{path}:2: field 'm'" in message and words in message
  assert "\n" not in message


def test_a_conversation_is_no_completion(tmp_path):
  path = write_jsonl(tmp_path / "d.jsonl", [{"p": "a", "m": TALK}])
  with pytest.raises(UserError, match="'m': list instead of a string"):
    list(read_documents(f"jsonl:{path}:p,m"))


def rows_of(tmp_path, folder, records, **changes):
  """Prepares conversations; returns ([(ids, loss mask)], result)."""
  path = write_jsonl(tmp_path / "d.jsonl", records)
  config, result = prepared(
    tmp_path, sources=(f"jsonl:{path}:messages",), tokenizer=str(folder),
    row_length=128, validation_fraction=0.0, **changes,
  )  # fmt: skip
  return [(p[0], p[2]) for p in all_pieces(config.path, "train")], result


def test_rows_of_conversations_hold_and_train_what_they_should(tmp_path):
  folder = write_chatml(tmp_path / "tok")
  tokenizer = load_tokenizer(str(folder))
  # The name of a special token in a content is that token.
  last = {"role": "assistant", "content": f"{IM_START}!"}
  pieces, result = rows_of(
    tmp_path, folder, [{"messages": [SYSTEM, *TALK, TALK[0], last]}]
  )
  ((ids, mask),) = pieces
  start, end = (tokenizer.encode(t)[0] for t in (IM_START, IM_END))
  expected = []
  for message in [SYSTEM, *TALK, TALK[0]]:
    on = message["role"] == "assistant"
    header = tokenizer.encode(message["role"] + "\n")
    content = tokenizer.encode(message["content"])
    expected += [(i, False) for i in (start, *header)]
    newline = tokenizer.encode("\n")
    expected += [(i, on) for i in (*content, end, *newline)]
  expected += [(start, False)]
  expected += [(i, False) for i in tokenizer.encode("assistant\n")]
  expected += [
    (i, True) for i in (start, *tokenizer.encode("!"), end, *newline)
  ]
  # Neither BOS nor EOS is added, though the settings ask for both.
  assert list(zip(ids, mask, strict=True)) == expected
  assert result["splits"]["train"]["targets"] == sum(mask)
  # What is decoded begins where the first answer is trained.
  prompt = tokenizer.chat_template.render([SYSTEM, TALK[0]], "", True)
  n_prompt = len(tokenizer.encode(prompt))
  assert tokenizer.encode(prompt) == ids[:n_prompt]
  assert mask.index(True) == n_prompt


def test_parts_join_as_the_whole_where_texts_begin_with_a_space(
  tmp_path,
  fallback_path,  # noqa: F811
):
  folder = tmp_path / "tok"
  folder.mkdir()
  (folder / "tokenizer.json").write_bytes(fallback_path.read_bytes())
  (folder / "chat_template.jinja").write_text(VICUNA)
  tokenizer = load_tokenizer(str(folder))
  ((ids, mask),), _ = rows_of(tmp_path, folder, [{"messages": TALK[:2]}])
  whole = tokenizer.encode("<s>USER: Hi ASSISTANT: Hello</s>")
  assert ids == whole
  # Only the token that stands for the space before the answer, not another
  # that a text by itself would begin with.
  found = tokenizer.token_bytes()
  trained_ids = [i for i, on in zip(ids, mask, strict=True) if on]
  assert b"".join(found.get(i, b"</s>") for i in trained_ids) == b" Hello</s>"


def test_conversations_and_texts_in_one_file(tmp_path):
  folder = write_chatml(tmp_path / "tok")
  tokenizer = load_tokenizer(str(folder))
  records = [
    {"messages": "plain"}, {"messages": TALK}, {"messages": TALK[:1]}
  ]  # fmt: skip
  pieces, result = rows_of(tmp_path, folder, records)
  assert result["splits"]["train"]["documents"] == len(pieces) == 2
  # Nothing of it would be trained.
  assert result["skipped_documents"] == 1
  ends = tokenizer.bos_id, tokenizer.eos_ids[0]
  plain = [ends[0], *tokenizer.encode("plain"), ends[1]]
  assert plain in [ids for ids, _ in pieces]


def test_the_fingerprint_covers_messages_and_template(tmp_path):
  folder = write_chatml(tmp_path / "tok")
  other = write_chatml(tmp_path / "other")
  (other / "chat_template.jinja").write_text(CHATML.replace("SmolLM", "Other"))
  changed = [dict(m) for m in TALK]
  changed[0]["role"] = "system"
  named = [TALK[0] | {"name": "Ann"}, *TALK[1:]]
  ids = set()
  tools = {"tools": [{"name": "f"}]}
  for i, (tok, talk, more) in enumerate(
    [
      (folder, TALK, {}), (other, TALK, {}), (folder, changed, {}),
      (folder, named, {}), (folder, TALK, tools),
    ]
  ):  # fmt: skip
    (tmp_path / str(i)).mkdir()
    _, result = rows_of(tmp_path / str(i), tok, [{"messages": talk} | more])
    ids.add(result["id"])
  assert len(ids) == 5
  _, again = rows_of(tmp_path / "0", folder, [{"messages": TALK}])
  assert again["kept"]


def test_conversations_need_a_template(tmp_path):
  record = [{"messages": TALK}]
  words = "d.jsonl:1", "no chat template", "--data.tokenizer", "chat_template"
  fails(lambda: rows_of(tmp_path, "bytes", record), *words)
  folder = write_folder(tmp_path / "tok", (IM_START, IM_END))
  fails(lambda: rows_of(tmp_path, folder, record), *words)
  write_chatml(folder)
  alone = folder / "tokenizer.json"
  fails(lambda: rows_of(tmp_path, alone, record), *words)
  assert not (tmp_path / "data").exists()
  refusing = write_folder(
    tmp_path / "no", LLAMA3_TOKENS, template="{{ raise_exception('no') }}"
  )
  fails(
    lambda: rows_of(tmp_path, refusing, record),
    "d.jsonl:1: the chat template of", "no/chat_template.jinja fails: no",
  )  # fmt: skip


def test_template_files_are_data(tmp_path):
  """A template is no part of the program: it can neither read nor write."""
  source = "{{ ''.__class__.__base__.__subclasses__() }}"
  folder = write_folder(tmp_path / "tok", template=source)
  tokenizer = load_tokenizer(str(folder))
  with pytest.raises(UserError, match="unsafe"):
    tokenizer.chat_template.render(json.loads(json.dumps(TALK)), "here")
