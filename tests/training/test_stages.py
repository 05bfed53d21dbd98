"""Stages: what freezes stays to the bit, what is reset is new, and a run goes on across their border."""

from typing import NamedTuple

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses
from calib_jax._system.errors import UserError
from calib_jax.training import config as run_config
from calib_jax.training import data, loss_state, models
from calib_jax.training.engine import stages
from tests.training.small import alone, assert_same, built, finished, one_step, short, tiny_splits, train
from tests.training.test_pretrained import rgb_splits, write_weights

SMALL = ("training.num_epochs=2", "loss.secondary.name=", "model.name=simple_cnn", "model.channels=(4,)",
         "optimizer.l2=0.01")
RETRAIN = (*SMALL, "schedule.name=classifier_retraining", "schedule.stage2_epochs=2",
           "stage2.optimizer.weight_decay=0.1", "stage2.optimizer.learning_rate=0.05")


def test_the_second_stage_begins_with_a_new_head_and_its_own_optimizer():
  config = short(*RETRAIN)
  program, keys = built(config)
  first, second = program.stages
  state = first.start(None, keys)
  begun = second.start(state._replace(step=jnp.array([6])), keys)
  assert int(begun.step[0]) == 6 and (second.first_step, second.last_step) == (6, 12)
  assert_same(begun.params["group1_conv"], state.params["group1_conv"])
  assert np.abs(begun.params["head"]["kernel"] - state.params["head"]["kernel"]).max() > 0.01
  assert all(not np.any(x) for x in jax.tree.leaves(begun.opt_state))


def test_the_head_alone_follows_plain_gradient_descent_on_class_balanced_batches():
  """One step of the second stage, by its definition, on the frozen features."""
  config = short(*RETRAIN, "training.num_steps=1", "schedule.stage2_epochs=1", "training.batch_size=64",
                 "stage2.optimizer.momentum=0.0", "stage2.optimizer.schedule=constant", "optimizer.momentum=0.0",
                 "stage2.optimizer.weight_decay=0.0", "stage2.optimizer.l2=0.3", "loss.primary.name=cross_entropy")
  splits = tiny_splits()
  rare = np.concatenate([np.flatnonzero(splits.train.labels != 2), np.flatnonzero(splits.train.labels == 2)[:2]])
  splits = splits._replace(train=splits.train.take(rare))
  program, keys = built(config, splits, devices=1)
  first, second = program.stages
  state = second.start(first.start(None, keys), keys)
  before = jax.tree.map(np.asarray, state)
  _, batch = next(stages.batches(second.plan.phases, 0, [0], salt=1, batch_size=64, num_devices=1))
  labels = batch["label"][0, 0][batch["mask"][0, 0]]
  counts = np.bincount(labels)
  assert counts.sum() == len(splits.train.labels) and counts.max() - counts.min() <= 1
  after, _ = one_step(second.train_steps[0], state, batch, keys)
  model = models.get(num_classes=3, **config.model)
  images = data.normalize(batch["image"][0, 0][batch["mask"][0, 0]], splits.mean, splits.std)
  variables = {kind: alone(getattr(before, kind)) for kind in ("params", "batch_stats")}

  def loss(head):
    params = {**variables["params"], "head": head}
    logits = model.apply({**variables, "params": params}, images)
    return jnp.mean(losses.cross_entropy(logits, labels)) + 0.3 * jnp.sum(head["kernel"] ** 2)

  gradient = jax.jit(jax.grad(loss))(variables["params"]["head"])
  wanted = jax.tree.map(lambda x, g: x - 0.05 * g, variables["params"]["head"], gradient)
  assert_same(alone(after.params["head"]), wanted, rtol=1e-4, atol=1e-6)


def _begun(config, splits=None):
  """The parameters that a run begins with, and its number of steps."""
  program, keys = built(config, splits)
  return program.stages[0].start(None, keys).params, program.num_steps


def test_a_warm_start_begins_with_the_weights_of_another_run(tmp_path):
  state = finished(short(*SMALL), tmp_path)
  warm = short(*SMALL, "schedule.name=warm_start", f"schedule.workdir={tmp_path}")
  assert_same(_begun(warm)[0], state.params)
  # Another number of classes: the head starts anew, the rest is kept.
  other, _ = _begun(warm, tiny_splits(classes=4))
  assert_same(other["group1_conv"], state.params["group1_conv"])
  assert other["head"]["bias"].shape == (1, 4)
  with pytest.raises(UserError, match="are of another backbone"):
    _begun(short(*SMALL, "schedule.name=warm_start", f"schedule.workdir={tmp_path}", "model.channels=(5,)"))
  with pytest.raises(UserError, match="holds no run"):
    _begun(short(*SMALL, "schedule.name=warm_start", f"schedule.workdir={tmp_path / 'absent'}"))


