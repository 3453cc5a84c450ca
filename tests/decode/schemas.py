"""JSON schemas of the shapes that the test suite of JSON Schema has."""

import itertools

TYPES = (
  "null", "boolean", "integer", "number", "string", "array", "object",
)  # fmt: skip
VALUES = [
  None, True, False, 0, 1, -1, 1.0, 1.5, -0.25, 1e20, 12345678901234567890,
  "", "a", "é", "日本", "🙂", 'a"b', "a\\b", "a/b", "\n", "\x00\x1f\x7f",
  "\u2028", "\ud800", [], [1], [[1], {"a": None}], {}, {"a": 1},
  {'q"\\é': [True]}, {"": ""},
]  # fmt: skip
SMALL = {"type": "integer", "minimum": 0, "maximum": 9}
NULL, TRUE = {"type": "null"}, {"const": True}


def _types():
  yield from ({"type": name} for name in TYPES)
  yield from (
    {"type": list(pair)} for pair in itertools.combinations(TYPES[:5], 2)
  )
  yield {"type": ["string", "null"], "maxLength": 3}
  yield {"type": ["array", "object"]}


def _values():
  yield from ({"const": value} for value in VALUES)
  yield {"enum": VALUES}
  yield from ({"enum": VALUES, "type": name} for name in TYPES)
  yield {"enum": [0, False], "type": "boolean"}
  yield {"enum": [1, True], "type": "integer"}
  yield {"enum": ["a", "bb", 3, None], "minLength": 2}
  yield {"enum": [1, 5, 9], "minimum": 4}
  yield {"enum": [{"a": 1}, {"a": 2}], "properties": {"a": {"const": 2}}}
  yield {"const": "a", "enum": ["b", "a"]}
  yield {"enum": ["2024-02-29", "2023-02-29"], "format": "date"}
  yield {"type": "integer", "const": 1.0}


PATTERNS = (
  "^a+$", "b", "^\\S+$", "\\s", "^\\S*$", "^[\\w-]+$", "^\\w*$", "^\\W$",
  "^\\D$", "^\\d{3}$", "^[^\\d]{1,3}$", "^[^\\s]$", "^[^\\W]$", "^.{2}$",
  "^(a|ab)(c|bcd)*$", "^a{2,3}$", "^a{2,}$", "^a{2}$", "^$", "", "a|^b",
  "(^a|b$)", "^[\"\\\\]+$", "^\\\\d$", "^\\/$", "^\\u00e9$", "^\\x41$",
  "^[a-c\\-]$", "^[\\]\\[]$",
  "^\\t\\n\\r\\f\\v\\0$", "^[\\x00-\\x1f]$", "^(?:ab)+?$", "^[^\"]*$",
  "^é🙂$", "^[à-ü]$", "^\\.\\*\\+\\?\\(\\)\\$$",
  "^a{$", "^[.$^]$", "^\\$\\{[a-z]+\\}$",
)  # fmt: skip


