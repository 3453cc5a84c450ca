"""Chats as prompts, several EOS ids, and answers that can be trained on."""

import dataclasses
import io
import json

import pytest
from chats import TALK, write_folder, write_llama2

import mtpjax
from mtpjax import api, cli, config, decode
from mtpjax.api.prompts import read_prompt
from mtpjax.data import load_tokenizer, read_documents

WORKDIR = "runs/quickstart"
DECODE = decode.generate
# Within the 258 ids of the tiny run.
TEMPLATE = (
  "{% for m in messages %}{{ '<s>' + m.role + ':' + m.content + '</s>' }}"
  "{% endfor %}{% if add_generation_prompt %}{{ '<s>assistant:' }}{% endif %}"
)
USER = [{"role": "user", "content": "Hi"}]
PROMPT = "<s>user:Hi</s><s>assistant:"


def write_lines(path, *records):
  path.write_text("".join(json.dumps(r) + "\n" for r in records))
  return path


def read_lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def model(tiny_root):
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(tiny_root)
    return mtpjax.load(WORKDIR)


def with_tokenizer(model, folder, **beside):
  """The tiny run as if it had been trained with another tokenizer."""
  write_folder(folder, vocab_size=258, **beside)
  return dataclasses.replace(model, tokenizer=load_tokenizer(str(folder)))


@pytest.fixture
def chatting(model, tmp_path, monkeypatch):
  """A model with a chat template, which the command loads."""
  chatting = with_tokenizer(model, tmp_path / "tok", template=TEMPLATE)
  monkeypatch.setattr(api, "load", lambda workdir, step, base: chatting)
  return chatting


def test_a_chat_becomes_the_ids_of_its_text(chatting, decodes):
  expected = tuple(chatting.tokenizer.encode(PROMPT))
  assert expected[0] == 0 and expected.count(0) == 2
  own = {"messages": USER, "temperature": 0.5, "seed": 3, "class": "chat"}
  chatting.generate([own, {"messages": tuple(TALK[:3])}, {"text": "Hi"}])
  first, second, text = decodes[0]["requests"]
  # No BOS but that of the template; a text gets one as ever.
  assert first.ids == expected
  assert (first.temperature, first.seed, first.kind) == (0.5, 3, "chat")
  assert chatting.tokenizer.decode(second.ids) == (
    "user:Hiassistant:Hellouser:Byeassistant:"
  )
  assert text.ids == (0, *chatting.tokenizer.encode("Hi"))
  pieces = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
  assert chatting.encode([USER[0] | {"content": pieces}]) == list(expected)


@pytest.mark.parametrize(
  ("prompt", "words"),
  [
    ({"messages": []}, "prompt 0: is no list of messages"),
    ({"messages": "Hi"}, "prompt 0: is no list of messages"),
    ({"messages": [{"role": "user"}]}, 'prompt 0: message 0: no "content"'),
    ({"messages": USER, "text": "a"}, '"messages" (of a chat), not both'),
    ({"messages": USER, "ids": [1]}, "not both"),
    ({}, 'needs "text"'),
    ({"text": "a", "tools": []}, "'tools' is no setting of a prompt"),
    ({"messages": USER, "tools": 5}, "prompt 0: tools is not a list"),
    (
      {"messages": [USER[0] | {"content": "\ud83d"}]},
      "message 0: lone surrogate U+D83D",
    ),
  ],
)
def test_bad_chats_are_one_line(chatting, prompt, words):
  with pytest.raises(mtpjax.UserError) as caught:
    chatting.generate([prompt])
  assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_chat_needs_a_template_that_takes_it(model, tmp_path):
  with pytest.raises(mtpjax.UserError, match="prompt 0: .*no chat template"):
    model.generate([{"messages": USER}])
  refusing = with_tokenizer(
    model, tmp_path / "tok", template="{{ raise_exception('no\nuser') }}"
  )
  with pytest.raises(mtpjax.UserError, match="prompt 1: .* fails: no user"):
    refusing.generate(["a", {"messages": USER}])


