"""JSON schemas: what outlines-core heeds of them, and nothing else."""

import json
from typing import Any

from mtpjax.decode.grammar.grammar import shown
from mtpjax.errors import UserError

# What outlines-core heeds: it looks for these keywords in this order, goes by
# the first that it finds, and reads of the others only those named here.
_HEEDED: dict[str, set[str]] = {
  "properties": {"type", "required", "additionalProperties"},
  "allOf": set(),
  "anyOf": set(),
  "oneOf": set(),
  "prefixItems": {"type", "items"},
  "enum": {"type"},
  "const": {"type"},
  "$ref": set(),
}
_HEEDED_BY_TYPE: dict[str, set[str]] = {
  "string": {"minLength", "maxLength", "pattern", "format"},
  "array": {"items", "minItems", "maxItems"},
  "object": {"additionalProperties"},
}
# Its patterns of time, uri and email admit texts that are not even JSON.
_FORMATS = {"date", "date-time", "uuid"}
_ANNOTATIONS = {
  "$schema", "$id", "$comment", "$defs", "definitions", "title", "description",
  "default", "examples", "deprecated", "readOnly", "writeOnly",
}  # fmt: skip


def plain_schema(schema: Any, name: str) -> Any:
  """Returns the schema without annotations; all that is left is heeded.

  outlines-core passes over what it does not know, such as `minimum`: the text
  would look as if it kept to the schema.

  Args:
    schema: of any depth, as JSON gives it.
    name: of the whole schema, for messages.

  Raises:
    UserError: something in it would not be heeded.
  """
  if schema is True or (
    isinstance(schema, dict) and not set(schema) - _ANNOTATIONS
  ):
    # Alternatives, which outlines-core puts in parentheses only here.
    anything: dict[str, Any] = {"anyOf": [{}]}
    return anything | _definitions(schema, name)
  if not isinstance(schema, dict):
    raise UserError(
      f"grammar: JSON schema {name}: {shown(json.dumps(schema))} is not an "
      "object"
    )
  left = {k: v for k, v in schema.items() if k not in _ANNOTATIONS}
  first = next((keyword for keyword in _HEEDED if keyword in left), "type")
  heeded = {first} | _HEEDED.get(first, set())
  if first == "type":
    types = left.get("type")
    for kind in types if isinstance(types, list) else [types]:
      heeded |= _HEEDED_BY_TYPE.get(str(kind), set())
  passed_over = set(left) - heeded
  # Of these only the first counts.
  lengths = {"minLength", "maxLength"} & set(left)
  if (bool(lengths), "pattern" in left, "format" in left).count(True) > 1:
    passed_over |= {"pattern", "format"} & set(left)
  if left.get("format", "date") not in _FORMATS:
    passed_over.add("format")
  if first == "allOf" and len(left["allOf"]) != 1:
    passed_over.add("allOf")  # joined one behind the other
  if passed_over:
    raise UserError(
      f"grammar: JSON schema {name}: {', '.join(sorted(passed_over))} would "
      f"not be heeded in {shown(json.dumps(left))}; leave it out"
    )
  properties = left.get("properties", {})
  for key in [*properties, *left.get("required", ())]:
    if key not in properties:
      raise UserError(
        f"grammar: JSON schema {name}: {key!r} is required but not among the "
        "properties"
      )
    if json.dumps(key, ensure_ascii=False) != f'"{key}"':
      raise UserError(
        f"grammar: JSON schema {name}: the property {key!r} needs escapes; "
        "use another name"
      )
  for keyword in ("properties", "items", "additionalProperties"):
    if keyword not in left or (first == "properties" != keyword):
      continue
    if keyword == "properties":
      left[keyword] = {k: plain_schema(v, name) for k, v in properties.items()}
    elif left[keyword] is not False:
      left[keyword] = plain_schema(left[keyword], name)
  for keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
    if keyword in left:
      left[keyword] = [plain_schema(v, name) for v in left[keyword]]
  return left | _definitions(schema, name)


def _definitions(schema: Any, name: str) -> dict[str, Any]:
  found = schema if isinstance(schema, dict) else {}
  return {
    keyword: {k: plain_schema(v, name) for k, v in found[keyword].items()}
    for keyword in ("$defs", "definitions")
    if keyword in found
  }