def _strings():
  for least, most in ((0, 0), (0, 2), (1, 1), (2, 4), (3, None), (None, 5)):
    bounds = {"minLength": least, "maxLength": most}
    yield {"type": "string"} | {
      k: v for k, v in bounds.items() if v is not None
    }
  yield {"minLength": 1.0, "maxLength": 2.0}
  yield from ({"type": "string", "pattern": p} for p in PATTERNS)
  yield {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}
  yield {"type": "string", "pattern": "b", "minLength": 2, "maxLength": 4}
  yield {"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "b$"}]}
  yield {"type": "string", "format": "date", "pattern": "-02-29$"}


FORMATS = (
  "date", "date-time", "duration", "email", "idn-email", "hostname",
  "idn-hostname", "ipv4", "ipv6", "uuid", "uri", "uri-reference", "iri",
  "iri-reference", "json-pointer", "relative-json-pointer",
)  # fmt: skip


def _formats():
  yield from ({"type": "string", "format": name} for name in FORMATS)
  yield {"type": "string", "format": "ipv4", "maxLength": 8}


def _numbers():
  for bounds in (
    {"minimum": 3}, {"maximum": -7}, {"minimum": -1.5, "maximum": 2.25},
    {"exclusiveMinimum": 0}, {"exclusiveMaximum": 0}, {"maximum": 0},
    {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"minimum": 5, "maximum": 5}, {"minimum": 98, "maximum": 1203},
    {"minimum": -1203, "maximum": -98}, {"exclusiveMinimum": 0.1,
    "maximum": 0.3}, {"minimum": 1e20}, {"minimum": 1e-7, "maximum": 2e-7},
    {"minimum": 3, "exclusiveMinimum": 3}, {"minimum": -0.0},
    {"multipleOf": 3}, {"multipleOf": 1}, {"multipleOf": 0.5},
    {"multipleOf": 0.25, "minimum": 1, "maximum": 2}, {"multipleOf": 2.0},
    {"multipleOf": 7, "minimum": -20, "exclusiveMaximum": 22},
  ):  # fmt: skip
    yield {"type": "number"} | bounds
    if bounds.get("maximum") not in (0.3, 2e-7) and "exclusiveMaximum" not in (
      bounds
    ):
      yield {"type": "integer"} | bounds
  yield {"allOf": [{"minimum": 3}, {"minimum": 5}, {"maximum": 8}]}


def _arrays():
  yield {"items": False}
  yield {"items": NULL}
  yield {"type": "array", "items": {"items": {"items": NULL}}}
  for least, most in ((0, 0), (1, 1), (2, 3), (2, None), (None, 2)):
    bounds = {"minItems": least, "maxItems": most}
    bounds = {k: v for k, v in bounds.items() if v is not None}
    yield {"type": "array", "items": SMALL} | bounds
    yield {"prefixItems": [SMALL, NULL], "items": TRUE} | bounds
  yield {"prefixItems": [SMALL, NULL]}
  yield {"prefixItems": [SMALL, NULL], "items": False}
  yield {"prefixItems": [SMALL, NULL], "minItems": 3}
  yield {"prefixItems": [SMALL, False]}
  yield {"prefixItems": [True, {"maxLength": 1}], "maxItems": 2}
  yield {"items": {"enum": [1, "a", None]}, "uniqueItems": True}
  yield {"items": {"enum": [1, 1.0, True]}, "uniqueItems": True, "minItems": 2}
  yield {"items": {"type": "boolean"}, "uniqueItems": True}
  yield {"items": {"enum": [*range(20)]}, "uniqueItems": True, "minItems": 3,
         "maxItems": 5}  # fmt: skip
  yield {"items": {"enum": [*range(20)]}, "uniqueItems": True, "minItems": 9}
  yield {"items": {"type": "number"}, "uniqueItems": True, "maxItems": 1}
  yield {"items": SMALL, "uniqueItems": False}
  yield {"contains": {"const": 5}, "items": SMALL}
  yield {"contains": {"minimum": 5}, "items": SMALL, "minContains": 2}
  yield {"contains": {"minimum": 5}, "items": SMALL, "minContains": 1,
         "maxContains": 2}  # fmt: skip
  yield {"contains": {"type": "null"}, "prefixItems": [SMALL], "maxItems": 3}
  yield {"contains": NULL, "items": {"type": ["null", "boolean"]},
         "minContains": 0}  # fmt: skip
  yield {"contains": NULL, "items": {"type": ["null", "boolean"]},
         "minContains": 0, "maxContains": 1}  # fmt: skip


def _objects():
  a, b = {"a": SMALL}, {"b": NULL}
  both = {"properties": a | b}
  closed = both | {"additionalProperties": False}
  yield {"additionalProperties": False}
  yield from (both, closed, both | {"required": ["b"]})
  yield both | {"required": ["a", "b"]}
  yield closed | {"required": ["b"], "type": "object"}
  yield {"required": ["z"]}
  yield both | {"required": ["z"]}
  yield both | {"required": ["z"], "additionalProperties": TRUE}
  yield both | {"additionalProperties": TRUE}
  yield {"additionalProperties": SMALL}
  yield {"properties": {"a": True, "b": False}}
  yield {"properties": {"a": {"enum": []}}}
  for name in ('q"', "b\\", "é", "日本", "🙂", "", "\n", "a/b", "a b", "$ref",
               "__proto__"):  # fmt: skip
    yield {"properties": {name: SMALL}, "required": [name],
           "additionalProperties": NULL}  # fmt: skip
  for least, most in ((0, 0), (1, 1), (1, 2), (2, None), (3, 3), (None, 1)):
    bounds = {"minProperties": least, "maxProperties": most}
    bounds = {k: v for k, v in bounds.items() if v is not None}
    yield {"properties": a | b | {"c": TRUE}} | bounds
    if (least or 0) < 2:
      yield {"additionalProperties": NULL} | bounds
  yield both | {"minProperties": 3, "maxProperties": 4}
  pattern = {"patternProperties": {"^x": SMALL, "y$": NULL}}
  yield pattern
  yield pattern | {"additionalProperties": False}
  yield pattern | {"additionalProperties": TRUE}
  yield pattern | {"properties": {"x1": {"minimum": 5}, "q": NULL}}
  yield {"patternProperties": {"a": False}, "additionalProperties": NULL}
  yield {"patternProperties": {"^\\w$": NULL}, "properties": {"é": True}}
  yield {"propertyNames": {"maxLength": 2}, "additionalProperties": NULL}
  yield {"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": NULL}
  yield {"propertyNames": {"pattern": "^b"}, "properties": a | b}
  yield both | {"dependentRequired": {"a": ["b"]}}
  yield both | {"dependentRequired": {"a": ["b"], "b": ["a"]}}
  yield both | {"dependentSchemas": {"a": {"required": ["b"]}}}
  yield {"type": "object", "properties": {"a": {"type": "object",
         "properties": b, "required": ["b"]}}, "required": ["a"]}  # fmt: skip


def _joined():
  tag = [
    {"properties": {"t": {"const": t}, t: SMALL}, "required": ["t"]}
    for t in "abc"
  ]
  yield {"anyOf": tag}
  yield {"oneOf": tag}
  yield {"type": "object", "oneOf": [{**t, "type": "object"} for t in tag]}
  yield {"anyOf": [{"type": "string", "maxLength": 2}, NULL]}
  yield {"oneOf": [{"type": "string", "maxLength": 2}, NULL]}
  yield {"oneOf": [{"type": "integer"}, {"minimum": 2, "type": "number"}]}
  yield {"oneOf": [{"minLength": 2}, {"maxLength": 4}], "type": "string"}
  yield {"oneOf": [True, False]}
  # 5 as "a" would fit both.
  yield {
    "allOf": [
      {"properties": {"a": {"minimum": 3}}},
      {
        "oneOf": [
          {"type": "object", "properties": {"a": bound}, "required": ["a"]}
          for bound in ({"minLength": 5}, {"maxLength": 2})
        ]
      },
    ]
  }
  yield {"oneOf": [{"const": 1}, {"const": 2}, {"enum": [2, 3]}]}
  yield {"type": "object", "properties": {"a": SMALL, "b": NULL},
         "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}  # fmt: skip
  yield {"type": "object", "properties": {"a": SMALL, "b": NULL},
         "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}  # fmt: skip
  yield {"allOf": [{"properties": {"a": SMALL}, "required": ["a"]},
                   {"properties": {"b": NULL}, "required": ["b"]}]}  # fmt: skip
  yield {"allOf": [SMALL, {"minimum": 3}, {"not": {"const": 5}}]}
  yield {"allOf": [{"properties": {"a": SMALL}}, {"properties": {"b": NULL},
                   "additionalProperties": False}]}  # fmt: skip
  yield {"properties": {"a": SMALL}, "allOf": [
    {"properties": {"a": {"maximum": 3}, "b": NULL}}]}  # fmt: skip
  for inner in (
    {"type": "string"}, {"type": ["object", "array", "number"]},
    {"const": None}, {"enum": [1, True, "a"]}, {"minLength": 1},
    {"required": ["a"]}, {"anyOf": [{"type": "string"}, {"type": "array"}]},
    {"type": "string", "maxLength": 3}, {"not": SMALL}, False,
  ):  # fmt: skip
    yield {"not": inner}
    if inner != {"required": ["a"]}:  # which is true of all but objects
      yield {"type": ["string", "integer", "null"], "not": inner}
  yield {"type": "string", "maxLength": 2, "not": {"pattern": "^\\w"}}
  yield {"type": "string", "not": {"enum": ["a", "b"]}, "pattern": "^[a-c]$"}
  yield {"type": "number", "not": {"type": "integer"}}
  yield {"type": "number", "not": {"enum": [1, 2.5]}, "minimum": 1}
  yield {"type": "object", "properties": {"a": SMALL},
         "not": {"required": ["a"]}}  # fmt: skip
  when = {"properties": {"a": {"const": 1}}, "required": ["a"]}
  yield {"type": "object", "properties": {"a": SMALL, "b": NULL}, "if": when,
         "then": {"required": ["b"]}}  # fmt: skip
  yield {"type": "object", "properties": {"a": SMALL, "b": NULL}, "if": when,
         "else": {"required": ["b"]}}  # fmt: skip
  yield SMALL | {"if": {"minimum": 5}, "then": {"multipleOf": 3},
                 "else": {"multipleOf": 2}}  # fmt: skip
  yield SMALL | {"then": False, "else": False}


def _references():
  node = {"type": "object", "properties": {"v": SMALL, "n": {"anyOf": [
    {"$ref": "#/$defs/N"}, NULL]}}, "required": ["v", "n"]}  # fmt: skip
  yield {"$ref": "#/$defs/N", "$defs": {"N": node}}
  yield {
    "type": "object",
    "properties": {
      "v": SMALL,
      "kids": {"type": "array", "items": {"$ref": "#"}},
    },
    "required": ["v", "kids"],
  }
  yield {"properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
  yield {"anyOf": [NULL, {"type": "array", "items": {"$ref": "#"},
                          "minItems": 1}]}  # fmt: skip
  yield {
    "$ref": "#/$defs/x",
    "$defs": {
      "x": {
        "oneOf": [
          NULL,
          {
            "type": "object",
            "required": ["x"],
            "properties": {"x": {"$ref": "#/$defs/x"}},
          },
        ]
      }
    },
  }
  yield {
    "$ref": "#/$defs/a",
    "$defs": {
      "a": {"properties": {"b": {"$ref": "#/$defs/b"}}},
      "b": {"properties": {"a": {"$ref": "#/$defs/a"}, "s": SMALL}},
    },
  }
  for name, pointer in (("a/b", "a~1b"), ("a~b", "a~0b"), ("a%b", "a%25b"),
                        ("a b", "a%20b"), ('a"b', "a%22b"), ("é", "%C3%A9"),
                        ("~1", "~01")):  # fmt: skip
    yield {"$ref": f"#/$defs/{pointer}", "$defs": {name: SMALL}}
  yield {"$ref": "#/definitions/a", "definitions": {"a": SMALL}}
  yield {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": NULL}}
  yield {"$ref": "#/$defs/a", "maximum": 4, "$defs": {"a": SMALL}}
  yield {"prefixItems": [SMALL, {"$ref": "#/prefixItems/0"}]}
  yield {"properties": {"a": SMALL, "b": {"$ref": "#/properties/a"}}}
  yield {"properties": {"$ref": SMALL}, "required": ["$ref"]}
  yield {"$defs": {"t": True}, "not": {"not": {"$ref": "#/$defs/t"}},
         "type": "null"}  # fmt: skip
  yield {"$id": "https://example.com/s", "$ref": "#/$defs/a",
         "$defs": {"a": SMALL}}  # fmt: skip


def _annotated():
  yield from (True, {})
  yield SMALL | {
    "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "t",
    "description": "d", "default": "no number", "examples": [None],
    "$comment": "c", "deprecated": True, "readOnly": True, "writeOnly": False,
  }  # fmt: skip
  yield {"$schema": "http://json-schema.org/draft-07/schema#",
         "definitions": {"a": SMALL}, "type": "object",
         "properties": {"a": {"$ref": "#/definitions/a"}}}  # fmt: skip
  yield {"properties": {"title": SMALL, "enum": NULL, "type": TRUE},
         "required": ["title", "enum"]}  # fmt: skip


GROUPS = {
  make.__name__[1:]: list(make())
  for make in (
    _types, _values, _strings, _formats, _numbers, _arrays, _objects, _joined,
    _references, _annotated,
  )
}  # fmt: skip