def test_tools_of_a_prompt_reach_the_template_and_what_is_written(
  in_tiny_root, model, tmp_path, decodes, monkeypatch
):
  source = "{{ tools[0].name if tools }}{{ '!' if quiet }}" + TEMPLATE
  chatting = with_tokenizer(model, tmp_path / "tok", template=source)
  tools = {"tools": [{"name": "f"}], "chat_template_kwargs": {"quiet": True}}
  chatting.generate([{"messages": USER} | tools, {"messages": USER}])
  with_tools, without = decodes[0]["requests"]
  assert with_tools.ids == tuple(chatting.tokenizer.encode("f!" + PROMPT))
  assert without.ids == tuple(chatting.tokenizer.encode(PROMPT))
  monkeypatch.setattr(api, "load", lambda workdir, step, base: chatting)
  prompts = write_lines(tmp_path / "p.jsonl", {"messages": USER} | tools)
  out = tmp_path / "out.jsonl"
  argv = ["generate", WORKDIR, "--prompts", str(prompts), "--out", str(out)]
  assert not cli.main(argv)
  (line,) = read_lines(out)
  assert line["messages"][:1] == USER and tools.items() <= line.items()
  (document,) = read_documents(f"jsonl:{out}:messages")
  assert document.template_fields == {
    "tools": tools["tools"], "quiet": True
  }  # fmt: skip


def test_a_prompt_that_begins_with_bos_gets_no_second(model, tmp_path):
  tokenizing = with_tokenizer(model, tmp_path / "tok")
  assert tokenizing.config.data.add_bos
  hi = tokenizing.tokenizer.encode("Hi")
  assert tokenizing.encode("Hi") == tokenizing.encode("<s>Hi") == [0, *hi]
  assert tokenizing.encode([0, 0, 5]) == [0, 0, 5]


def test_a_text_and_what_comes_are_the_text_of_all_ids(
  model, tmp_path, monkeypatch
):
  """Llama 2's decoder leaves out the space that begins a text."""
  write_llama2(tmp_path)
  (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
  tokenizer = load_tokenizer(str(tmp_path))
  llama = dataclasses.replace(model, tokenizer=tokenizer)
  comes = tuple(tokenizer.encode("b a"))
  assert tokenizer.decode(comes) == "b a"

  def generate(specs, params, requests, *rest):
    result = decode.Result(comes, (0.0,) * 4, "length", 1, 0, (0,))
    yield dict.fromkeys(range(len(requests)), result)

  monkeypatch.setattr(decode, "generate", generate)
  pieces = {}
  prompts = ["c", "", {"ids": tokenizer.encode("a\n")}, {"messages": USER}]
  results = llama.generate(
    prompts, on_text=lambda n, text: pieces.setdefault(n, []).append(text)
  )
  texts = [result.text for result in results]
  # An answer is a text of its own, as is what follows nothing.
  assert texts == [" b a", "b a", " b a", "b a"]
  assert ["".join(pieces[n]) for n in range(4)] == texts


def test_a_byte_order_mark_is_no_part_of_a_prompt(
  in_tiny_root, model, tmp_path, decodes, monkeypatch, capsys
):
  monkeypatch.setattr(api, "load", lambda workdir, step, base: model)
  mark = b"\xef\xbb\xbf"
  prompts = tmp_path / "p.jsonl"
  # Only the first is a mark: a text may hold another.
  second = json.dumps({"text": "\ufeffb"}).encode()
  prompts.write_bytes(mark + b'{"text": "a"}\n' + second)
  assert not cli.main(["generate", WORKDIR, "--prompts", str(prompts)])
  monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(mark + b"a")))
  assert not cli.main(["generate", WORKDIR])
  assert [r.ids for call in decodes for r in call["requests"]] == [
    (256, ord("a")), (256, *"\ufeffb".encode()), (256, ord("a"))
  ]  # fmt: skip
  assert "\ufeff" not in capsys.readouterr().out