@pytest.mark.parametrize("schedule", ["warm_start", "two_stage"])
def test_a_run_begins_with_the_weights_of_a_safetensors_file(schedule, tmp_path):
  options = ("model.name=vit_small", "model.width=6", "model.depth=1", "model.heads=1", "model.patch_size=4",
             "loss.secondary.name=", "training.batch_size=16", "training.num_epochs=2", f"schedule.name={schedule}",
             f"schedule.weights={tmp_path / 'w.safetensors'}",
             *(["schedule.stage2_epochs=1"] if schedule == "two_stage" else []))
  params, _ = write_weights("vit_small", tmp_path / "w.safetensors", num_classes=3, image_size=4)
  begun, num_steps = _begun(short(*options), rgb_splits())
  begun = dict(alone(begun))
  if schedule == "two_stage":  # The head is new, and the first stage is not trained.
    assert np.abs(begun["head"]["kernel"] - params["head"]["kernel"]).max() > 0.01 and num_steps == 3
    begun["head"] = params["head"]
  assert_same(begun, params)


@pytest.mark.parametrize("options", [
  ("schedule.name=warm_start",),
  ("schedule.name=two_stage", "schedule.workdir=run", "schedule.weights=w.safetensors")])
def test_a_first_stage_has_one_origin(options):
  with pytest.raises(UserError, match=r"needs one of schedule.workdir .* and schedule.weights .*, but not both"):
    run_config.check(short(*SMALL, *options), 1)


class _Count(NamedTuple):
  """A loss state for the test below: how many examples the steps saw, and how many epochs ended."""

  examples: jax.Array
  epochs: jax.Array


def test_steps_and_epochs_change_a_method_state_and_resuming_keeps_it(monkeypatch, tmp_path):
  def on_step(state, logits, labels, *, where, axis_name):
    return state._replace(examples=state.examples + jax.lax.psum(jnp.sum(where, dtype=jnp.int32), axis_name))

  def on_epoch(state, epoch, logits, labels):
    assert logits is None and labels is None
    return _Count(0 * state.examples, state.epochs + epoch)

  zero = jnp.zeros((), jnp.int32)
  monkeypatch.setitem(loss_state.LOSS_STATES, "counted", lambda num_classes: loss_state.StateUpdate(
    lambda: _Count(zero, zero), on_step=on_step, on_epoch=on_epoch))
  monkeypatch.setitem(losses.PER_EXAMPLE, "counted",
                      lambda logits, labels, *, examples, epochs: losses.cross_entropy(logits, labels))
  config = short(*SMALL, "loss.primary.name=counted", "training.accumulation_steps=2", "training.num_steps=8",
                 "checkpoint.every_steps=5")
  state, _ = train(config, folder=tmp_path)
  result = state.loss_states["counted"]
  assert int(result.epochs[0]) == 1 + 2 and int(result.examples[0]) == 32  # Two epochs of 44, and two steps of 16.


def test_any_named_set_is_predicted_beside_the_splits():
  splits = tiny_splits()
  twice = data.EvaluationSet(splits.test.take(np.array([0, 0, 3])), "shifted")
  splits = splits._replace(others={"twice": twice})
  _, (predictions,) = train(short(*SMALL), splits=[splits], predicted=("test", "twice"))
  np.testing.assert_array_equal(predictions["twice"]["labels"], splits.test.labels[[0, 0, 3]])
  np.testing.assert_allclose(predictions["twice"]["logits"], predictions["test"]["logits"][[0, 0, 3]], rtol=1e-5,
                             atol=1e-5)


# Nine steps; the head, group 2 and group 1 are three groups, for a network that has no stem.
PEELED = ("schedule.name=layer_peeled", "loss.secondary.name=", "optimizer.schedule=constant", "model.name=simple_cnn",
          "model.channels=(4,4)", "optimizer.l2=0.01", "optimizer.weight_decay=0.1",
          "optimizer.decay_norms_and_biases=true")


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
  """To the bit, one after another, with their momentum and batch statistics."""
  config = short(*PEELED, f"optimizer.name={optimizer}", f"schedule.peeling_exponent={exponent}",
                 f"training.accumulation_steps={accumulation}", f"schedule.freeze_batch_stats={freezes_stats}")
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
