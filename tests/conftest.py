"""Eight host devices, and one compilation cache for the whole run."""

import os
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
flag = "--xla_force_host_platform_device_count=8"
if flag not in os.environ.get("XLA_FLAGS", ""):
  os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