def test_a_token_beyond_the_vocabulary_is_refused_where_it_is_used(
  model, tmp_path, decodes
):
  """As `<pad>`, added to the tokenizer and not to the model."""
  padded = with_tokenizer(
    model, tmp_path / "tok", added=("<pad>",),
    config={"eos_token": "</s>", "bos_token": "<s>"},
    generation={"eos_token_id": [1, 258]},
  )  # fmt: skip
  assert padded.tokenizer.vocab_size == 259 > model.model.config.vocab_size
  padded.generate(["Hi", {"text": "a", "regex": "[ab]+"}])
  assert decodes[0]["eos_ids"] == (1,)
  with pytest.raises(mtpjax.UserError, match="prompt 0: .*258"):
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(decode, "generate", DECODE)
      padded.generate(["Hi<pad>"])


def test_messages_are_read_as_they_are_given():
  asked = read_prompt({"messages": USER, "seed": 1}, config.Config(), "here")
  assert asked.content == tuple(USER) and asked.has_own_seed


def test_one_chat_is_streamed_without_its_prompt(
  in_tiny_root, chatting, capsys
):
  argv = ["generate", WORKDIR, "--chat", "Hi", "--max-new-tokens", "12"]
  assert not cli.main([*argv, "--ignore-eos"])
  [whole] = chatting.generate(
    [{"messages": USER}], ignore_eos=True, max_new_tokens=12
  )
  assert whole.text and len(whole.ids) == 12
  assert capsys.readouterr().out == whole.text + "\n"


def test_mistakes_of_a_chat_on_the_command_line(in_tiny_root, fails):
  argv = "generate", WORKDIR, "--chat"
  assert "no chat template" in fails(*argv, "Hi")
  assert "not allowed with" in fails(*argv, "Hi", "--prompt", "a")
  assert "--chat: lone surrogate" in fails(*argv, "a\udcff")


def test_answers_can_be_trained_on(
  in_tiny_root, chatting, tmp_path, decodes, capsys
):
  named = [USER[0] | {"name": "Ann"}]
  prompts = write_lines(
    tmp_path / "p.jsonl",
    {"text": "de\u2028f", "temperature": 0.5}, {"ids": [5]},
    {"messages": named}, {"messages": TALK[:3], "seed": 1},
  )  # fmt: skip
  out = tmp_path / "out.jsonl"
  argv = ["generate", WORKDIR, "--prompts", str(prompts), "--out", str(out)]
  assert not cli.main(argv)
  printed = capsys.readouterr()
  assert printed.out == "" and "4 prompts" in printed.err
  text = chatting.tokenizer.decode([10])
  rest = {"ids": [10], "finish_reason": "length"}
  answer = {"role": "assistant", "content": text}
  assert read_lines(out) == [
    {"prompt": "de\u2028f", "completion": text} | rest,
    {"prompt": None, "completion": text} | rest,
    {"messages": [*named, answer]} | rest,
    {"messages": [*TALK[:3], answer]} | rest,
  ]
  assert [path.name for path in tmp_path.glob("out*")] == ["out.jsonl"]
  # Read again as what is trained on.
  lines = out.read_text().splitlines(keepends=True)
  (tmp_path / "texts.jsonl").write_text(lines[0])
  (document,) = read_documents(
    f"jsonl:{tmp_path}/texts.jsonl:prompt,completion"
  )
  assert document.parts == (("de\u2028f", False), (text, True))
  (tmp_path / "chats.jsonl").write_text("".join(lines[2:]))
  chats = list(read_documents(f"jsonl:{tmp_path}/chats.jsonl:messages"))
  assert chats[0].messages == (*named, answer)
  template = chatting.tokenizer.chat_template
  assert template.split(chats[0].messages, "") == (
    (PROMPT, False), (text + "</s>", True)
  )  # fmt: skip


