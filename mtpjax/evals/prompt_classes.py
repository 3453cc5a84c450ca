"""Prompts of our own, by class: how far drafts reach depends on the text."""

from typing import Any

# Each breaks off where there is more to say, so that a model goes on.
_CODE = (
  '''def mean(values):
  """Returns the arithmetic mean of a list of numbers."""
  if not values:
    raise ValueError("mean of nothing")
  return sum(values) / len(values)


def median(values):
  """Returns the middle value of a list of numbers."""
''',
  """class Stack:
  def __init__(self):
    self._items = []

  def push(self, item):
    self._items.append(item)

  def pop(self):
    if not self._items:
      raise IndexError("pop from an empty stack")
""",
  """import argparse
import pathlib

parser = argparse.ArgumentParser(description="Counts the lines of files.")
parser.add_argument("files", nargs="+", type=pathlib.Path)
args = parser.parse_args()

for path in args.files:
  with open(path) as file:
""",
  """for (int row = 0; row < height; row++) {
  for (int column = 0; column < width; column++) {
    grid[row][column] = 0;
  }
}

for (int row = 1; row < height - 1; row++) {
""",
)

_PROSE = (
  "The ferry left the harbour a little after six, with the lamps still lit "
  "along the quay. Most of the passengers slept on the benches. One of them, "
  "an old man with a basket of pears, stood at the rail and",
  "Before you repot a plant, water it well and let it rest for a day. Choose a "
  "pot that is only a little wider than the old one. Then loosen the roots "
  "carefully and",
  "Nobody in the village could say who had built the bridge. Some held that it "
  "was older than the church, others that it was older than the river. The "
  "teacher, who had studied such questions, only said that",
  "Bread needs little more than flour, water, salt and time. The time matters "
  "most: while the dough rests, it changes in ways that no amount of kneading "
  "can replace. First of all,",
)

_STRUCTURED = (
  """{
  "orders": [
    {"id": 101, "item": "lamp", "count": 2, "price": 18.50},
    {"id": 102, "item": "chair", "count": 4, "price": 32.00},
    {"id": 103, "item": "table", "count": 1, "price": 145.00},
    {"id": 104, "item":""",
  """date,city,minimum,maximum,rain
2021-03-01,Bremen,2,9,0.4
2021-03-02,Bremen,1,8,0.0
2021-03-03,Bremen,3,11,1.2
2021-03-04,Bremen,""",
  """<ul class="menu">
  <li><a href="/start.html">Start</a></li>
  <li><a href="/news.html">News</a></li>
  <li><a href="/archive.html">Archive</a></li>
  <li><a href=""",
  """server:
  host: 127.0.0.1
  port: 8080
  workers: 4
logging:
  level: info
  file: server.log
database:
  host:""",
)

_CHAT = tuple(
  ({"role": "user", "content": question},)
  for question in (
    "Why is the sky blue? Explain it to a child.",
    "Write a short thank-you note to a neighbour who watered my plants.",
    "Give me three tips for learning a new language.",
    "What is the difference between a list and a tuple in Python?",
  )
)

# Texts, or conversations that a model with a chat template answers.
PROMPT_CLASSES: dict[str, tuple[Any, ...]] = {
  "code": _CODE,
  "prose": _PROSE,
  "structured": _STRUCTURED,
  "chat": _CHAT,
}
