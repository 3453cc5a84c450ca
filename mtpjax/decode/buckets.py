"""Sizes that arrays are padded to, so that few programs are compiled."""

LEAST_TOKENS = 32  # of prompts, and of what is generated


def bucket(n: int, least: int) -> int:
  """Returns the smallest power of two that is at least n and `least`."""
  return max(least, 1 << max(n - 1, 0).bit_length())
