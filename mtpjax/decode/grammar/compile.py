"""Grammars as token automata: which tokens may follow, and where they lead.

A pattern is turned into an automaton over bytes by outlines-core, a JSON
schema by `schema_dfa` (outlines-core passes over much of a schema), and the
tokens of the vocabulary are then followed through it byte by byte here. (Its
own index over tokens is not used: it leaves tokens out wherever a match could
also go on, such as the "." of "1.5" after `[0-9]+`.)

  pattern ab*          state  token  leads to
  tokens a b ab EOS    0      a      1
                       0      ab     1
                       1      b      1
                       1      EOS    1

Axes: G states of the token automaton, E its edges, N states of the byte
automaton, T tokens of the vocabulary, L bytes of the longest token.
"""

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np

from mtpjax.decode.grammar.grammar import Grammar, shown
from mtpjax.decode.grammar.regex import byte_automaton, reaching
from mtpjax.decode.grammar.schema import schema_dfa
from mtpjax.errors import UserError

# Of the token automaton. Where any character may follow, a state has nearly
# the whole vocabulary: 8 bytes an edge here, and as many on the device.
MAX_EDGES = 1 << 25


def compile_regex(
  pattern: str,
  token_bytes: Mapping[int, bytes],
  eos_ids: Sequence[int],
  vocab_size: int,
) -> Grammar:
  r"""Compiles a regular expression, which the whole text must match.

  Args:
    pattern: in the syntax of Rust's `regex`, without look-around,
      back-references, ^, $ and Unicode \b. `.` and classes are characters of
      Unicode, \d and \w too.
    token_bytes: the bytes of every ordinary token.
    eos_ids: ids that end a text; all of them may end a match.
    vocab_size: ids are below this.

  Returns:
    The grammar. Every tokenisation of a matching text is allowed, and no
    state is a dead end.

  Raises:
    UserError: not such a pattern, one of too many states or token edges, no
      text of this vocabulary matches, no EOS, an id that is too large, or
      outlines-core is not installed.
  """
  automaton = byte_automaton(pattern, shown(pattern))
  return _compile(pattern, automaton, token_bytes, eos_ids, vocab_size)


def compile_json_schema(
  schema: str,
  token_bytes: Mapping[int, bytes],
  eos_ids: Sequence[int],
  vocab_size: int,
) -> Grammar:
  """Compiles a JSON schema.

  Whatever is allowed is JSON that fits the schema, once it has ended; not
  every text that fits is allowed. Properties come in the order of the schema,
  others only where `additionalProperties` or `patternProperties` is given, or
  no property is named. A schema that names no type means those that its
  keywords are about. References to itself are followed three times, numbers
  have at most 18 digits, and classes of patterns are read as all validators
  read them.

  Args:
    schema: the schema as JSON, of the draft 2020-12.
    token_bytes: the bytes of every ordinary token.
    eos_ids: ids that end a text; all of them may end a match.
    vocab_size: ids are below this.

  Returns:
    The grammar.

  Raises:
    UserError: not JSON, not a schema, one with something that can't be held
      to, one that nothing fits, or jsonschema is not installed; and all of
      `compile_regex` that is not about patterns.
  """
  name = shown(schema)
  try:
    import jsonschema
  except ModuleNotFoundError as error:
    raise UserError(
      "grammar: jsonschema is not installed; install mtpjax[grammar]"
    ) from error
  try:
    definition = json.loads(
      schema, parse_constant=_refuse_number, parse_float=_finite
    )
  except (ValueError, RecursionError) as error:
    raise UserError(f"grammar: {name} is not JSON ({error})") from error
  try:
    # Its patterns are not Python's.
    jsonschema.Draft202012Validator.check_schema(
      definition, jsonschema.FormatChecker(())
    )
    found = schema_dfa(definition, name)
  except RecursionError as error:
    raise UserError(
      f"grammar: JSON schema {name} is nested too deep; flatten it"
    ) from error
  except jsonschema.SchemaError as error:
    reason = " ".join(error.message.split())
    at = error.json_path.removeprefix("$").removeprefix(".")
    raise UserError(
      f"grammar: {name} is not a JSON schema: {at + ': ' if at else ''}"
      f"{reason if len(reason) <= 200 else reason[:197] + '...'}"
    ) from error
  dead = len(found.edges)
  table_NB = np.full((dead + 1, 256), dead, np.int32)
  for state, edges in enumerate(found.edges):
    for low, high, to in edges:
      table_NB[state, low : high + 1] = to
  is_final_N = np.zeros(dead + 1, bool)
  is_final_N[list(found.finals)] = True
  return _compile(
    schema, (table_NB, is_final_N, 0), token_bytes, eos_ids, vocab_size
  )


