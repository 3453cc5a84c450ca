"""The only place that knows mesh axes."""

from mtpjax.parallel.axes import (
  Logical,
  abstract_arrays,
  constrain,
  is_box,
  logical,
  partition,
  shardings,
  stack,
  unbox,
)
from mtpjax.parallel.mesh import (
  batch_shards,
  check_batch,
  make_mesh,
  place_batch,
  single_device_mesh,
)

__all__ = [
  "Logical",
  "abstract_arrays",
  "batch_shards",
  "check_batch",
  "constrain",
  "is_box",
  "logical",
  "make_mesh",
  "partition",
  "place_batch",
  "shardings",
  "single_device_mesh",
  "stack",
  "unbox",
]
