"""A model that stays loaded and is talked to."""

import dataclasses
import io
import sys

import jax
import pytest
from chats import write_folder

import mtpjax
from mtpjax import api, cli, decode
from mtpjax.data import load_tokenizer

WORKDIR = "runs/quickstart"
# Within the 258 ids of the tiny run.
TEMPLATE = (
  "{% for m in messages %}{{ '<s>' + m.role + ':' + m.content + '</s>' }}"
  "{% endfor %}{% if add_generation_prompt %}{{ '<s>assistant:' }}{% endif %}"
)


@pytest.fixture(scope="module")
def loaded(tiny_root, tmp_path_factory):
  """The tiny run as if it had been trained with a chat template."""
  folder = tmp_path_factory.mktemp("tok")
  write_folder(folder, vocab_size=258, template=TEMPLATE)
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(tiny_root)
    model = mtpjax.load(WORKDIR)
  return dataclasses.replace(model, tokenizer=load_tokenizer(str(folder)))


@pytest.fixture
def talk(loaded, in_tiny_root, monkeypatch, capsys):
  """Runs the command on lines; returns answers and what else was said."""
  monkeypatch.setattr(api, "load", lambda workdir, step, base: loaded)

  def run(*lines, argv=(), raw=b""):
    text = raw or "".join(f"{line}\n" for line in lines).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    capsys.readouterr()
    assert cli.main(["chat", WORKDIR, *map(str, argv)]) == 0
    printed = capsys.readouterr()
    return printed.out, printed.err

  return run


@pytest.fixture
def answers(loaded, monkeypatch):
  """Nothing is decoded: every answer is "ab". The list of the requests."""
  asked = []
  ids = tuple(i for text in "ab" for i in loaded.tokenizer.encode(text))

  def generate(specs, params, requests, *_):
    asked.extend(requests)
    for n, reason in ((1, "running"), (2, "length")):
      result = decode.Result(ids[:n], (0.0,) * n, reason, n, 3, (0, 1)[:n])
      yield {0: result}

  monkeypatch.setattr(decode, "generate", generate)
  return asked


def prompt_of(loaded, *said):
  roles = ("user", "assistant")
  messages = [
    {"role": roles[i % 2], "content": text} for i, text in enumerate(said)
  ]
  return tuple(loaded.encode(messages))


def test_each_line_is_answered_with_all_that_was_said(talk, loaded, answers):
  out, err = talk("Hi", "", "  ", "more", "/reset", "new")
  [answer, *_] = out.splitlines()
  assert out.splitlines() == [answer] * 3 and answer
  assert [request.ids for request in answers] == [
    prompt_of(loaded, "Hi"),
    prompt_of(loaded, "Hi", answer, "more"),
    prompt_of(loaded, "new"),
  ]
  closing = err.splitlines()
  assert len(closing) == 3
  assert "mode chain" in closing[0] and "1.00 tokens per pass" in closing[0]
  assert "1 of 3 drafts taken" in closing[0] and "tokens/s" in closing[0]


def test_the_command_leaves_at_exit_and_at_the_end(talk, answers):
  talk("/exit", "never")
  assert not answers
  out, err = talk("/help")
  assert out == "" and all(
    word in err for word in ("/reset", "/settings", "/set ", "/exit", "Ctrl-C")
  )


def test_settings_are_shown_and_set(talk, answers):
  out, err = talk(
    "/set temperature 0.7", "a", "/set seed=3 top-k=5", "b",
    "/set mode=tree tree=2,1", "c", "/set mode next", "d",
    "/unset temperature", "e", "/settings", argv=["--max-new-tokens", 9],
  )  # fmt: skip
  assert [r.temperature for r in answers] == [0.7, 0.7, 0.7, 0.7, 0.0]
  assert [r.seed for r in answers[1:]] == [3] * 4 and answers[1].top_k == 5
  assert answers[0].max_new_tokens == 9
  closing = [line for line in err.splitlines() if line.startswith("[")]
  assert f"seed {answers[0].seed}" in closing[0]
  assert "mode tree 2,1" in closing[2] and "mode next" in closing[3]
  assert "seed" not in closing[4]
  shown = err.splitlines()[-30:]
  assert "max_new_tokens 9  (set)" in shown and "temperature 0.0" in shown


