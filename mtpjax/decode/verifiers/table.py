"""Verifiers by name, and the one that settings ask for."""

import dataclasses
from typing import Any

from mtpjax import config as config_lib
from mtpjax.decode.verifiers.block import Block
from mtpjax.decode.verifiers.coupled import Coupled
from mtpjax.decode.verifiers.rejection import Rejection
from mtpjax.decode.verifiers.typical import Typical
from mtpjax.decode.verifiers.verifier import Verifier
from mtpjax.errors import UserError

VERIFIERS: dict[str, type[Verifier]] = {
  "coupled": Coupled,
  "rejection": Rejection,
  "block": Block,
  "typical": Typical,
}


def of(settings: config_lib.Decode) -> Verifier:
  """Returns the verifier of settings.

  Args:
    settings: `verifier` is a name, or a name with options, such as
      "typical:epsilon=0.1,delta=0.2". An option that is not given there has
      the value of the field `NAME_OPTION`, if there is one, or its default.

  Returns:
    The verifier.

  Raises:
    UserError: unknown name or option, or a value that is no number.
  """
  name, _, given = settings.verifier.partition(":")
  if name not in VERIFIERS:
    raise UserError(
      f"decode.verifier: {name!r} is not one of {', '.join(VERIFIERS)}"
    )
  kind = VERIFIERS[name]
  options: dict[str, Any] = {
    field.name: getattr(settings, f"{name}_{field.name}", field.default)
    for field in dataclasses.fields(kind)
  }
  for option in filter(None, given.split(",")):
    key, _, value = option.partition("=")
    if key not in options:
      known = ", ".join(f"{k}=NUMBER" for k in options) or "no options"
      raise UserError(
        f"decode.verifier: {name} has no option {key!r}; it takes {known}"
      )
    try:
      options[key] = type(options[key])(value)
    except ValueError as error:
      raise UserError(
        f"decode.verifier: {option!r} is no number; give {name}:{key}=NUMBER"
      ) from error
  return kind(**options)


def name_of(verifier: Verifier) -> str:
  """Returns the name that a verifier has in the table."""
  return next(n for n, kind in VERIFIERS.items() if isinstance(verifier, kind))
