"""What jobs ask of decoding and show, noted."""

import pytest

from mtpjax import decode
from mtpjax.progress import Progress


@pytest.fixture
def decodes(monkeypatch):
  """Nothing is decoded; the list of what was asked, call by call.

  Each entry holds the arguments of `decode.generate` by name.
  """
  calls = []
  names = "specs params requests eos_ids batch passes find_stop governor"

  def generate(*args):
    calls.append(dict(zip(names.split(), args, strict=True)))
    result = decode.Result((10,), (0.0,), "length", 1, 0, (0,))
    yield dict.fromkeys(range(len(calls[-1]["requests"])), result)

  monkeypatch.setattr(decode, "generate", generate)
  return calls


@pytest.fixture
def shown(monkeypatch):
  """Lists what is shown: [text, total, done at the end], one after another."""
  seen = []

  def start(self):
    seen.append([self._text, self._total, 0])
    return self

  def update(self, done=None, text=None):
    seen[-1][2] = done

  monkeypatch.setattr(Progress, "__enter__", start)
  monkeypatch.setattr(Progress, "__exit__", lambda self, *_: None)
  monkeypatch.setattr(Progress, "update", update)
  return seen
