"""Every example of README and docs runs, or says why it does not.

A block is run unless an HTML comment right before it says `not run: REASON`, or
`parsed, not run: REASON`, after which its commands are only parsed.
"""

import dataclasses
import pathlib
import re
import shlex
import shutil

import pytest

from mtpjax import cli
from mtpjax.cli.command import build_parser

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [
  ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))
]  # fmt: skip
BLOCK = re.compile(
  r"(?:<!-- (?P<remark>[^>]*) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```",
  flags=re.DOTALL | re.MULTILINE,
)
# The experiment of the pages takes minutes; the tests have one that is alike.
IN_TINY_ROOT = {
  "mtpjax prepare quickstart": "mtpjax prepare tiny.py",
  "mtpjax train quickstart": "mtpjax train tiny.py",
}


@dataclasses.dataclass(frozen=True)
class Block:
  """A block of code on a page."""

  page: str
  number: int
  language: str
  remark: str
  text: str

  def __str__(self):
    return f"{self.page}-{self.number}"

  def commands(self):
    """The arguments of every call of mtpjax, continued lines joined."""
    joined = self.text.replace("\\\n", " ")
    for old, new in IN_TINY_ROOT.items():
      joined = joined.replace(old, new)
    lines = [line for line in joined.split("\n") if line.startswith("mtpjax ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


def blocks():
  return [
    Block(
      page.stem,
      number,
      match["language"],
      " ".join((match["remark"] or "").split()),
      match["text"],
    )
    for page in PAGES
    for number, match in enumerate(BLOCK.finditer(page.read_text()))
  ]


BLOCKS = blocks()
RUN = [b for b in BLOCKS if "not run: " not in b.remark]
PARSED = [b for b in BLOCKS if b.remark.startswith("parsed, not run: ")]


@pytest.fixture(scope="module")
def copied_root(tiny_root, tmp_path_factory):
  """Examples write files, into a copy of what all tests share."""
  root = tmp_path_factory.mktemp("docs") / "root"
  shutil.copytree(tiny_root, root)
  return root


@pytest.fixture
def in_copy(copied_root, monkeypatch):
  monkeypatch.chdir(copied_root)


def of(language, chosen):
  return pytest.mark.parametrize(
    "block", [b for b in chosen if b.language == language], ids=str
  )


def test_every_block_is_run_or_has_a_reason():
  for block in BLOCKS:
    reason = block.remark.partition("not run: ")[2]
    assert "not run" not in block.remark or len(reason) > 10, block
    # What has no language is no code: a picture, or a shell script of ours,
    # which tests/launch checks.
    assert block.language in ("python", "sh", ""), block


@of("python", RUN)
def test_python_runs(block, in_copy, capsys):
  exec(compile(block.text, f"{block}.py", "exec"), {})
  assert capsys.readouterr().out


@of("sh", RUN)
def test_commands_run(block, in_copy, capsys):
  assert block.commands()
  for arguments in block.commands():
    assert cli.main(arguments) == 0, arguments


@of("sh", PARSED)
def test_commands_parse(block, capsys):
  assert block.commands()
  for arguments in block.commands():
    build_parser().parse_args(arguments)


def test_links_lead_somewhere():
  for page in PAGES:
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
      if "://" not in link:
        assert (page.parent / link).exists(), (page.name, link)


def test_reasons_name_tests_that_exist():
  for block in BLOCKS:
    for path in re.findall(r"tests/[\w/.]+", block.remark):
      assert (ROOT / path).exists(), (block, path)


def test_tree_names_every_folder_and_no_other():
  page = (ROOT / "docs" / "architecture.md").read_text()
  tree = page.split("## The rooms")[1].split("```")[1]
  packages = {
    path.parent.name + "/" for path in (ROOT / "mtpjax").glob("*/__init__.py")
  }
  named = set(re.findall(r"^  (\w+/)", tree, flags=re.MULTILINE))
  assert named == packages
  tops = set(re.findall(r"^(\w+/)", tree, flags=re.MULTILINE))
  assert all((ROOT / top).is_dir() for top in tops)


def test_readme_is_short():
  assert len((ROOT / "README.md").read_text().splitlines()) <= 180


def test_nothing_is_named_by_the_machine_it_was_written_on():
  for path in ROOT.rglob("*"):
    hidden = any(part.startswith(".") for part in path.parts[len(ROOT.parts) :])
    if path.suffix in (".py", ".md", ".sh", ".cfg") and not hidden:
      text = path.read_text()
      assert "/" + "work/" not in text, path


def test_no_placeholder_is_left():
  for page in PAGES:
    assert not re.findall(r"^[A-Z_]{4,}$", page.read_text(), flags=re.MULTILINE)
