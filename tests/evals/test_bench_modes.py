import pytest
from tiny import multi_token_model

from mtpjax.config import Heads
from mtpjax.decode import Stages, Tree, parse_tree
from mtpjax.errors import UserError
from mtpjax.evals import default_modes, mode_spec, mode_specs

THREE = multi_token_model(heads_config=Heads(offsets=(1, 2, 3), matched=False))
NONE = multi_token_model(heads_config=Heads(offsets=(1,), matched=False))
FAR = multi_token_model(heads_config=Heads(offsets=(1, 3), matched=False))


@pytest.mark.parametrize("model", [THREE, NONE, FAR])
@pytest.mark.parametrize("verifier", ["coupled", "rejection", "block"])
def test_a_model_can_run_its_default_modes(model, verifier):
  modes = default_modes(model, verifier)
  assert (modes[0], modes[-1]) == ("next", "lookup")
  assert ("chain" in modes) == (model is THREE)
  specs = mode_specs(model, modes, Stages(), verifier=verifier)
  assert list(specs) == list(modes)


def test_the_default_tree_is_cut_to_the_reach_of_the_heads():
  spec = mode_spec(THREE, "tree", Stages())
  assert spec.tree == Tree.from_branching((4, 2))
  assert mode_spec(THREE, "tree", Stages(), "3").tree == parse_tree("3")


@pytest.mark.parametrize(
  "model, modes, options, words",
  [
    (THREE, ("next", "fast"), {}, "'fast' .* not one of|must be one of"),
    (THREE, ("next", "auto"), {}, "auto"),
    (THREE, ("next", "next"), {}, "next is there twice"),
    (THREE, ("next", "chain"), {"tree": "4,2"}, "--tree: 4,2"),
    (THREE, ("tree",), {"tree": "4,2,1"}, "3 drafts deep.* only 2"),
    (THREE, ("tree",), {"tree": "none.json"}, "none.json does not exist"),
    (THREE, ("tree",), {"verifier": "block"}, "block is for chains"),
    (NONE, ("next", "chain"), {}, "'chain' drafts with the head of offset 2"),
    (FAR, ("next", "heads-idle"), {}, "'heads-idle' drafts with"),
    (FAR, ("tree",), {}, "'tree' drafts with"),
  ],
)
def test_what_cannot_be_run_is_one_line(model, modes, options, words):
  with pytest.raises(UserError, match=words) as error:
    mode_specs(model, modes, Stages(), **options)
  assert "\n" not in str(error.value)
