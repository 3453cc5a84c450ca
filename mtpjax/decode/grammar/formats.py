"""The formats of strings that JSON schemas name.

Each pattern is narrow: what it takes every reader takes. There is no "time":
to some validators it has a time zone, to others it must not have one.
"""

_YEAR = r"(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
# Every fourth year, but of the centuries only every fourth.
_LEAP_YEAR = (
  r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])"
  r"|(?:0[48]|[2468][048]|[13579][26])00)"
)
_DATE = (
  rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
  r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
  rf"|{_LEAP_YEAR}-02-29)"
)
_HOUR, _MINUTE = "(?:[01][0-9]|2[0-3])", "[0-5][0-9]"
_TIME = (
  rf"{_HOUR}:{_MINUTE}:{_MINUTE}(?:\.[0-9]{{1,6}})?"
  rf"(?:Z|[+-]{_HOUR}:{_MINUTE})"
)
_DURATION = (
  r"P(?:[0-9]{1,4}W|(?:[0-9]{1,4}Y(?:[0-9]{1,4}M(?:[0-9]{1,4}D)?)?"
  r"|[0-9]{1,4}M(?:[0-9]{1,4}D)?|[0-9]{1,4}D)TIME?|TIME)"
).replace(
  "TIME",
  r"(?:T(?:[0-9]{1,4}H(?:[0-9]{1,4}M(?:[0-9]{1,4}S)?)?"
  r"|[0-9]{1,4}M(?:[0-9]{1,4}S)?|[0-9]{1,4}S))",
)
# Short enough that no name grows longer than 253 characters.
_LABEL = "[A-Za-z0-9]{1,15}(?:-[A-Za-z0-9]{1,15}){0,2}"
_HOST = rf"(?:{_LABEL}\.){{0,3}}[A-Za-z]{{2,15}}"
_NAME = "[A-Za-z0-9_+-]{1,15}"
_EMAIL = rf"{_NAME}(?:\.{_NAME}){{0,2}}@(?:{_LABEL}\.){{1,3}}[A-Za-z]{{2,15}}"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_GROUP = "[0-9A-Fa-f]{1,4}"
_IPV6 = "|".join(
  [rf"{_GROUP}(?::{_GROUP}){{7}}"]
  + [
    rf"{f'{_GROUP}(?::{_GROUP}){{{n - 1}}}' if n else ''}::"
    rf"(?:{_GROUP}(?::{_GROUP}){{0,{5 - n}}})?"
    for n in range(6)
  ]
  + [rf"{_GROUP}(?::{_GROUP}){{5}}::(?:{_GROUP})?"]
)
_PLAIN = "[A-Za-z0-9._~!$&'()*+,;=:@-]"
_URI = (
  rf"https?://{_HOST}(?::[1-9][0-9]{{0,3}})?(?:/{_PLAIN}*)*"
  rf"(?:\?(?:{_PLAIN}|[/?])*)?(?:#(?:{_PLAIN}|[/?])*)?"
)
_POINTER = r"(?:/(?:[^~/]|~[01])*)*"

_TEXTS = {
  "date": _DATE,
  "date-time": f"{_DATE}T{_TIME}",
  "duration": _DURATION,
  "email": _EMAIL,
  "idn-email": _EMAIL,
  "hostname": _HOST,
  "idn-hostname": _HOST,
  "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
  "ipv6": _IPV6,
  "uuid": "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
  "uri": _URI,
  "uri-reference": _URI,
  "iri": _URI,
  "iri-reference": _URI,
  "json-pointer": _POINTER,
  "relative-json-pointer": rf"[1-9]{{0,8}}[0-9](?:#|{_POINTER})",
}
# The pattern of each, in the syntax of ECMA-262.
FORMATS = {name: f"^(?:{text})$" for name, text in _TEXTS.items()}
