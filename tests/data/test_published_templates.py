"""Which text is trained under the templates that models are published with."""

import hashlib
import json
import pathlib

import pytest
from chats import TALK

from mtpjax.data import ChatTemplate, read_documents
from mtpjax.errors import UserError

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "chat_templates"
# By hand, after those of Mistral, Zephyr, Gemma, Phi and Llama 3.1.
MISTRAL = (
  "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != "
  "(loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}"
  "{% endif %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
  "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"
)
ZEPHYR = (
  "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + "
  "'\n' }}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>' }}"
  "{% endif %}{% endfor %}"
)
GEMMA = (
  "{{ bos_token }}{% for m in messages %}{% set role = 'model' if m.role == "
  "'assistant' else m.role %}{{ '<start_of_turn>' + role + '\n' + m.content | "
  "trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}"
  "{{ '<start_of_turn>model\n' }}{% endif %}"
)
PHI = (
  "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n'"
  " }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}"
  "{% else %}{{ eos_token }}{% endif %}"
)
# The last turn ends with another token than those before.
HARMONY = (
  "{% for m in messages %}{{ '<|start|>' + m.role + '<|message|>' + m.content"
  " }}{{ '<|return|>' if loop.last and m.role == 'assistant' and not "
  "add_generation_prompt else '<|end|>' }}{% endfor %}"
  "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
# Beside a call of a tool, contents are not written.
LLAMA31 = (
  "{% for m in messages %}{{ '<|header|>' + m.role + '<|end_header|>\n\n' }}"
  "{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson + '<|eom_id|>' }}"
  "{% else %}{{ m.content | trim + '<|eot_id|>' }}{% endif %}{% endfor %}"
  "{% if add_generation_prompt %}{{ '<|header|>assistant<|end_header|>\n\n' }}"
  "{% endif %}"
)
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}
NO_THOUGHT = "<think>\n\n</think>\n\n"


def user(text):
  return {"role": "user", "content": text}


def answer(text, **more):
  return {"role": "assistant", "content": text} | more


CALLING = [
  user("2+2?"), answer("", tool_calls=[CALL]),
  {"role": "tool", "content": "4"}, answer("It is 4"),
]  # fmt: skip


def golden(name):
  return (GOLDEN / name).read_text(encoding="utf-8")


def trained(source, messages, fields=None):
  """The trained texts; all texts must join to the whole."""
  template = ChatTemplate(source, "t.jinja", "<s>", "</s>")
  parts = template.split(messages, "here", fields or {})
  whole = template.render(messages, "here", fields=fields or {})
  assert "".join(text for text, _ in parts) == whole
  return [text for text, on in parts if on]


def test_the_template_is_qwens_own():
  digest = hashlib.sha256((GOLDEN / "qwen3.jinja").read_bytes()).hexdigest()
  assert digest in (GOLDEN / "ORIGIN.md").read_text()


@pytest.mark.parametrize(
  ("messages", "expected"),
  [
    ([user("Hi"), answer("a")], [NO_THOUGHT + "a"]),
    ([user("a"), answer("a"), user("a"), answer("a")], ["a", NO_THOUGHT + "a"]),
    ([user("Hi"), answer("")], [NO_THOUGHT]),
    # Thoughts of earlier turns are left out.
    (
      [
        user("Hi"), answer("<think>\nR\n</think>\n\nHello"), user("Bye"),
        answer("<think>\nQ\n</think>\n\nSee you"),
      ],
      ["Hello", "<think>\nQ\n</think>\n\nSee you"],
    ),
    (
      [user("Hi"), answer("A", reasoning_content="R"), user("B"), answer("C")],
      ["A", NO_THOUGHT + "C"],
    ),
    (
      CALLING,
      [
        '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>',
        NO_THOUGHT + "It is 4",
      ],
    ),
    ([answer("Me"), user("Hi"), answer("x")], ["Me", NO_THOUGHT + "x"]),
  ],
)  # fmt: skip
def test_turns_of_qwen3(messages, expected):
  ends = [text + "<|im_end|>\n" for text in expected]
  assert trained(golden("qwen3.jinja"), messages) == ends


@pytest.mark.parametrize("messages", [TALK, CALLING, TALK[:2]])
def test_marks_of_a_template_decide(messages):
  """A second way: where earlier thoughts are kept, both must agree."""
  marked = golden("qwen3_training.jinja")
  start, end = "{%- generation %}", "{%- endgeneration %}"
  assert marked.count(start) == marked.count(end) == 1
  plain = marked.replace(start, "").replace(end, "")
  assert trained(marked, messages) == trained(plain, messages) != []
  # Only what is marked, wherever it is and whoever speaks.
  some = (
    "{% for m in messages %}{{ m.role }}:{% if loop.first %}{% generation %}"
    "{{ m.content }}{% endgeneration %}{% generation %}!{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
  )
  assert trained(some, messages) == [messages[0]["content"] + "!"]