def test_rows_go_to_json_beside_out(in_tiny_root, chatting, tmp_path, decodes):
  prompts = write_lines(tmp_path / "p.jsonl", {"messages": USER})
  out, figures = tmp_path / "out.jsonl", tmp_path / "figures.json"
  argv = ["generate", WORKDIR, "--prompts", str(prompts), "--out", str(out)]
  assert not cli.main([*argv, "--json", str(figures)])
  assert json.loads(figures.read_text())[0]["ids"] == [10]
  assert read_lines(out)[0]["ids"] == [10]


def test_an_out_that_cannot_be_is_refused_before_anything_runs(
  in_tiny_root, tmp_path, fails, monkeypatch
):
  def load(workdir, step):
    raise AssertionError("the model was loaded")

  monkeypatch.setattr(api, "load", load)
  prompts = write_lines(tmp_path / "p.jsonl", {"text": "a"})
  argv = "generate", WORKDIR, "--prompts", prompts, "--out"
  (tmp_path / "there.jsonl").write_text("mine")
  assert "is there already" in fails(*argv, tmp_path / "there.jsonl")
  assert (tmp_path / "there.jsonl").read_text() == "mine"
  (tmp_path / "link.jsonl").symlink_to(tmp_path / "nowhere")
  assert "is there already" in fails(*argv, tmp_path / "link.jsonl")
  for out in (tmp_path / "none" / "out.jsonl", prompts / "out.jsonl"):
    line = fails(*argv, out)
    assert f"--out {out}: cannot be written there" in line
  out = tmp_path / "out.jsonl"
  assert "--prompts FILE" in fails("generate", WORKDIR, "--out", out)
  assert "--prompts FILE" in fails(
    "generate", WORKDIR, "--chat", "a", "--out", out
  )
  assert not out.exists()


def test_an_out_that_fails_leaves_nothing(
  in_tiny_root, chatting, tmp_path, fails
):
  prompts = write_lines(tmp_path / "p.jsonl", {"text": "a"}, {"ids": [999]})
  out = tmp_path / "out.jsonl"
  argv = "generate", WORKDIR, "--prompts", prompts, "--out", out
  assert "id 999" in fails(*argv)
  write_lines(prompts, {"messages": USER}, {"messages": [{"role": "user"}]})
  assert f'{prompts}:2: message 0: no "content"' in fails(*argv)
  assert not list(tmp_path.glob("out*"))


def test_every_id_of_the_generation_config_ends_a_text(model, tmp_path):
  settings = {"max_new_tokens": 24}
  free = with_tokenizer(model, tmp_path / "free")
  [whole] = free.generate(["def"], ignore_eos=True, **settings)
  # Each must stop a text of its own.
  ids = list(dict.fromkeys(whole.ids[1:]))[:3]
  assert len(ids) == 3
  several = with_tokenizer(
    model, tmp_path / "several", config={"eos_token": "</s>"},
    generation={"eos_token_id": ids},
  )  # fmt: skip
  assert several.tokenizer.eos_ids == (1, *ids)
  [ended] = several.generate(["def"], **settings)
  first = min(whole.ids.index(i) for i in ids)
  assert ended.ids == whole.ids[: first + 1]
  assert ended.finish_reason == "eos"
  last = with_tokenizer(
    model, tmp_path / "last", config={"eos_token": "</s>"},
    generation={"eos_token_id": [250, 251, ids[-1]]},
  )  # fmt: skip
  [ended] = last.generate(["def"], **settings)
  assert ended.ids == whole.ids[: whole.ids.index(ids[-1]) + 1]
  assert ended.finish_reason == "eos"


def test_more_eos_ids_than_fit_are_refused(model, tmp_path):
  many = with_tokenizer(
    model, tmp_path / "many", generation={"eos_token_id": list(range(9))}
  )
  with pytest.raises(mtpjax.UserError, match="9 are more than the 8"):
    many.generate(["def"])
