"""Every command is in the help; one is added by its files and one line."""

import types

import pytest

from mtpjax import cli
from mtpjax.cli import command


def names(capsys):
  with pytest.raises(SystemExit):
    cli.main(["--help"])
  return capsys.readouterr().out


def test_every_command_is_in_the_help_and_has_its_own(capsys):
  shown = names(capsys)
  commands = command.build_parser()._subparsers._group_actions[0].choices
  assert len(commands) >= len(command.COMMANDS)
  for name in commands:
    assert name in shown
    with pytest.raises(SystemExit) as ended:
      cli.main([name, "--help"])
    assert ended.value.code == 0
    assert f"mtpjax {name}" in capsys.readouterr().out


def test_a_toy_is_one_line_away(capsys, monkeypatch, fails):
  def add(commands):
    parser = commands.add_parser("double", help="twice a number")
    parser.add_argument("number", type=int)
    parser.set_defaults(run=lambda args, console: print(2 * args.number))

  assert "double" in fails("double", "21")  # not there yet
  toy = types.SimpleNamespace(add=add)
  monkeypatch.setattr(command, "COMMANDS", [*command.COMMANDS, toy])
  assert cli.main(["double", "21"]) == 0
  assert capsys.readouterr().out == "42\n"
  assert "twice a number" in names(capsys)
