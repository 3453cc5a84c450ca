"""Requests: what no device could run is refused in one line."""

import numpy as np
import pytest

from mtpjax import decode
from mtpjax.decode.requests import LARGEST, MAX_LENGTH
from mtpjax.errors import UserError

V = 11
INT = (1 << 31) - 1


def check(**changes):
  asked = {"ids": (1, 2), "max_new_tokens": 5} | changes
  decode.Request(**asked).check("prompt 3", V, (0,))


@pytest.mark.parametrize(
  "changes",
  [
    {"seed": INT, "index": INT, "top_k": INT},
    {"max_new_tokens": MAX_LENGTH - 2},
    {"temperature": 0.0},
    {"temperature": 1e-6, "top_p": 1e-6, "min_p": 0.0},
    {"temperature": LARGEST, "top_p": 1.0, "min_p": 0.999},
    {"repetition_penalty": 1e-6},
    {"repetition_penalty": LARGEST, "frequency_penalty": -LARGEST},
    {"presence_penalty": LARGEST},
    {"logit_bias": ((1, LARGEST), (2, -LARGEST), (1, -100), (1, -5.0))},
  ],
)
def test_what_is_just_within_bounds(changes):
  check(**changes)


@pytest.mark.parametrize(
  "changes, words",
  [
    ({"seed": INT + 1}, "seed 2147483648 must be from 0 to 2147483647"),
    ({"index": INT + 1}, "index 2147483648"),
    ({"index": -1}, "index -1"),
    ({"top_k": INT + 1}, "top_k 2147483648"),
    ({"top_k": -1}, "top_k -1"),
    ({"max_new_tokens": INT + 1}, "max_new_tokens 2147483648"),
    ({"max_new_tokens": 0}, "max_new_tokens 0 must be at least 1"),
    ({"max_new_tokens": MAX_LENGTH - 1}, "more than 16777216 tokens"),
    ({"min_new_tokens": 6}, "min_new_tokens 6"),
    ({"temperature": 9e-7}, "use 0 for greedy"),
    ({"temperature": -1.0}, "temperature -1.0"),
    ({"temperature": 1e39}, "temperature 1e+39"),
    ({"temperature": 10**400}, "temperature 1000"),
    ({"temperature": float("nan")}, "temperature nan"),
    ({"temperature": float("inf")}, "temperature inf"),
    ({"top_p": 9e-7}, "top_p 9e-07"),
    ({"top_p": 0.0}, "top_p 0.0"),
    ({"top_p": float("nan")}, "top_p nan"),
    ({"min_p": 1.0}, "min_p 1.0"),
    ({"repetition_penalty": 0.0}, "repetition_penalty 0.0"),
    ({"repetition_penalty": 1e-50}, "repetition_penalty 1e-50"),
    ({"repetition_penalty": 1e39}, "repetition_penalty 1e+39"),
    ({"frequency_penalty": -1e39}, "frequency_penalty -1e+39"),
    ({"frequency_penalty": 10**400}, "frequency_penalty 1000"),
    ({"presence_penalty": float("nan")}, "presence_penalty nan"),
    ({"logit_bias": ((1, 1e39),)}, "logit_bias 1:1e+39 must be finite"),
    ({"logit_bias": ((1, float("nan")),)}, "logit_bias 1:nan"),
    ({"logit_bias": ((1, LARGEST), (1, LARGEST))}, "logit_bias 1:1e+24"),
    ({"logit_bias": ((V, 1.0),)}, "id 11"),
  ],
)
def test_what_is_just_beyond_them(changes, words):
  with pytest.raises(UserError) as error:
    check(**changes)
  text = str(error.value)
  assert text.startswith("prompt 3: ") and "\n" not in text and words in text


def test_the_bounds_keep_logits_finite():
  # The largest penalty, as often as a text can have a token, and coldest.
  with np.errstate(over="raise"):
    worst = np.float32(LARGEST) * np.float32(MAX_LENGTH) / np.float32(1e-6)
  assert np.isfinite(worst)
