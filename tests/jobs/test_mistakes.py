"""Random mistakes with the tiny run; `tests/mistakes.py` makes any number."""

import mistakes


def test_no_mistake_is_a_traceback(tiny_root, tmp_path):
  root = tmp_path / "root"
  mistakes.copy_inputs(tiny_root, root)
  assert list(mistakes.failures(root, count=120, seed=3)) == []
