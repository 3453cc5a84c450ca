"""Token automata against Python's own `re` and `json`."""

import itertools
import json
import random
import re
import sys

import pytest

from mtpjax.decode.grammar import compile as grammar_lib
from mtpjax.decode.grammar import compile_json_schema, compile_regex, regex
from mtpjax.decode.grammar.repetitions import written_out
from mtpjax.errors import UserError

BYTES = {i: bytes([i]) for i in range(256)}
EOS = 256

# Every token of one or two letters, and one that is there twice.
LETTERS = [b"a", b"b", b"c", b"ab", b"bc", b"ca", b"aa", b"ab", b"abc"]
SMALL = {i + 5: text for i, text in enumerate(LETTERS)}
SMALL_EOS = (2, 0)

PATTERNS = (
  "a|ab", "a|ab|abc", "a(bc)?", "(ab)*", "a*?b?", "", "a{2,3}c*", "(a|b)*c",
  "[^a]b+", "(abc|ab)(c|)", "a.c", "(?i)AB", "((a|ab)(c|bcd)*)*",
)  # fmt: skip


def follow(grammar, tokens, state=0):
  """Returns the state behind tokens, or None where one is not allowed."""
  for token in tokens:
    allowed, nexts = grammar.edges(state)
    if token not in allowed:
      return None
    state = int(nexts[list(allowed).index(token)])
  return state


def walk(grammar, rng, eos_ids, longest=60):
  """Returns tokens of a random way that ends with EOS, or None if too long."""
  state, tokens = 0, []
  while len(tokens) < longest:
    allowed, nexts = grammar.edges(state)
    assert allowed.size, "a dead end"
    pick = rng.randrange(len(allowed))
    if allowed[pick] in eos_ids:
      return tokens
    tokens.append(int(allowed[pick]))
    state = nexts[pick]
  return None


def text_of(tokens, vocabulary):
  return b"".join(vocabulary[token] for token in tokens).decode()


def tokenisations(text, vocabulary):
  if not text:
    yield ()
  for token, piece in vocabulary.items():
    if text.startswith(piece):
      for rest in tokenisations(text[len(piece) :], vocabulary):
        yield token, *rest


@pytest.mark.parametrize("pattern", PATTERNS)
def test_exactly_the_matching_texts_in_every_tokenisation(pattern):
  grammar = compile_regex(pattern, SMALL, SMALL_EOS, 20)
  for n in range(6):
    for letters in itertools.product("abc", repeat=n):
      text = "".join(letters)
      matches = bool(re.fullmatch(pattern, text))
      for tokens in tokenisations(text.encode(), SMALL):
        for eos in SMALL_EOS:
          found = follow(grammar, (*tokens, eos)) is not None
          assert found == matches, (text, tokens)


@pytest.mark.parametrize(
  "pattern", [*PATTERNS, r"[0-9]+(\.[0-9]+)?", ".{0,3}é"]
)
def test_random_walks_match(pattern):
  vocabulary = BYTES | {300: b"ab", 301: b"1.", 302: "é".encode(), 303: b"a"}
  grammar = compile_regex(pattern, vocabulary, [EOS], 400)
  rng, n_walks = random.Random(0), 0
  for _ in range(40):
    tokens = walk(grammar, rng, [EOS])
    if tokens is not None:
      n_walks += 1
      assert re.fullmatch(pattern, text_of(tokens, vocabulary))
  assert n_walks


def test_states_are_numbered_breadth_first_and_edges_sorted():
  grammar = compile_regex("(ab|ca)c*", SMALL, SMALL_EOS, 20)
  seen = 1
  for state in range(grammar.n_states):
    assert state < seen
    tokens, nexts = grammar.edges(state)
    assert tokens.tolist() == sorted(set(tokens.tolist()))
    seen += len({n for n in nexts.tolist() if n >= seen})
  assert seen == grammar.n_states


def test_characters_split_over_tokens():
  text = "日é🙂"
  raw = text.encode()
  vocabulary = BYTES | {300: raw[1:4], 301: raw[:2], 302: raw[4:], 303: raw}
  grammar = compile_regex("[日本][éü]🙂", vocabulary, [EOS], 400)
  found = list(tokenisations(raw, vocabulary))
  assert len(found) > 5
  for tokens in found:
    assert follow(grammar, (*tokens, EOS)) is not None
    assert follow(grammar, (*tokens[:-1], EOS)) is None
  # A class is of characters: no half of one passes.
  any_character = compile_regex(".", vocabulary, [EOS], 400)
  assert follow(any_character, (*raw[:3], EOS)) is not None
  assert follow(any_character, (*raw[:2], EOS)) is None
  assert follow(any_character, (255,)) is None


def test_all_eos_ids_in_final_states_only_and_never_as_text():
  # 7 is "c" to the tokenizer, and an EOS by the user's wish.
  grammar = compile_regex("ab?c?", SMALL, [7, 0, 19], 20)
  for state in range(grammar.n_states):
    tokens, nexts = grammar.edges(state)
    ends = {t: n for t, n in zip(tokens.tolist(), nexts.tolist(), strict=True)}
    ends = {t: n for t, n in ends.items() if t in (7, 0, 19)}
    assert ends in ({}, dict.fromkeys((0, 7, 19), state))
  assert follow(grammar, [19]) is None
  assert follow(grammar, [5, 7, 0]) == follow(grammar, [5])
  empty = compile_regex("", SMALL, [0, 19], 20)
  assert empty.edges(0)[0].tolist() == [0, 19]


