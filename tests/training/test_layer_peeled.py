"""PLP: groups freeze to the bit one after another, from the head down, with their momentum and batch statistics."""


import flax.traverse_util
import jax
import numpy as np
import pytest

from calib_jax import models
from calib_jax.training.engine import stages
from tests.training.small import built, digits, one_step

# Nine steps; the head, group 2 and group 1 are three groups, for a network that has no stem.
SMALL = ("training.batch_size=16", "training.num_epochs=3", "training.log_every_steps=1", "loss.secondary.name=",
         "optimizer.learning_rate=0.05", "optimizer.schedule=constant", "model.name=simple_cnn", "model.channels=(4,4)",
         "optimizer.l2=0.01", "optimizer.weight_decay=0.1", "optimizer.decay_norms_and_biases=true",
         "schedule.name=layer_peeled")


def _moments(state):
  """Arrays by path of parameters, momentum and batch statistics."""
  flat = {kind: flax.traverse_util.flatten_dict(getattr(state, kind)) for kind in ("params", "batch_stats")}
  flat["momentum"] = {
    tuple(part.key for part in path if isinstance(part, jax.tree_util.DictKey)): x
    for path, x in jax.tree_util.tree_leaves_with_path(state.opt_state) if isinstance(path[-1], jax.tree_util.DictKey)}
  return {kind: {path: np.asarray(x) for path, x in tree.items()} for kind, tree in flat.items()}


@pytest.mark.parametrize(("optimizer", "exponent", "freezes_stats", "accumulation"), [
  pytest.param("sgd", 2.0, False, 2, marks=pytest.mark.slow), ("adamw", 1.0, True, 1)])
def test_groups_freeze_from_the_head_down(optimizer, exponent, freezes_stats, accumulation):
  config = digits(*SMALL, f"optimizer.name={optimizer}", f"schedule.peeling_exponent={exponent}",
                   f"training.accumulation_steps={accumulation}",
                   f"schedule.freeze_batch_stats={freezes_stats}")
  program, keys = built(config)
  stage, = program.stages
  state = stage.start(None, keys)
  groups = models.layer_groups(state.params)
  assert [group[0].split("_")[0] for group in groups] == ["head", "group2", "group1"] and stage.last_step == 9
  source = stages.batches(stage.plan.phases, 0, [0], batch_size=16, num_devices=2, accumulation=accumulation)
  for step in range(9):
    before = _moments(state)
    state, _ = one_step(stage.train_steps[0], state, next(source)[1], keys)
    after = _moments(state)
    assert before["momentum"] and before["batch_stats"]
    for i, group in enumerate(groups, 1):
      frozen = i < 3 and step >= 9 * (i / 3) ** exponent
      for kind, tree in before.items():
        for path, x in tree.items():
          if path[0] in group:
            same = np.array_equal(x, after[kind][path])
            assert same == (frozen and (kind != "batch_stats" or freezes_stats)), (step, kind, path)