def _refuse_number(text: str) -> float:
  raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
  value = float(text)
  return value if math.isfinite(value) else _refuse_number(text)


def _compile(
  source: str,
  automaton: tuple[np.ndarray, np.ndarray, int],
  token_bytes: Mapping[int, bytes],
  eos_ids: Sequence[int],
  vocab_size: int,
) -> Grammar:
  if not eos_ids:
    raise UserError(
      "grammar: the tokenizer has no EOS, and a text that matches could never "
      "end; name one with --data.eos-tokens"
    )
  # A token of no bytes could be repeated for ever.
  texts = {i: text for i, text in token_bytes.items() if text}
  outside = [i for i in (*texts, *eos_ids) if not 0 <= i < vocab_size]
  if outside:
    raise UserError(
      f"grammar: token {outside[0]} is not below the vocabulary size of "
      f"{vocab_size}; the tokenizer is not the model's"
    )
  eos_T = np.unique(np.asarray(eos_ids, np.int32))
  # One that is also an ordinary token is never text.
  ids = [i for i in sorted(texts) if i not in eos_ids]
  table_NB, is_final_N, start = automaton
  edges = _token_edges(table_NB, start, [texts[i] for i in ids], shown(source))
  successors = {state: set(np.unique(to).tolist()) for state, (_, to) in edges}
  is_kept_N = np.zeros(len(table_NB), bool)
  is_kept_N[list(reaching(successors, np.flatnonzero(is_final_N)))] = True
  if not is_kept_N[start]:
    raise UserError(
      f"grammar: {shown(source)} admits no text of this vocabulary; the "
      "tokenizer lacks a token for some byte of every match"
    )
  # What can't finish is never on the way to what can: the order stays
  # breadth-first without it.
  order = [state for state, _ in edges if is_kept_N[state]]
  number_N = np.zeros(len(table_NB), np.int32)
  number_N[order] = np.arange(len(order))
  ids_T = np.asarray(ids, np.int32)
  tokens, nexts = [], []
  for state, (rows, to) in edges:
    if not is_kept_N[state]:
      continue
    kept = is_kept_N[to]
    token_E, next_E = ids_T[rows[kept]], number_N[to[kept]]
    if is_final_N[state]:
      token_E = np.concatenate([token_E, eos_T])
      itself = np.full_like(eos_T, number_N[state])
      next_E = np.concatenate([next_E, itself])
    ascending = np.argsort(token_E)
    tokens.append(token_E[ascending])
    nexts.append(next_E[ascending])
  starts_G1 = np.zeros(len(order) + 1, np.int64)
  np.cumsum([len(t) for t in tokens], out=starts_G1[1:])
  return Grammar(
    source, vocab_size, starts_G1, np.concatenate(tokens), np.concatenate(nexts)
  )


def _token_edges(
  table_NB: np.ndarray, start: int, texts: Sequence[bytes], name: str
) -> list[tuple[int, tuple[np.ndarray, np.ndarray]]]:
  """Follows every text from every state within reach, breadth first.

  Returns (state, (indices into texts, states they lead to)) of each; raises
  UserError as soon as there are too many.
  """
  dead = len(table_NB) - 1
  lengths_T = np.asarray([len(text) for text in texts], np.int32)
  longest = max(lengths_T, default=0)
  padded = b"".join(text.ljust(longest, b"\0") for text in texts)
  bytes_LT = np.frombuffer(padded, np.uint8).reshape(-1, longest or 1).T.copy()
  flat = table_NB.ravel()
  queue, seen, edges, n_edges = [start], {start}, [], 0
  for state in queue:
    alive = np.arange(len(texts), dtype=np.int32)
    at = np.full(len(texts), state, np.int32)
    rows, to = [alive[:0]], [at[:0]]
    for depth in range(longest):
      at = flat[at * 256 + bytes_LT[depth, alive]]
      lives = at != dead
      alive, at = alive[lives], at[lives]
      if not alive.size:
        break
      ends = lengths_T[alive] == depth + 1
      rows.append(alive[ends])
      to.append(at[ends])
      alive, at = alive[~ends], at[~ends]
    n_edges += sum(map(len, rows))
    if n_edges > MAX_EDGES:
      raise UserError(
        f"grammar: {name} has more than {MAX_EDGES} token edges with this "
        f"vocabulary of {len(texts)}; repeat less, or bound the repetitions "
        "(maxLength, {0,9}) lower"
      )
    edges.append((state, (np.concatenate(rows), np.concatenate(to))))
    new = [s for s in np.unique(edges[-1][1][1]).tolist() if s not in seen]
    seen.update(new)
    queue.extend(new)
  return edges
