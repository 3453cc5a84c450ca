"""Looks at what XLA makes of a program."""

import contextlib
import functools
import os
import re
import tempfile

import jax

# The code that users get: what conftest.py has changed, changed back.
AS_USERS: dict[str, int | bool] = {"xla_backend_optimization_level": 3}
if "xla_cpu_use_fusion_emitters" in os.environ["XLA_FLAGS"]:
  AS_USERS["xla_cpu_use_fusion_emitters"] = True
full_jit = functools.partial(jax.jit, compiler_options=AS_USERS)
# What XLA makes of a program as users have it, for tests that read the text or
# the memory of it and never run it. Machine code comes after that: how good it
# is changes neither, and costs half of the time.
UNRUN = AS_USERS | {"xla_backend_optimization_level": 0}
jit_unrun = functools.partial(jax.jit, compiler_options=UNRUN)


@contextlib.contextmanager
def captured_stderr():
  """Yields a function that returns what was written to file descriptor 2."""
  with tempfile.TemporaryFile() as file:
    kept = os.dup(2)
    os.dup2(file.fileno(), 2)

    def text():
      file.seek(0)
      return file.read().decode(errors="replace")

    try:
      yield text
    finally:
      os.dup2(kept, 2)
      os.close(kept)


_REDUCTION = re.compile(r"= (.*?) (all-reduce|reduce-scatter)(-start)?\((.*)")
_SHAPE = re.compile(r"\w+\[([\d,]*)\]")
_CALLED = re.compile(
  r"(?:calls|to_apply|body|condition|branch_computations)=\{?([%\w.,\- ]+)"
)


def computations(hlo):
  """Returns {name: lines} of the text of a compiled module."""
  result, lines = {}, []
  for line in hlo.splitlines():
    if line.endswith("{") and " -> " in line:
      lines = result.setdefault(
        line.removeprefix("ENTRY ").split()[0].lstrip("%"), []
      )
    elif line.startswith("  "):
      lines.append(line)
  return result


def sums_over_devices(hlo, is_wanted):
  """Counts reductions over devices, outside and inside of loops.

  Args:
    hlo: text of a compiled module.
    is_wanted: from a shape, before the reduction, to a bool.

  Returns:
    (number outside of while bodies, number inside of one).
  """
  bodies = computations(hlo)
  called = {
    name: [
      callee.strip().lstrip("%")
      for line in lines
      for group in _CALLED.findall(line)
      for callee in group.split(",")
    ]
    for name, lines in bodies.items()
  }
  inside = set()
  waiting = [
    body.lstrip("%")
    for lines in bodies.values()
    for line in lines
    for body in re.findall(r"body=(%?[\w.\-]+)", line)
  ]
  while waiting:
    name = waiting.pop()
    if name in bodies and name not in inside:
      inside.add(name)
      waiting += called[name]
  counts = [0, 0]
  for name, lines in bodies.items():
    shapes = {}
    for line in lines:
      if match := re.match(r"\s+(?:ROOT )?(%[\w.\-]+) = \w+(\[[\d,]*\])", line):
        shapes[match[1]] = match[2]
    for line in lines:
      match = _REDUCTION.search(line)
      if match is None:
        continue
      operands = match[4].split(")")[0]
      for operand in re.findall(r"%[\w.\-]+", operands):
        size = shapes[operand].strip("[]")
        shape = tuple(int(n) for n in size.split(",") if n)
        counts[name in inside] += bool(is_wanted(shape))
  return tuple(counts)


def has_dot_of_shape(stablehlo, is_wanted):
  """Does any matrix product of a lowered program have such a shape?"""
  for line in stablehlo.splitlines():
    if "stablehlo.dot_general" in line:
      result = line.split("->")[-1]
      sizes = re.findall(r"tensor<([\dx]*)x\w+>", result)[0].split("x")
      if is_wanted(tuple(map(int, sizes))):
        return True
  return False


def temporary_bytes(compiled):
  """Returns the bytes XLA sets aside beside arguments and results."""
  return compiled.memory_analysis().temp_size_in_bytes
