"""Peak rates of devices, the denominator of MFU."""

import jax

# Dense bfloat16 TFLOP/s per device, from the vendors' data sheets.
_PEAK_TFLOPS = {
  "TPU v4": 275.0,
  "TPU v5 lite": 197.0,
  "TPU v5e": 197.0,
  "TPU v5": 459.0,
  "TPU v5p": 459.0,
  "TPU v6 lite": 918.0,
  "TPU v6e": 918.0,
  "NVIDIA A100": 312.0,
  "NVIDIA H100": 989.0,
  "NVIDIA H200": 989.0,
  "NVIDIA B200": 2250.0,
}


def peak_flops(device: jax.Device, given_tflops: float = 0.0) -> float | None:
  """Returns a device's peak in FLOP/s.

  Args:
    device: looked up by the longest known name its kind begins with.
    given_tflops: used instead, if not 0.

  Returns:
    FLOP/s, or None for an unknown kind.
  """
  if given_tflops:
    return given_tflops * 1e12
  names = [n for n in _PEAK_TFLOPS if device.device_kind.startswith(n)]
  return _PEAK_TFLOPS[max(names, key=len)] * 1e12 if names else None