def test_duplicate_tokens_all_count_and_empty_ones_never():
  grammar = compile_regex("ab", SMALL | {18: b""}, SMALL_EOS, 20)
  assert grammar.edges(0)[0].tolist() == [5, 8, 12]
  assert follow(grammar, [8]) == follow(grammar, [12])


def test_dead_ends_are_pruned():
  # No token has a z or a d: what needs one is not even begun.
  pruned = compile_regex("az|ab+|c(d|ez)", SMALL, SMALL_EOS, 20)
  plain = compile_regex("ab+", SMALL, SMALL_EOS, 20)
  assert pruned.n_states == plain.n_states
  assert pruned.tokens_E.tolist() == plain.tokens_E.tolist()
  assert pruned.next_E.tolist() == plain.next_E.tolist()


SCHEMA = {
  "type": "object",
  "title": "Thing",
  "$defs": {"Flag": {"type": "boolean"}},
  "properties": {
    "name": {"type": "string", "maxLength": 4},
    "n": {"type": "integer"},
    "kind": {"enum": ["big", "é", None, 3]},
    "tags": {"type": "array", "items": {"$ref": "#/$defs/Flag"}, "maxItems": 2},
    "x": {"anyOf": [{"type": "null"}, {"type": "number"}]},
  },
  "required": ["name", "kind", "x"],
}


def test_walks_of_a_json_schema():
  vocabulary = BYTES | {300: b'": ', 301: b'{"', 302: b'", "', 303: b'"}'}
  grammar = compile_json_schema(json.dumps(SCHEMA), vocabulary, [EOS], 400)
  rng, texts = random.Random(1), []
  while len(texts) < 20:
    tokens = walk(grammar, rng, [EOS], 300)
    if tokens is not None:
      texts.append(text_of(tokens, vocabulary))
  for text in texts:
    value = json.loads(text)
    assert {"name", "kind", "x"} <= set(value) <= set(SCHEMA["properties"])
    assert isinstance(value["name"], str) and len(value["name"]) <= 4
    assert isinstance(value.get("n", 0), int)
    assert value["kind"] in ("big", "é", None, 3)
    tags = value.get("tags", [])
    assert len(tags) <= 2 and all(isinstance(tag, bool) for tag in tags)
    assert value["x"] is None or isinstance(value["x"], int | float)
  assert len({frozenset(json.loads(text)) for text in texts}) > 1


@pytest.mark.parametrize("anything", [{}, True, {"description": "anything"}])
def test_a_property_without_a_schema_takes_any_value(anything):
  schema = {"type": "object", "properties": {"a": anything}, "required": ["a"]}
  grammar = compile_json_schema(json.dumps(schema), BYTES, [EOS], 257)
  for value in ("1.5e+3", "null", '"é\\n"', '[1, {"b":[]}]', "true"):
    assert follow(grammar, (*f'{{"a": {value}}}'.encode(), EOS)) is not None
    assert follow(grammar, (*value.encode(), EOS)) is None


def test_digits_of_schemas_are_ascii():
  schemas = (
    {"type": "string", "format": "date"},
    {"type": "string", "pattern": r"^[\d]\d{3}-\d\d-\d\d$"},
  )
  for schema in schemas:
    grammar = compile_json_schema(json.dumps(schema), BYTES, [EOS], 257)
    assert follow(grammar, (*b'"2024-02-29"', EOS)) is not None
    assert follow(grammar, '"२'.encode()) is None
  # A backslash and a "d", not a digit.
  grammar = compile_json_schema(r'{"const": "\\d"}', BYTES, [EOS], 257)
  assert follow(grammar, (*rb'"\\d"', EOS)) is not None


def failure(compiler, source, vocabulary=BYTES, eos_ids=(EOS,), vocab_size=257):
  with pytest.raises(UserError) as caught:
    compiler(source, vocabulary, eos_ids, vocab_size)
  message = str(caught.value)
  assert message.startswith("grammar: ") and "\n" not in message
  return message


@pytest.mark.parametrize(
  "pattern, word",
  [
    ("a(", "unterminated"),
    ("a)(b", "parenthesis"),
    ("(?=a)b", "look-around"),
    (r"(a)\1", "back-references"),
    (r"\bab", "word bound"),
    ("^ab$", "leave ^ and $ out"),
    ("ab$", "leave ^ and $ out"),
    (r"[^\s\S]", "admits no text"),
  ],
)
def test_patterns_that_cannot_be_used(pattern, word):
  message = failure(compile_regex, pattern)
  assert word in message and repr(pattern) in message