@pytest.mark.parametrize(
  "line, words",
  [
    ("/rest", "/rest: no such command; did you mean reset?"),
    ("/etc/passwd says", "a space in front makes it a message"),
    ("/set temperature", "needs a name and a value"),
    ("/set", "needs a name and a value"),
    ("/set =3", "needs a name and a value"),
    ("/set temperature=", "needs a name and a value"),
    ("/set a='b", "No closing quotation"),
    ("/set temperature hot", "decode.temperature"),
    ("/set temperature -1", "decode.temperature"),
    ("/set temprature 1", "did you mean"),
    ("/set mode fast", "'fast'"),
    ("/set mode tree", "--tree"),
    ("/unset temprature", "did you mean"),
    ("/unset", "needs a name"),
    ("/set cache_tokens 9\na", "leave no room in cache_tokens = 9; /reset"),
    ("/set regex [\na", "regular expression"),
  ],
)
def test_a_mistake_is_one_line_and_the_talk_goes_on(talk, answers, line, words):
  out, err = talk(*line.split("\n"), "/set cache_tokens 0", "/unset regex", "b")
  [error] = [line for line in err.splitlines() if line.startswith("error: ")]
  assert words in error
  assert len(answers) == 1 and len(out.splitlines()) == 1
  assert answers[0].temperature == 0


def test_a_line_that_is_no_unicode_is_one_line(talk, answers):
  _, err = talk(raw=b"\xff\nb\n")
  assert "standard input" in err and len(answers) == 1


def test_a_model_without_a_template_is_one_line(in_tiny_root, fails):
  assert "template" in fails("chat", WORKDIR)
  assert "runs/none" in fails("chat", "runs/none")
  assert "--temperature" in fails("chat", WORKDIR, "--temprature", "1")


def test_settings_of_the_command_are_checked_before_the_first_line(
  loaded, in_tiny_root, monkeypatch, fails
):
  monkeypatch.setattr(api, "load", lambda workdir, step, base: loaded)
  assert "'fast'" in fails("chat", WORKDIR, "--mode", "fast")


def test_ctrl_c_stops_the_answer_and_what_has_come_stays(
  talk, loaded, answers, monkeypatch
):
  whole = decode.generate

  def interrupted(*args):
    rounds = whole(*args)
    yield next(rounds)
    if len(answers) == 1:
      raise KeyboardInterrupt
    yield from rounds

  monkeypatch.setattr(decode, "generate", interrupted)
  out, err = talk("Hi", "more")
  part, _ = out.splitlines()
  assert len(part) == 1 and "[stopped" in err
  assert answers[1].ids == prompt_of(loaded, "Hi", part, "more")


def test_ctrl_c_before_a_word_forgets_the_line(
  talk, loaded, answers, monkeypatch
):
  whole = decode.generate

  def interrupted(*args):
    rounds = whole(*args)
    first = next(rounds)
    if len(answers) == 1:
      raise KeyboardInterrupt
    yield first
    yield from rounds

  monkeypatch.setattr(decode, "generate", interrupted)
  out, _ = talk("Hi", "more")
  assert len(out.splitlines()) == 1
  assert answers[1].ids == prompt_of(loaded, "more")


class Terminal(io.StringIO):
  def isatty(self):
    return True


@pytest.mark.parametrize(
  "typed, status, hints",
  [
    ([EOFError], 0, 0),
    ([KeyboardInterrupt, "Hi", KeyboardInterrupt, EOFError], 0, 2),
    ([KeyboardInterrupt, KeyboardInterrupt], 130, 1),
    (["Hi", "/exit", "never"], 0, 0),
  ],
)
def test_at_a_terminal_ctrl_d_leaves_and_ctrl_c_says_how(
  loaded, in_tiny_root, monkeypatch, capsys, answers, typed, status, hints
):
  monkeypatch.setattr(api, "load", lambda workdir, step, base: loaded)
  monkeypatch.setattr(sys, "stdin", Terminal())
  lines = iter(typed)

  def read(prompt):
    line = next(lines)
    if isinstance(line, str):
      return line
    raise line

  monkeypatch.setattr("builtins.input", read)
  assert cli.main(["chat", WORKDIR]) == status
  err = capsys.readouterr().err
  assert err.count("Ctrl-C again") == hints
  assert "mode chain; /help" in err.replace(", ", "; ")
  assert len(answers) == typed.count("Hi")


def test_a_later_line_compiles_nothing(talk, loaded):
  compiled = []

  def note(event, *_, **__):
    if event.endswith("backend_compile_duration"):
      compiled.append(event)

  counts = []
  whole = api.Loaded.generate

  def generate(self, *args, **settings):
    before = len(compiled)
    [generation] = whole(self, *args, ignore_eos=True, **settings)
    counts.append((len(compiled) - before, len(generation.ids)))
    return [generation]

  jax.monitoring.register_event_duration_secs_listener(note)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(api.Loaded, "generate", generate)
    talk("Hi", "more", "much more", argv=["--max-new-tokens", 5])
  (first, n), *later = counts
  assert first > 0 and n == 5
  assert later == [(0, 5)] * 2
  # Without room ahead the texts of each line would be of another shape.
  n_ids = [len(prompt_of(loaded, *["Hi"] * k)) for k in (1, 3, 5)]
  assert n_ids[0] < 32 < n_ids[1] < 64 < n_ids[2]
