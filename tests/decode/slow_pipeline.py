"""The whole logits pipeline once more: float64 NumPy, one token at a time.

Written from what the settings mean, with sorts, loops over texts and `re`; it
shares no code with the package.
"""

import dataclasses
import re

import numpy as np

from mtpjax import decode
from mtpjax.decode import grammar as grammars

EOS_IDS = (10, 8)
TOKEN_BYTES = {
  0: b"a", 1: b"b", 2: b"c", 3: b"d", 4: b"ab", 5: b"cd", 6: b"bb", 7: b"e",
  9: b"ca",
}  # fmt: skip
# A pattern, and one for the beginnings of what it matches.
BEGINNINGS = {
  "(ab+|c+d|e|ca)*": "(ab+|c+d|e|ca)*(a|c+)?",
  "[a-e]{3,30}": "[a-e]{0,30}",
}


def compile_grammars(vocab_size):
  return [
    grammars.compile_regex(pattern, TOKEN_BYTES, EOS_IDS, vocab_size)
    for pattern in BEGINNINGS
  ]


def without(request, name):
  """The request with the default of one setting."""
  default = decode.Request.__dataclass_fields__[name].default
  return dataclasses.replace(request, **{name: default})


def softmax(x_V):
  p_V = np.exp(x_V - x_V.max())
  return p_V / p_V.sum()


def final_logits(request, eos_ids, logits_V, text):
  """What a token is drawn from.

  Args:
    request: its settings.
    eos_ids: ids that end a text.
    logits_V: the model's.
    text: ids generated so far.

  Returns:
    float64 [V].
  """
  r, text = request, tuple(text)
  x_V = np.array(logits_V, np.float64)
  for v in range(len(x_V)):
    times = text.count(v)
    if times or v in r.ids:
      if x_V[v] > 0:
        x_V[v] /= r.repetition_penalty
      else:
        x_V[v] *= r.repetition_penalty
    x_V[v] -= r.frequency_penalty * times
    if times:
      x_V[v] -= r.presence_penalty
  for v, bias in r.logit_bias:
    x_V[v] += bias
  for v in range(len(x_V)):
    longer = (*text, v)
    ends = v in eos_ids or ends_with(longer, r.stop_sequences)
    if ends_with(longer, r.bad_words):
      x_V[v] = -np.inf
    if ends and len(text) < r.min_new_tokens:
      x_V[v] = -np.inf
    if r.grammar is not None and not fits(r.grammar.source, eos_ids, text, v):
      x_V[v] = -np.inf
  if r.temperature:
    x_V /= r.temperature
  if r.top_k:
    x_V[x_V < np.sort(x_V)[::-1][: r.top_k].min()] = -np.inf
  if r.top_p < 1:
    order_V = np.argsort(-x_V, kind="stable")
    held_V = np.cumsum(softmax(x_V)[order_V])
    x_V[order_V[np.argmax(held_V >= r.top_p) + 1 :]] = -np.inf
  if r.min_p:
    p_V = softmax(x_V)
    x_V[p_V < r.min_p * p_V.max()] = -np.inf
  return x_V


def scores(request, eos_ids, logits_V, noise_V, text):
  """What the next token is the arg max of."""
  x_V = final_logits(request, eos_ids, logits_V, text)
  return x_V + noise_V if request.temperature else x_V


def ends_with(ids, sequences):
  return any(ids[-len(s) :] == s for s in sequences)


def fits(pattern, eos_ids, text, token):
  """May this token follow, in a text that must match the pattern?"""
  spelt = b"".join(TOKEN_BYTES[t] for t in text)
  if token in eos_ids:
    return re.fullmatch(pattern, spelt.decode()) is not None
  longer = (spelt + TOKEN_BYTES[token]).decode()
  return re.fullmatch(BEGINNINGS[pattern], longer) is not None


def ending(request, eos_ids, text):
  """Why a text ends here; "running" if it doesn't."""
  if text[-1] in eos_ids:
    return "eos"
  if ends_with(tuple(text), request.stop_sequences):
    return "stop"
  if len(text) == request.max_new_tokens:
    return "length"
  return "running"