@pytest.mark.parametrize(
  "pattern, n",
  [
    ("(a{1000}){1000}", 10**6), ("((a{1000}){1000}){1000}", 10**9),
    ("(ab|c{3}){2,4}d{5,}", 4 * 5 + 5), (r"\w{2}\p{L}[\pL\]]{3}", 6 * 300),
    (r"[]a]{7}[^]]{2}[[a-z]&&[^c]]", 7 + 20 + 10), ("a{0,9}\\{3}", 9 + 3),
    (r"\(a{9}\)", 11), ("a*(b+)?", 2), (r"[\]{9}]{2}", 2), ("", 0),
    (")a{3}", 4), ("((a{3}", 3), ("[a{3}", 1), (".{3}", 30),
  ],
)  # fmt: skip
def test_repetitions_are_written_out(pattern, n):
  assert written_out(pattern) == n


def test_what_repeats_too_much_is_refused_before_it_is_made(monkeypatch):
  monkeypatch.setattr(regex, "_index", None)
  for pattern in (r"(a{1000}){1000}", r"(\w{99}){99}", "(.|((a{99}){99}){99})"):
    message = failure(compile_regex, pattern)
    assert "repetitions" in message and repr(pattern) in message


def test_other_mistakes():
  deep = "(" * 3000 + "a" + ")" * 3000
  assert "nested too deep" in failure(compile_regex, deep)
  message = failure(compile_regex, "a+z", SMALL, SMALL_EOS, 20)
  assert "'a+z' admits no text of this vocabulary" in message
  assert "--data.eos-tokens" in failure(compile_regex, "a", eos_ids=())
  assert "256" in failure(compile_regex, "a", vocab_size=256)
  assert "255" in failure(compile_regex, "a", eos_ids=(0,), vocab_size=255)


@pytest.mark.parametrize(
  "schema, word",
  [
    ("{", "not JSON"),
    ("3", "not a JSON schema: 3 is not of type 'object', 'boolean'"),
    ("[]", "not a JSON schema"),
    ('{"properties": 3}', "properties: 3 is not of type 'object'"),
    ('{"properties": {"a": [[1]]}}', "properties.a: [[1]] is not of type"),
    ('{"items": [{}]}', "items: [{}] is not of type"),
    ('{"required": "a"}', "required: 'a' is not of type 'array'"),
    ('{"minLength": -1}', "minLength: -1 is less than"),
    ('{"maxItems": 1.5}', "maxItems: 1.5 is not of type 'integer'"),
    ('{"exclusiveMinimum": true}', "exclusiveMinimum: True is not"),
    ('{"anyOf": []}', "anyOf"),
    ('{"multipleOf": 0}', "multipleOf: 0 is less than"),
    ('{"type": "foo"}', "foo"),
    ('{"minimum": NaN}', "NaN is no number"),
    ('{"minimum": 1e999}', "1e999 is no number"),
    ('{"const": ' + "1" * 5000 + "}", "is not JSON"),
    ('{"not": {}}', "admits nothing"),
    ('{"$ref": "#/nowhere"}', "nowhere"),
    ('{"type": "string",\n"pattern": "(?=a)"}', "look-around"),
  ],
)
def test_schemas_that_cannot_be_kept_to(schema, word):
  assert word in failure(compile_json_schema, schema)


@pytest.mark.parametrize("depth", [400, 800, 100_000])
def test_a_schema_nested_too_deep_is_one_line(depth):
  around = ('{"type":"array","items":', '{"anyOf":[{"type":"null"},')
  for begin, end in zip(around, ("}", "]}"), strict=True):
    failure(compile_json_schema, begin * depth + "true" + end * depth)


def test_a_schema_may_nest_deep():
  schema = '{"type":"array","items":' * 20 + '{"const":1}' + "}" * 20
  grammar = compile_json_schema(schema, BYTES, [EOS], 257)
  text = b"[" * 20 + b"1" + b"]" * 20
  assert follow(grammar, (*text, EOS)) is not None
  assert follow(grammar, (*text[:-1], EOS)) is None


def test_token_edges_are_bounded_while_they_are_made(monkeypatch):
  words = {300 + n: bytes(pair) for n, pair in enumerate(
    itertools.product(b"abcdefghij", repeat=2)
  )}  # fmt: skip
  vocabulary = BYTES | words
  # Ten states: the first eight take a letter or two, the ninth one, then none.
  grammar = compile_regex("[a-j]{0,9}", vocabulary, [EOS], 400)
  text_edges = 8 * 110 + 10
  assert len(grammar.tokens_E) == text_edges + grammar.n_states
  monkeypatch.setattr(grammar_lib, "MAX_EDGES", text_edges)
  compile_regex("[a-j]{0,9}", vocabulary, [EOS], 400)
  monkeypatch.setattr(grammar_lib, "MAX_EDGES", text_edges - 1)
  message = failure(compile_regex, "[a-j]{0,9}", vocabulary, vocab_size=400)
  assert f"more than {text_edges - 1} token edges" in message
  assert "vocabulary of 356" in message and "'[a-j]{0,9}'" in message


def test_missing_extra_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, "outlines_core", None)
  assert "mtpjax[grammar]" in failure(compile_regex, "a")
  monkeypatch.setitem(sys.modules, "jsonschema", None)
  assert "mtpjax[grammar]" in failure(compile_json_schema, "{}")
