"""Random mistakes: bent flags, paths, files and experiments of a tiny run.

  python tests/mistakes.py --count 200 --seed 0

Each is a command that `mtpjax.cli.main` runs in a copy of the run. It must
succeed, or end with status 2 and one line of error, the last on standard error.
What does not is printed with all that is needed to see it again; the status is
then 1.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import pathlib
import random
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator

from mtpjax import cli
from mtpjax import config as config_lib
from mtpjax.cli import background

EXPERIMENT = """
from mtpjax.config import Config, Data, Heads, Model, Optim, Train


def config(variant=""):
  return Config(
    model=Model(
      d_model=32, n_layers=4, n_attention_heads=2, n_kv_heads=1, d_head=16,
      d_ff=64, dtype="float32",
    ),
    heads=Heads(offsets=(1, 2, 3)),
    data=Data(
      path="data", sources=("text:corpus/*.txt",), row_length=48,
      validation_fraction=0.4,
    ),
    optim=Optim(peak_lr=1e-2, warmup_steps=2, decay_steps=40),
    train=Train(
      steps=12, batch_size=4, log_every=4, save_every=6, eval_every=6,
      eval_batches=2,
    ),
  )
"""
RUN = "runs/quickstart"
# What may stand where a value is asked for. No size in between: what is too
# large must be so beyond doubt, and not fill the memory of the machine.
VALUES = (
  "", " ", "-", "--", "-1", "0", "-0.0", "1e400", "-inf", "nan", "9" * 40,
  "9" * 5000, "4294967295", "1_0", "0x10", "1.5", "1,,2", "1,2,2", "None",
  "null", "true", "maybe", "\u00e9\U0001f600", "\udcff", "\ud800", "[red]x[/]",
  ":key:", "two\nlines", "\x1b[31m", "nul\0", "'", '"', "{", "[]", "*", "%s",
  "{0}", "~", "../..", "a" * 300, "/dev/null", "medusa-63", "4,2,1",
)  # fmt: skip
# What may stand where a file or a folder is asked for.
PATHS = (
  "", ".", "..", "/", "missing", "missing/deep/er", "tiny.py", "tiny.py/x",
  "corpus", "corpus/0.txt", "corpus/0.txt/x", "a" * 300, "a/" * 2500, "loop",
  "dangling", "/dev/null", "/dev/full", "/proc/self/mem", "/proc/none/x",
  "nul\0", "\udcff", "\ud800", "two\nlines", "[red]", "~none", "binary",
  "empty", "data", RUN, f"{RUN}/config.json",
)  # fmt: skip
JSON_VALUES = (
  None, True, False, -1, 0, 1.5, 10**30, 1e308, float("nan"), float("inf"), "",
  "x", "\ud800", "nul\0", "9" * 5000, [], [None], [-1], [1, "a"], {}, {"a": {}},
)  # fmt: skip
CONTENTS = (
  b"", b"\0", b"{", b"[]", b"null", b"1", b'"x"', b"{}", b'{"a": 1',
  b"\xff\xfe",
  b"[" * 100_000, b"NaN", b"9" * 5000, b"\x1f\x8b\x08broken", b"PK\x03\x04",
  b'{"text": 3}', b'{"ids": ["a"]}', b'{"ids": [99999999999]}',
  b'{"text": "a", "temperature": "hot"}', b'{"text": "a", "seed": -1}',
  b'{"text": "a", "nothing": 1}', b'{"messages": []}', b'{"text": "\\ud800"}',
)  # fmt: skip
SOURCES = (
  "", "text:", "text:missing/*.txt", "text:corpus", "text:binary",
  "text:empty", "text:[", "jsonl:", "jsonl:missing:text", "jsonl:corpus:text",
  "jsonl:binary:text", "jsonl:lines.jsonl:", "jsonl:lines.jsonl:none",
  "jsonl:lines.jsonl:text,none", "jsonl:lines.jsonl:messages",
  "python-package:",
  "python-package:none", "python-package:..", "tfds:", "tfds:none:train",
  "words:x", ":", ";;", "text:loop", "text:nul\0", "text:\ud800",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Mistake:
  """A command, and what was bent before it."""

  argv: tuple[str, ...]
  bent: str = ""
  limits: tuple[tuple[int, int], ...] = ()


def make_root(root: pathlib.Path) -> None:
  """Prepares and trains the tiny run in a folder."""
  (root / "corpus").mkdir()
  for i in range(12):
    text = f"def f{i}(x):\n  return x + {i}\n" * 40
    (root / "corpus" / f"{i}.txt").write_text(text)
  (root / "tiny.py").write_text(EXPERIMENT)
  with contextlib.chdir(root):
    assert cli.main(["prepare", "tiny.py"]) == 0
    assert cli.main(["train", "tiny.py", "--workdir", RUN]) == 0


def copy_inputs(made: pathlib.Path, root: pathlib.Path) -> None:
  """Takes from a folder what `make_root` makes, without what others left."""
  for name in ("corpus", "data", RUN):
    shutil.copytree(made / name, root / name)
  (root / "tiny.py").write_text(EXPERIMENT)


def make_place(root: pathlib.Path, place: pathlib.Path) -> None:
  """Copies the run, and lays things out to stumble over."""
  shutil.copytree(root, place, symlinks=True)
  (place / "loop").symlink_to("loop")
  (place / "dangling").symlink_to("nowhere")
  (place / "binary").write_bytes(bytes(range(256)))
  (place / "empty").touch()
  (place / "lines.jsonl").write_text('{"text": "a"}\n{"text": 3}\n')
  (place / "prompts.jsonl").write_text('{"text": "def f", "seed": 1}\n')


def bend(rng: random.Random, place: pathlib.Path) -> Mistake:
  """Bends one thing of the copy; returns the command that finds it."""
  kinds: tuple[Callable[..., Mistake], ...] = (
    _flag, _flag, _path, _path, _file, _file, _file, _json, _json, _source,
    _experiment, _experiment, _prompts, _limit,
  )  # fmt: skip
  return rng.choice(kinds)(rng, place)


def _train(*more: str, workdir: str = RUN) -> tuple[str, ...]:
  return ("train", "tiny.py", "--workdir", workdir, *more)


def _generate(*more: str) -> tuple[str, ...]:
  return ("generate", RUN, "--max-new-tokens", "2", *more)


def _readers(rng: random.Random) -> tuple[str, ...]:
  """A command that reads the run."""
  return rng.choice(
    (
      ("evaluate", RUN, "--batches", "1"),
      _generate("--prompt", "def"),
      _train(),
      ("export", "hf", RUN, "out"),
      ("inspect", RUN),
      ("chat", RUN),
    )
  )


def _flag(rng: random.Random, place: pathlib.Path) -> Mistake:
  value = rng.choice(VALUES)
  fields = [path for path, _ in config_lib.fields()]
  path = rng.choice(fields).replace("_", rng.choice("-_"))
  decode = [path[7:] for path in fields if path.startswith("decode.")]
  name = rng.choice(decode).replace("_", "-")
  number = rng.choice(
    (
      ("evaluate", RUN, "--step"), ("evaluate", RUN, "--batches"),
      ("evaluate", RUN, "--classes"), ("evaluate", RUN, "--split"),
      ("calibrate", RUN, "--texts"), ("calibrate", RUN, "--batches"),
      ("calibrate", RUN, "--temperatures"), ("calibrate", RUN, "--max-nodes"),
      ("bench", "memory", "--n"), ("bench", "train", "--n"),
      ("bench", "decode", RUN, "--modes"), ("bench", "decode", RUN, "--tree"),
      ("export", "hf", RUN, "out", "--dtype"),
      ("export", "hf", RUN, "out", "--max-shard-mb"),
      ("tokenizer", "train", "--out", "t.json", "--vocab-size"),
      ("generate", RUN, "--step"), ("chat", RUN, "--step"),
      ("chat", RUN, "--temperature"), ("inspect", RUN, "--json"), ("list",),
      ("new", "new.py", "--from"),
    )
  )  # fmt: skip
  return Mistake(
    rng.choice(
      (
        _train(f"--{path}={value}"),
        _train(f"--{path}={value}", workdir="fresh"),
        ("prepare", "tiny.py", f"--{path}={value}"),
        ("prepare", "tiny.py", f"--variant={value}", f"--{path}", value),
        _generate("--prompt", "def", f"--{name}={value}"),
        (*number, value),
        (value, "tiny.py"),
        ("train", f"--{value}"),
      )
    )
  )


def _path(rng: random.Random, place: pathlib.Path) -> Mistake:
  path = rng.choice(PATHS)
  return Mistake(
    rng.choice(
      (
        ("prepare", path),
        ("prepare", "tiny.py", "--data.path", path),
        ("prepare", "tiny.py", "--data.tokenizer", path),
        ("prepare", "tiny.py", "--json", path),
        ("train", path, "--workdir", RUN),
        ("train", "tiny.py", "--workdir", path),
        _train("--data.path", path),
        _train("--base.path", path, "--heads.matched", "false"),
        _train("--json", path),
        ("evaluate", path),
        ("evaluate", RUN, "--data-path", path),
        ("generate", path, "--prompt", "x"),
        _generate("--prompts", path),
        _generate("--prompts", "prompts.jsonl", "--out", path),
        _generate("--prompt", "x", "--mode", "tree", "--tree", path),
        _generate("--prompt", "x", "--json-schema", path),
        ("calibrate", path),
        ("bench", "decode", path),
        ("bench", "decode", RUN, "--prompts", path),
        ("convert", "hf", path, "out"),
        ("convert", "gguf", path, "out"),
        ("convert", "meta", path, "out"),
        ("convert", "medusa", path, RUN, "out"),
        ("convert", "medusa", "corpus", path, "out"),
        ("convert", "hf", "corpus", path),
        ("export", "hf", path, "out"),
        ("export", "hf", RUN, path),
        ("chat", path),
        ("inspect", path),
        ("inspect", RUN, "--json", path),
        ("list", path),
        ("new", path),
        ("new", "new.py", "--from", path),
        ("tokenizer", "train", "--sources", "text:corpus/*.txt", "--out", path),
      )
    )
  )  # fmt: skip


def _file(rng: random.Random, place: pathlib.Path) -> Mistake:
  """Damages a file of the run or of its rows."""
  folder = place / rng.choice((RUN, RUN, "data"))
  files = sorted(path for path in folder.rglob("*") if path.is_file())
  path = rng.choice(files)
  raw = path.read_bytes()
  how = rng.choice(("cut", "flip", "gone", "folder", "other", "long", "above"))
  if how == "above":
    path = path.parent
    shutil.rmtree(path)
    if rng.random() < 0.5:
      path.write_bytes(b"")
  elif how in ("gone", "folder"):
    path.unlink()
    if how == "folder":
      path.mkdir()
  elif how == "cut":
    path.write_bytes(raw[: rng.randrange(len(raw) + 1)])
  elif how == "flip" and raw:
    at = rng.randrange(len(raw))
    path.write_bytes(raw[:at] + bytes([raw[at] ^ 255]) + raw[at + 1 :])
  elif how == "long":
    path.write_bytes(raw + raw)
  else:
    path.write_bytes(rng.choice(CONTENTS))
  return Mistake(_readers(rng), f"{how}: {path.relative_to(place)}")


def _json(rng: random.Random, place: pathlib.Path) -> Mistake:
  """Changes a value within a JSON file of the run or of its rows."""
  files = sorted(
    path
    for folder in (RUN, "data")
    for path in (place / folder).rglob("*.json")
    if path.is_file()
  )
  path = rng.choice([place / RUN / "config.json", *files])
  document = value = json.loads(path.read_text())
  keys: list[str] = []
  while isinstance(value, dict) and value and (not keys or rng.random() < 0.9):
    holder = value
    keys.append(rng.choice(sorted(value)))
    value = holder[keys[-1]]
  changed = rng.choice(JSON_VALUES)
  holder[keys[-1]] = changed
  path.write_text(json.dumps(document))
  return Mistake(
    _readers(rng), f"{path.relative_to(place)}: {keys} {ascii(changed)[:80]}"
  )


def _source(rng: random.Random, place: pathlib.Path) -> Mistake:
  source = rng.choice(SOURCES)
  return Mistake(
    rng.choice(
      (
        ("prepare", "tiny.py", "--data.path", "d2", f"--data.sources={source}"),
        ("prepare", "tiny.py", "--data.path", "d2",
         f"--data.validation-sources={source}"),
        ("tokenizer", "train", f"--sources={source}", "--out", "t.json"),
      )
    )
  )  # fmt: skip


def _experiment(rng: random.Random, place: pathlib.Path) -> Mistake:
  """Bends the source of the experiment."""
  lines = EXPERIMENT.strip().splitlines()
  at = rng.randrange(len(lines))
  how = rng.choice(("drop", "cut", "word", "value", "line"))
  if how == "drop":
    del lines[at]
  elif how == "cut":
    lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
  elif how == "word":
    words = [w for w in lines[at].replace("=", " ").split() if w.isidentifier()]
    word = rng.choice(words or ["x"])
    lines[at] = lines[at].replace(word, word[:-1] + rng.choice("xyz_"), 1)
  elif how == "value":
    value = rng.choice(JSON_VALUES)
    name, is_set, rest = lines[at].partition("=")
    lines[at] = f"{name}={value!r},{rest.partition(',')[2]}" if is_set else ""
  else:
    lines[at] = rng.choice(
      (
        "raise KeyError(3)", "import nothing_like_it", "exit(3)", "1 / 0",
        "config = 3", "\tx = 1", "  return", "\0", "\udcff", "x = '",
        "from mtpjax.config import Modle", "print(undefined)", "config = dict",
        "async def config(): pass", "def config(a, b): pass", "[" * 500,
        "def config(*, a): pass", "assert False", "open('none')",
      )
    )  # fmt: skip
  text = "\n".join(lines)
  (place / "tiny.py").write_bytes(text.encode("utf-8", "surrogateescape"))
  # Without its sources it takes the standard library.
  prepare = ("prepare", "tiny.py", "--data.max-documents", "12")
  argv = rng.choice((prepare, _train()))
  return Mistake(argv, f"tiny.py: {lines[min(at, len(lines) - 1)]!r}")


def _prompts(rng: random.Random, place: pathlib.Path) -> Mistake:
  raw = b"\n".join(rng.choice(CONTENTS) for _ in range(rng.randrange(1, 3)))
  (place / "prompts.jsonl").write_bytes(raw)
  argv = rng.choice(
    (
      _generate("--prompts", "prompts.jsonl"),
      ("bench", "decode", RUN, "--prompts", "prompts.jsonl"),
      _generate("--prompt", "x", "--json-schema", "prompts.jsonl"),
      _generate("--prompt", "x", "--mode", "tree", "--tree", "prompts.jsonl"),
      ("prepare", "tiny.py", "--data.path", "d2",
       "--data.sources=jsonl:prompts.jsonl:text"),
    )
  )  # fmt: skip
  return Mistake(argv, f"prompts.jsonl: {raw[:80]!r}")


def _limit(rng: random.Random, place: pathlib.Path) -> Mistake:
  """A disk that is full after some bytes: files may not grow beyond them."""
  size = rng.choice((0, 1, 100, 5000))
  argv = rng.choice(
    (
      ("prepare", "tiny.py", "--data.path", "d2"),
      ("export", "hf", RUN, "out"),
      _train("--train.steps", "14"),
      _train("--train.steps", "2", workdir="fresh"),
      ("new", "new.py"),
      ("tokenizer", "train", "--sources", "text:corpus/*.txt", "--out", "t"),
      _train("--json", "out.json"),
    )
  )
  return Mistake(argv, f"{size} bytes", ((resource.RLIMIT_FSIZE, size),))


@contextlib.contextmanager
def _limited(limits: tuple[tuple[int, int], ...]) -> Iterator[None]:
  before = [(kind, resource.getrlimit(kind)) for kind, _ in limits]
  for kind, size in limits:
    resource.setrlimit(kind, (size, resource.getrlimit(kind)[1]))
  try:
    yield
  finally:
    for kind, both in before:
      resource.setrlimit(kind, both)


def run(mistake: Mistake, place: pathlib.Path) -> tuple[object, str]:
  """Runs the command; returns its status and its standard error."""
  errors = io.StringIO()
  stdin = sys.stdin
  sys.stdin = io.TextIOWrapper(io.BytesIO(b""))
  try:
    with (
      contextlib.chdir(place),
      contextlib.redirect_stdout(io.StringIO()),
      contextlib.redirect_stderr(errors),
      _limited(mistake.limits),
    ):
      status: object = cli.main(mistake.argv)
  except SystemExit as ended:
    status = ended.code
  finally:
    sys.stdin = stdin
  return status, errors.getvalue()


def problem(status: object, errors: str) -> str:
  """Returns what is wrong with how a command ended, or ""."""
  lines = errors.splitlines()
  said = [line for line in lines if line.startswith("mtpjax: error: ")]
  if "Traceback" in errors:
    return "a traceback"
  if status == 0:
    return "an error, and status 0" if said else ""
  if status != 2:
    return f"status {status}"
  if len(said) != 1 or lines[-1] != said[0]:
    return "not one line of error at the end"
  if said[0].removeprefix("mtpjax: error: ").strip() in ("", "None"):
    return "an error that says nothing"
  return ""


def failures(
  root: pathlib.Path, count: int, seed: int, first: int = 0
) -> Iterator[str]:
  """Yields what went wrong with each of so many mistakes that is no error.

  Args:
    root: see `make_root`.
    count: mistakes.
    seed: of all of them.
    first: the number of the first.
  """
  # What nobody waits for any longer may fail when its command has ended.
  restore = background.shorten()
  try:
    for number in range(first, first + count):
      rng = random.Random(f"{seed} {number}")
      # A save that failed may be at its end only now.
      with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        place = pathlib.Path(folder) / "place"
        make_place(root, place)
        mistake = bend(rng, place)
        status, errors = run(mistake, place)
      if wrong := problem(status, errors):
        short = [
          ascii(a) if len(a) < 99 else f"{a[:9]!a}..." for a in mistake.argv
        ]
        yield (
          f"--seed {seed} --first {number}: {wrong}\n  {' '.join(short)}\n"
          f"  {mistake.bent}\n{errors}"
        )
  finally:
    restore()


def main() -> int:
  """Makes the run, and then the mistakes."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--count", type=int, default=200)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--first", type=int, default=0)
  args = parser.parse_args()
  status = 0
  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    make_root(root)
    for text in failures(root, args.count, args.seed, args.first):
      print(text, flush=True)
      status = 1
  return status


if __name__ == "__main__":
  sys.exit(main())
