"""What a schema lets through is JSON that fits it, by jsonschema's judgement.

And what it takes is not absurdly little, and what can't be held to is named.
"""

import datetime
import json
import random
import re

import jsonschema
import pytest
from schemas import FORMATS, GROUPS

from mtpjax.decode.grammar import compile_json_schema
from mtpjax.decode.grammar.schema import schema_dfa
from mtpjax.errors import UserError

WALKS, LONGEST = 25, 400


def walk(dfa, rng):
  """Returns a random text; None if it does not end in time."""
  state, text = 0, bytearray()
  while len(text) < LONGEST:
    edges = dfa.edges[state]
    assert edges or state in dfa.finals, "a dead end"
    if state in dfa.finals and (not edges or rng.random() < 0.4):
      return bytes(text)
    low, high, state = rng.choice(edges)
    # The ends of an interval are where mistakes are.
    text.append(rng.choice((low, high, rng.randint(low, high))))
  return None


def takes(schema, text):
  return schema_dfa(schema, "it").accepts(text.encode())


@pytest.mark.parametrize("group", GROUPS)
def test_walks_are_json_that_fits(group):
  rng = random.Random(0)
  for schema in GROUPS[group]:
    jsonschema.Draft202012Validator.check_schema(schema)
    judge = jsonschema.Draft202012Validator(
      schema, format_checker=jsonschema.FormatChecker()
    )
    dfa = schema_dfa(schema, "it")
    texts = [walk(dfa, rng) for _ in range(WALKS)]
    texts = [text.decode() for text in texts if text is not None]
    assert texts, schema
    for text in texts:
      assert judge.is_valid(json.loads(text)), (schema, text)


def test_there_are_a_few_hundred():
  assert sum(map(len, GROUPS.values())) > 300


@pytest.mark.parametrize(
  "schema, texts",
  [
    ({}, ['{"a": [1, {"b": []}]}', "-1.5e+3", '"é\\n"', "null"]),
    ({"type": "integer"}, ["0", "-7", "123456789012345678"]),
    ({"type": "number"}, ["0.5", "1e10", "-0.1E-7"]),
    ({"type": "string"}, ['"日🙂"', '""', '"\\\\ \\" \\u0000"']),
    ({"type": "string", "maxLength": 2}, ['"日🙂"', '"\\n\\""']),
    ({"type": "string", "pattern": "b"}, ['"abc"', '"b"']),
    ({"type": "string", "pattern": "^\\D\\W$"}, ['"é—"']),
    (
      {"type": "string", "pattern": "^(?<y>\\u{1F600}|\\uD83D\\uDE00)$"},
      ['"😀"'],
    ),
    ({"type": "string", "format": "date"}, ['"2024-02-29"', '"2000-02-29"']),
    ({"type": "string", "format": "date-time"}, ['"2023-12-31T23:59:59.5Z"']),
    ({"type": "string", "format": "email"}, ['"a.b+c@mail.example.org"']),
    ({"type": "string", "format": "uri"}, ['"https://a.org/b?c=d&e#f"']),
    ({"type": "string", "format": "ipv4"}, ['"192.168.0.255"']),
    ({"type": "string", "format": "ipv6"}, ['"::1"', '"fe80::1:2"', '"::"']),
    ({"type": "number", "minimum": 0, "maximum": 1}, ["0", "1", "0.75"]),
    ({"minimum": 10, "type": "integer"}, ["10", "99999"]),
    ({"multipleOf": 0.5}, ["1.5", "2", "-0.5"]),
    ({"items": {"type": "integer"}, "type": "array"}, ["[]", "[1,2, 3]"]),
    ({"prefixItems": [{"type": "integer"}]}, ["[]", "[4]"]),
    ({"items": {"enum": [1, 2]}, "uniqueItems": True}, ["[2,1]", "[]"]),
    ({"properties": {"a": {}}}, ["{}", '{"a": 3}']),
    ({"required": ["a"]}, ['{"a": null}']),
    ({"type": "object"}, ['{"x": 1, "y": {"z": []}}']),
    (GROUPS["references"][0], ['{"v": 4, "n": {"v": 1, "n": null}}']),
    ({"oneOf": [{"type": "string"}, {"type": "null"}]}, ['"a"', "null"]),
    ({"not": {"type": "string"}}, ["1", "[]", "true"]),
  ],
)
def test_what_must_pass(schema, texts):
  for text in texts:
    assert takes(schema, text), text


def test_dates_are_those_of_the_calendar():
  dfa = schema_dfa({"type": "string", "format": "date"}, "it")
  for year in (1, 4, 100, 400, 1900, 2000, 2023, 2024, 2100, 9999):
    for month in range(14):
      for day in range(33):
        text = f"{year:04}-{month:02}-{day:02}"
        try:
          datetime.date.fromisoformat(text)
          is_date = True
        except ValueError:
          is_date = False
        assert dfa.accepts(f'"{text}"'.encode()) == is_date, text
  assert not dfa.accepts(b'"0000-01-01"')


