import sys

import numpy as np
import pytest

from mtpjax.budget import Choice
from mtpjax.decode import Tree
from mtpjax.errors import UserError
from mtpjax.evals import figures


def draw_acceptance(path):
  figures.save_acceptance_figure(
    path,
    {
      "temperature 0": {"code, chain": [0.6, 0.3], "code, lookup": [0.2, None]},
      "temperature 1": {},
    },
  )


def draw_costs(path):
  figures.save_cost_figure(
    path, {"batch 1": [(4, 3e-3), (1, 1e-3)], "batch 8": [(1, 2e-3)]}
  )


def draw_budget(path):
  choice = Choice(Tree.chain(2), 1.8, 2e-3, 900.0, 1.2, "a reason")
  curve = [
    {"nodes": 1, "speed_over_plain": 1.0},
    {"nodes": 3, "speed_over_plain": 1.2},
  ]
  entry = {"temperature": 0.0, "curve": curve, "chosen": choice.to_dict()}
  figures.save_budget_figure(path, [entry | {"batch": 1}, entry | {"batch": 8}])


DRAWN = [draw_acceptance, draw_costs, draw_budget]


@pytest.mark.parametrize("draw", DRAWN)
def test_a_figure_is_a_png_with_lines_of_several_colours(draw, tmp_path):
  from matplotlib import image

  path = tmp_path / "new" / "figure.png"
  draw(path)
  pixels = image.imread(path)[..., :3].reshape(-1, 3)
  colours, counts = np.unique(pixels.round(2), axis=0, return_counts=True)
  vivid = np.ptp(colours, axis=1) > 0.5
  assert counts[vivid].sum() > 200
  assert len({tuple(c.round(1)) for c in colours[vivid]}) > 3
  assert "matplotlib.pyplot" not in sys.modules


@pytest.mark.parametrize(
  "draw", [*DRAWN, lambda _: figures.require_matplotlib()]
)
def test_without_matplotlib_the_extra_is_named(draw, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  with pytest.raises(UserError, match=r"mtpjax\[figures\]") as error:
    draw(tmp_path / "figure.png")
  assert "\n" not in str(error.value)
  assert not list(tmp_path.iterdir())
