"""For tests of the evaluation harness: no network, and a folder of their own.

To be imported before `lm_eval`, whose libraries read this once.
"""

import atexit
import os
import shutil
import tempfile

HOME = tempfile.mkdtemp(prefix="mtpjax-hf-")
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
os.environ |= {
  "HF_HUB_OFFLINE": "1",
  "HF_DATASETS_OFFLINE": "1",
  "HF_EVALUATE_OFFLINE": "1",
  "HF_HOME": HOME,
  # As the command has it; their bars would stand between what is tested.
  "TQDM_DISABLE": "1",
  # Where the harness keeps requests, if asked to.
  "LM_HARNESS_CACHE_PATH": HOME,
}