@pytest.mark.parametrize(
  "bounds",
  [
    {"minimum": -12, "maximum": 107}, {"exclusiveMinimum": 9, "maximum": 11},
    {"minimum": -30, "exclusiveMaximum": -9}, {"multipleOf": 7},
    {"minimum": 98}, {"maximum": -98}, {"not": {"enum": [3, -4]}},
  ],
)  # fmt: skip
def test_integers_are_exactly_those_within_bounds(bounds):
  schema = {"type": "integer"} | bounds
  dfa, judge = schema_dfa(schema, "it"), jsonschema.Draft202012Validator(schema)
  for value in range(-130, 131):
    assert dfa.accepts(str(value).encode()) == judge.is_valid(value), value


@pytest.mark.parametrize("text, is_one", [
  ("a", True), ("0_-", True), ("é", False), ("٣", False), ("", False),
])  # fmt: skip
def test_classes_of_patterns_are_those_of_ecma(text, is_one):
  schema = {"type": "string", "pattern": "^[\\w-]+$"}
  assert takes(schema, json.dumps(text, ensure_ascii=False)) == is_one


@pytest.mark.parametrize("schema, words", [
  ({"enum": []}, "admits nothing"),
  (False, "admits nothing"),
  ({"minItems": 3, "maxItems": 2}, "minItems 3 is above maxItems 2"),
  ({"minLength": 3, "maxLength": 2}, "minLength 3 is above maxLength 2"),
  ({"minimum": 3, "maximum": 2}, "3, is above its largest, 2"),
  ({"minProperties": 3, "maxProperties": 2}, "maxProperties 2"),
  ({"minProperties": 3, "properties": {"a": {}},
    "additionalProperties": False}, "minProperties 3 is above its 1"),
  ({"const": 3, "type": "string"}, "no value of enum or const"),
  ({"enum": [1, 2], "const": 3}, "no value of enum or const"),
  ({"allOf": [{"type": "string"}, {"type": "null"}]}, "contradicts itself"),
  ({"type": "string", "pattern": "^a$", "minLength": 2}, "no string fits"),
  ({"properties": {"a": False}, "required": ["a"]}, "property 'a'"),
  ({"properties": {"a": {"minItems": 3, "maxItems": 2}}, "required": ["a"]},
   "property 'a': minItems 3 is above maxItems 2"),
  ({"$ref": "#"}, "admits nothing"),
  ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "admits nothing"),
  ({"maxlength": 3}, "maxlength would not be heeded"),
  ({"maxlength": 3}, "did you mean maxLength?"),
  ({"unevaluatedProperties": False}, "unevaluatedProperties"),
  ({"nullable": True}, "nullable"),
  ({"dependencies": {}}, "dependencies"),
  ({"$dynamicRef": "#a"}, "$dynamicRef"),
  ({"contentEncoding": "base64"}, "contentEncoding"),
  ({"type": "array", "uniqueItems": True}, "uniqueItems"),
  ({"multipleOf": 0.01}, "multipleOf"),
  ({"minProperties": 3}, "minProperties 3"),
  ({"format": "int32"}, "'int32'"),
  ({"oneOf": [{"multipleOf": 5}, {"multipleOf": 3}]}, "alternatives overlap"),
  ({"type": "string", "not": {"format": "date"}}, "format would not be heeded"),
  ({"format": "time"}, "'time' would not be heeded"),
  ({"pattern": "(?=a)"}, "look-around"),
  ({"pattern": "(?!a)"}, "look-around"),
  ({"pattern": "(a)\\1"}, "a back-reference"),
  ({"pattern": "\\ba"}, "word bound"),
  ({"pattern": "("}, "unterminated"),
  ({"pattern": "a)"}, "parenthesis"),
  ({"pattern": "[b-a]"}, "character range"),
  ({"pattern": "[]"}, "empty set"),
  ({"pattern": "*"}, "nothing to repeat"),
  ({"pattern": "a**"}, "multiple repeat"),
  ({"pattern": "\\q"}, "\\q"),
  ({"pattern": "\\"}, "too early"),
  ({"pattern": "a{9999}"}, "repetitions"),
  ({"pattern": "((a{9}){99}){99}"}, "states"),
  ({"type": "string", "maxLength": 10**9}, "states"),
  ({"type": "string", "minLength": 10**9}, "states"),
  ({"items": {}, "minItems": 10**9}, "states"),
  ({"$ref": "#/nowhere"}, "'#/nowhere' is nowhere"),
  ({"$ref": "https://a.org/b"}, "is not within the schema"),
  ({"$ref": "#anchor"}, "is not within the schema"),
  ({"properties": {"a": {"$id": "b", "type": "null"}}}, "$id"),
])  # fmt: skip
def test_what_cannot_be_held_to_is_named(schema, words):
  with pytest.raises(UserError) as caught:
    schema_dfa(schema, "'it'")
  message = str(caught.value)
  assert message.startswith("grammar: JSON schema 'it': ")
  assert words in message and "\n" not in message