@pytest.mark.parametrize(
  ("source", "expected"),
  [
    (MISTRAL, [" Hello</s>", " See you</s>"]),
    (ZEPHYR, ["\nHello</s>\n", "\nSee you</s>\n"]),
    (GEMMA, ["Hello<end_of_turn>\n", "See you<end_of_turn>\n"]),
    (PHI, ["Hello<|end|>\n", "See you<|end|>\n</s>"]),
    (HARMONY, ["<|message|>Hello<|end|>", "<|message|>See you<|return|>"]),
  ],
)
def test_turns_of_other_templates(source, expected):
  assert trained(source, TALK) == expected
  # What the model is given is where its turn begins.
  template = ChatTemplate(source, "t.jinja", "<s>", "</s>")
  prompt = template.render(TALK[:1], "here", add_generation_prompt=True)
  assert template.split(TALK, "here")[0] == (prompt, False)


def test_a_call_is_trained_where_contents_beside_it_are_not_written():
  assert trained(LLAMA31, CALLING) == [
    '{"name": "add", "arguments": {"a": 2}}<|eom_id|>', "It is 4<|eot_id|>"
  ]  # fmt: skip


def write_records(path, *records):
  path.write_text("".join(json.dumps(record) + "\n" for record in records))
  return f"jsonl:{path}:messages"


@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}])
def test_a_call_needs_no_content(tmp_path, content):
  call = {"role": "assistant", "tool_calls": [CALL]} | content
  spec = write_records(
    tmp_path / "d.jsonl", {"messages": [user("2+2?"), call, *CALLING[2:]]}
  )
  (document,) = read_documents(spec)
  assert document.messages == tuple(CALLING)
  for nothing in ([], None):
    call = {"role": "assistant", "tool_calls": nothing, "content": None}
    spec = write_records(tmp_path / "d.jsonl", {"messages": [call]})
    with pytest.raises(UserError, match='d.jsonl:1: .*"content" is NoneType'):
      list(read_documents(spec))


def test_tools_and_other_variables_reach_the_template(tmp_path, capsys):
  records = [
    {"messages": TALK[:2], "tools": [TOOL], "id": 7},
    {"messages": TALK[:2], "tools": json.dumps([TOOL])},
    {"messages": TALK[:2], "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": TALK[:2], "enable_thinking": False, "tools": None},
  ]
  documents = list(
    read_documents(write_records(tmp_path / "d.jsonl", *records))
  )
  assert [d.template_fields for d in documents] == [
    {"tools": [TOOL]}, {"tools": [TOOL]}, {"enable_thinking": False},
    {"enable_thinking": False},
  ]  # fmt: skip
  qwen3 = ChatTemplate(golden("qwen3.jinja"), "qwen3")
  texts = [
    qwen3.render(d.messages, d.name, True, d.template_fields) for d in documents
  ]
  assert json.dumps(TOOL) in texts[0] and texts[0] == texts[1]
  assert texts[2] == texts[3] and texts[2].endswith(NO_THOUGHT)
  assert "tools" not in texts[2]
  # Tools are part of what is trained behind.
  first, *_ = qwen3.split(TALK[:2], "here", documents[0].template_fields)
  assert json.dumps(TOOL) in first[0] and not first[1]
  assert capsys.readouterr().err == ""
  # A template without tools: said, once.
  zephyr = ChatTemplate(ZEPHYR, "zephyr", "<s>", "</s>")
  for _ in range(2):
    zephyr.split(TALK, "here", documents[0].template_fields)
  said = capsys.readouterr().err
  assert said.count("\n") == 1 and "zephyr" in said and "'tools'" in said


@pytest.mark.parametrize(
  ("fields", "words"),
  [
    ({"tools": {"name": "f"}}, "tools is not a list of objects"),
    ({"tools": ["f"]}, "tools is not a list of objects"),
    ({"tools": "[{"}, "tools is a string that is not JSON"),
    ({"documents": 5}, "documents is not a list of objects"),
    ({"enable_thinking": "no"}, "enable_thinking is str, neither true nor"),
    ({"chat_template_kwargs": [1]}, "chat_template_kwargs is list, not an"),
    ({"chat_template_kwargs": {"messages": 1}}, "sets 'messages'"),
    ({"tools": [{"name": "a\ud83d"}]}, "lone surrogate U+D83D"),
  ],
)
def test_bad_variables_are_named(tmp_path, fields, words):
  spec = write_records(tmp_path / "d.jsonl", {"messages": TALK} | fields)
  with pytest.raises(UserError) as caught:
    list(read_documents(spec))
  message = str(caught.value)
  assert "d.jsonl:1" in message and words in message and "\n" not in message