@pytest.mark.parametrize("schema, place, words", [
  ({"type": "array", "uniqueItems": True}, "a", "uniqueItems would not"),
  ({"multipleOf": 0.01}, "a", "multipleOf"),
  ({"allOf": [{"multipleOf": 2}, {"multipleOf": 3}]}, "a/allOf/0",
   "several multipleOf"),
  ({"items": {"format": "time"}}, "a/items", "format 'time'"),
  ({"enum": ["x"], "format": "time"}, "a", "format 'time'"),
  ({"pattern": "(?=a)"}, "a", "pattern '(?=a)'"),
  ({"additionalProperties": {"nullable": True}}, "a/additionalProperties",
   "nullable would not be heeded"),
  ({"patternProperties": {"(": True}}, "a", "pattern '('"),
  ({"anyOf": [{"$ref": "#/no"}, {}]}, "a/anyOf/0", "$ref '#/no' is nowhere"),
  ({"minProperties": 3}, "a", "minProperties 3"),
  ({"items": {"maxLength": 10**9, "type": "string"}}, "a/items", "states"),
  ({"const": 3, "type": "string"}, "a", "admits nothing"),
  ({"type": "object", "required": ["b"], "properties": {
    "b": {"minItems": 3, "maxItems": 2}}}, "a/properties/b", "admits nothing"),
  ({"oneOf": [{"multipleOf": 5}, {"multipleOf": 3}]}, "a/oneOf/1",
   "multipleOf would not be heeded"),
  ({"oneOf": [{"type": "null"}], "uniqueItems": True, "type": "array"}, "a",
   "admits nothing"),
  ({"$id": "b", "type": "null"}, "a", "$id"),
  ({"allOf": [{"contains": {}}, {"contains": {}}]}, "a/allOf/0", "contains"),
])  # fmt: skip
def test_what_cannot_be_held_to_is_named_with_its_place(schema, place, words):
  whole = {"properties": {"a": schema}, "required": ["a"]}
  with pytest.raises(UserError) as caught:
    schema_dfa(whole, "'it'")
  message = str(caught.value)
  start = f"grammar: JSON schema 'it': '#/properties/{place}': "
  assert message.startswith(start) and words in message and "; " in message


def test_a_name_fits_every_pattern_that_is_found_in_it():
  schema = {
    "patternProperties": {"a": {"type": "integer"}, "b": {"type": "null"}},
    "additionalProperties": {"type": "string"},
  }
  assert takes(schema, '{"a": 1, "b": null, "c": ""}')
  for text in ('"ab": 1', '"ab": null', '"a": ""', '"a": null', '"c": 1'):
    assert not takes(schema, f"{{{text}}}"), text


def test_a_name_that_only_some_validators_know_is_an_additional_one():
  schema = {
    "required": ["é"],
    "patternProperties": {"^\\w$": {}},
    "additionalProperties": False,
  }
  with pytest.raises(UserError, match="property 'é'"):
    schema_dfa(schema, "it")
  assert takes(schema | {"required": ["e"]}, '{"e": 1}')


def test_references_are_followed_three_times():
  schema = {"type": "object", "properties": {"n": {"$ref": "#"}}}
  for n, takes_it in enumerate((True, True, True, True, False)):
    assert takes(schema, '{"n":' * n + "{}" + "}" * n) == takes_it, n


def test_places_are_pointers():
  odd = {"type": "array", "items": {"type": "array", "uniqueItems": True}}
  schema = {"$ref": "#/$defs/x~1y~0", "$defs": {"x/y~": odd}}
  with pytest.raises(UserError, match=r"'#/\$defs/x~1y~0/items': unique"):
    schema_dfa(schema, "it")


@pytest.mark.parametrize("name", FORMATS)
def test_formats_are_held_to_alike_in_enum(name):
  with pytest.raises(UserError, match="admits nothing"):
    schema_dfa({"enum": ["not (one)"], "format": name}, "it")


def test_the_automaton_of_tokens_is_that_of_the_bytes():
  schema = GROUPS["references"][0]
  vocabulary = {i: bytes([i]) for i in range(256)} | {300: b'{"v', 301: b'" '}
  grammar = compile_json_schema(json.dumps(schema), vocabulary, [256], 302)
  rng, judge = random.Random(0), jsonschema.Draft202012Validator(schema)
  for _ in range(40):
    state, text = 0, b""
    while True:
      tokens, nexts = grammar.edges(state)
      pick = rng.randrange(len(tokens))
      if tokens[pick] == 256:
        break
      text, state = text + vocabulary[tokens[pick]], nexts[pick]
    assert judge.is_valid(json.loads(text))
  assert not re.search(r"\\|\n", text.decode())
