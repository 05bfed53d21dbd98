"""MaC-Cal: which weights a step changes, how q follows confidence and accuracy, and what the head is without masks."""

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from calib_jax._system.errors import UserError
from calib_jax.training import config as run_config
from calib_jax.training import head_state, models
from calib_jax.training.engine import drawing, stages
from tests.training.small import PLAIN, alone, built, one_step, short, tiny_splits, train

MASKED = (*PLAIN, "training.num_epochs=1", "schedule.name=two_stage", "schedule.stage2_epochs=2", "head.name=masked",
          "head.width=6", "head.keep=0.5")
PRINTED = (*MASKED, "head.variant=printed")
DECAYING = ("stage2.optimizer.l2=0.1", "stage2.optimizer.weight_decay=0.2", "stage2.optimizer.coupled_weight_decay=0.3",
            "stage2.optimizer.schedule=constant")


# ---- updates

def _steps_of_the_second_stage(config, number):
  """Yields the head's parameters and momentum before and after each step, and the weights that the step used."""
  program, keys = built(config)
  first, stage = program.stages
  state = stage.start(first.start(None, keys), keys)
  head = models.get_head(num_classes=3, **config.head)
  source = stages.batches(stage.plan.phases, 0, [0], salt=1, batch_size=16, num_devices=2)

  def kernels(tree):
    flat = flax.traverse_util.flatten_dict(jax.tree.map(np.asarray, alone(tree["head"])))
    return {path: x for path, x in flat.items() if path[-1] == "kernel"}

  def momentum(state):
    result = [x for path, x in jax.tree_util.tree_leaves_with_path(state.opt_state) if "kernel" in str(path[-1:])]
    return [np.asarray(x[0]) for x in result]  # In the order of the parameters' names.

  for _ in range(number):
    draw = head.draw(alone(state.params["head"]), jax.random.fold_in(keys[0], 2**32 - 3), state.step[0],
                     alone(state.loss_states["head"]))
    before, old = kernels(state.params), momentum(state)
    state, _ = one_step(stage.train_steps[0], state, next(source)[1], keys)
    yield before, kernels(state.params), old, momentum(state), {
      path: np.asarray(factor) > 0 for path, factor in draw.factors.items()}


@pytest.mark.parametrize("options", [pytest.param(("training.accumulation_steps=2", *DECAYING), marks=pytest.mark.slow),
                                     ("head.bottleneck=false", "stage2.optimizer.name=adamw", *DECAYING)],
                         ids=("accumulated", "linear, adamw"))
def test_a_masked_weight_is_not_updated(options):
  for before, after, old, new, used in _steps_of_the_second_stage(short(*MASKED, *options), 3):
    assert before.keys() == used.keys() and len(old) == len(new) == len(used) * (2 if "adamw" in str(options) else 1)
    for path in before:
      assert 0.2 < used[path].mean() < 0.8
      np.testing.assert_array_equal(before[path][~used[path]], after[path][~used[path]])
      assert np.any(before[path] != after[path])
    order = sorted(used)
    for i, (a, b) in enumerate(zip(old, new, strict=True)):
      hidden = ~used[order[i % len(order)]]
      np.testing.assert_array_equal(a[hidden], b[hidden])


@pytest.mark.parametrize(("updates", "gradient", "hidden"), [
  ("used", [2, 0], [False, True]), ("gradient", [2, 0], None), ("all", [1, 1], None)])
def test_the_gradient_of_a_masked_weight_is_0_or_that_of_the_factor_1(updates, gradient, hidden):
  draw = models.Draw({("kernel",): jnp.array([2.0, 0.0])}, updates)
  params = {"head": {"kernel": jnp.array([3.0, 5.0]), "bias": jnp.array([1.0])}}
  np.testing.assert_array_equal(drawing.used(params, draw)["head"]["kernel"], [6, 0])
  result = jax.grad(lambda params: sum(map(jnp.sum, jax.tree.leaves(drawing.used(params, draw)))))(params)["head"]
  np.testing.assert_array_equal(result["kernel"], gradient)
  np.testing.assert_array_equal(result["bias"], [1])
  assert [x.tolist() for x in drawing.unused(draw).values()] == ([hidden] if hidden else [])


# ---- q

@pytest.mark.parametrize(("decaying", "variant"), [(True, "printed"), (False, "printed"), (True, "")])
def test_q_follows_equations_12_and_13(decaying, variant):
  """Against plain NumPy, over ten epochs of random logits that are too confident, right, or hardly confident."""
  head = models.get_head("masked", num_classes=4, keep=0.45, discount=0.9, decaying=decaying, measured="steps",
                         variant=variant)
  method = head_state.of_head("masked", head, 10)["head"]
  rng = np.random.default_rng(0)
  state, keep, kept = method.init(), 0.45, []
  step = jax.vmap(lambda state, z, y, where: method.on_step(state, z, y, where=where, axis_name="batch"),
                  in_axes=(None, 0, 0, 0), out_axes=None, axis_name="batch")
  for t in range(1, 11):
    scale = (8.0, 8.0, 0.1)[t % 3]
    confidences, correct = [], []
    for _ in range(3):
      z = (scale * rng.normal(size=(2, 6, 4))).astype(np.float32)
      y, where = rng.integers(0, 4, (2, 6)).astype(np.int32), rng.random((2, 6)) < 0.7
      if t % 2:
        y = z.argmax(-1).astype(np.int32)
      state = step(state, z, y, where)
      probs = np.exp(z.astype(np.float64)) / np.exp(z.astype(np.float64)).sum(-1, keepdims=True)
      confidences.append(probs.max(-1)[where])
      correct.append((z.argmax(-1) == y)[where])
    state = method.on_epoch(state, t, None, None)
    gap = np.concatenate(confidences).mean() - 0.9 * np.concatenate(correct).mean()
    bound = 0.1 * np.exp(np.log(0.001 / 0.1) * t / 10) if decaying else 0.1
    if t < 10:  # Predictions use the q of the last epoch.
      keep = np.clip(keep + (1 if variant else -1) * np.clip(gap, -bound, bound), 0, 1)
    np.testing.assert_allclose(state.keep, keep, atol=2e-6)
    assert float(state.count) == float(state.confidence) == float(state.correct) == 0 and int(state.epoch) == t
    kept.append(keep)
  assert len(set(np.sign(np.diff(kept)))) > 1  # It rose and it fell.


@pytest.mark.parametrize(("right", "variant", "end"), [
  (True, "printed", 0.0), (False, "printed", 1.0), (True, "", 1.0), (False, "", 0.0)])
def test_q_stays_in_the_unit_interval(right, variant, end):
  # An overconfident network, wrong of all examples, uses fewer weights, or more as the equation is printed.
  head = models.get_head("masked", num_classes=3, keep=0.5, decaying=False, measured="train", variant=variant)
  method = head_state.of_head("masked", head, 99)["head"]
  logits = jnp.where(right, 0.01, 20.0) * jnp.eye(3)
  labels = jnp.arange(3) if right else (jnp.arange(3) + 1) % 3
  state = method.init()
  for epoch in range(1, 10):
    state = method.on_epoch(state, epoch, logits, labels)
    assert 0 <= float(state.keep) <= 1
  assert float(state.keep) == end


@pytest.mark.parametrize("softness", [None, 0.4])
def test_confidence_and_accuracy_are_counted_over_rows_that_count_by_the_largest_label(softness):
  rng = np.random.default_rng(0)
  logits, labels, where = 3 * rng.normal(size=(40, 3)), rng.integers(0, 3, 40), np.arange(40) < 30
  given = labels if softness is None else (1 - softness) * np.eye(3)[labels] + softness / 3
  expected = special.softmax(logits, axis=1).max(1)[:30].sum(), (logits.argmax(1) == labels)[:30].sum(), 30
  np.testing.assert_allclose(head_state.counted(jnp.asarray(logits), jnp.asarray(given), where), expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("measured", ["steps", "train"])
def test_a_run_measures_confidence_and_accuracy_over_its_epochs(measured):
  """q in the log of a run is what the run's own steps or predictions give."""
  seen = []
  config = short(*PRINTED, f"head.measured={measured}", "stage2.optimizer.learning_rate=0.0", "head.first_bound=0.9",
                 "head.last_bound=0.9", "head.keep=1.0", "training.num_steps=1")
  state, (predictions,) = train(config, predicted=("train",), hooks=[
    lambda step, m: seen.append(float(m["keep"][0]) if "keep" in m else None)])
  # At a rate of 0 the head stays as it is; at q = 1 steps and predictions see the same network.
  probs = np.asarray(jax.nn.softmax(predictions["train"]["logits"]))
  gap = probs.max(-1).mean() - 0.95 * (probs.argmax(-1) == predictions["train"]["labels"]).mean()
  assert len(seen) == 7 and seen[:4] == [None, 1.0, 1.0, 1.0]
  np.testing.assert_allclose(seen[4:], np.clip(1 + gap, 0, 1), atol=1e-5)
  assert int(state.loss_states["head"].epoch[0]) == 2


def test_a_fixed_q_stays():
  head = models.get_head("masked", num_classes=3, keep=0.3, adaptive=False)
  method = head_state.of_head("masked", head, 2)["head"]
  state = method.on_epoch(method.init(), 1, 20 * jnp.eye(3), jnp.arange(3))
  assert float(state.keep) == np.float32(0.3) and int(state.epoch) == 1


# ---- the head itself

@pytest.mark.parametrize(("per_epoch", "rescale"), [(False, False), (True, True)])
def test_masks_are_bernoulli_and_new_in_each_step_or_epoch(per_epoch, rescale):
  head = models.get_head("masked", num_classes=7, keep=0.3, adaptive=False, per_epoch=per_epoch, rescale=rescale)
  params = {"hidden": {"kernel": jnp.ones((40, 50)), "bias": jnp.ones(50)}, "logits": {"kernel": jnp.ones((50, 40))}}
  state = head_state.of_head("masked", head, 2)["head"].init()

  def factors(step, epoch):
    return head.draw(params, jax.random.key(1), jnp.int32(step), state._replace(epoch=jnp.int32(epoch))).factors

  first, second, later = factors(0, 0), factors(1, 0), factors(1, 1)
  assert set(first) == {("hidden", "kernel"), ("logits", "kernel")}
  for path, factor in first.items():
    value = np.float32(1) / np.float32(0.3) if rescale else 1
    np.testing.assert_allclose(np.unique(factor), [0, value], rtol=1e-6)
    assert abs(np.mean(factor > 0) - 0.3) < 5 * np.sqrt(0.3 * 0.7 / 2000)
    assert np.array_equal(factor, second[path]) == per_epoch
    assert np.array_equal(second[path], later[path]) == (not per_epoch)
  assert not np.array_equal(first["hidden", "kernel"].T, first["logits", "kernel"])


@pytest.mark.parametrize(("options", "reason"), [
  (("head.variant=printed", "head.rescale=true"), "feedback='keep' needs predict='all' and rescale=False"),
  (("head.feedback=keep",), "feedback='keep' needs predict='all'"),
  (("head.predict=all",), "feedback='drop' does not go with predict='all'"),
  (("head.predict=stored",), "predict='stored' needs per_epoch=True"),
  (("head.variant=printed", "head.feedback=drop"), "variant='printed' has feedback='keep'"),
  (("head.variant=best",), "variant"), (("head.predict=some",), "predict"), (("head.keep=half",), "keep"),
  (("head.keep=1.5",), r"keep must be in \[0, 1\]"), (("head.discount=0.0",), "discount must be in"),
  (("head.measured=test",), "measured"), (("head.updates=none",), "updates"),
  (("head.last_bound=0.2",), "first_bound must be at least last_bound")])
def test_options_that_cannot_work_are_refused(options, reason):
  with pytest.raises(UserError, match=reason):
    run_config.check(short(*MASKED, *options), 1)


# ---- what predictions use

@pytest.mark.slow
def test_predictions_use_the_mean_of_the_weights_of_the_last_epoch():
  q_of_epochs = []
  config = short(*MASKED, "schedule.stage2_epochs=4", "head.first_bound=0.4", "head.last_bound=0.4")

  def note(step, measured):
    if "keep" in measured:
      q_of_epochs.append(float(measured["keep"][0]))

  state, (predictions,) = train(config, hooks=[note])
  assert len(set(q_of_epochs)) > 2
  q = q_of_epochs[-1]
  assert float(state.batch_stats["head"]["keep"][0]) == pytest.approx(q, abs=1e-7)
  head = jax.tree.map(lambda x: np.asarray(x[0], np.float64), state.params["head"])
  body = alone({"params": state.params, "batch_stats": state.batch_stats})
  model = models.get(num_classes=3, head=config.head, **config.model)
  test = tiny_splits()
  images = (test.test.images / 255 - test.mean) / test.std
  features = np.asarray(model.apply(body, jnp.asarray(images, jnp.float32), return_features=True)[1], np.float64)
  hidden = np.maximum(features @ (q * head["hidden"]["kernel"]) + head["hidden"]["bias"], 0)
  logits = hidden @ (q * head["logits"]["kernel"]) + head["logits"]["bias"]
  np.testing.assert_allclose(predictions["test"]["logits"], logits, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_stored_weights_that_an_epoch_masks_are_zero_and_stay_zero():
  config = short(*MASKED, "head.predict=stored", "head.per_epoch=true", "stage2.optimizer.l2=0.1")
  for before, after, *_, used in _steps_of_the_second_stage(config, 3):
    for path, mask in used.items():
      assert 0.2 < mask.mean() < 0.8 and not np.any(after[path][~mask]) and np.all(after[path][mask] != 0)
      assert np.any(before[path][mask] != after[path][mask])


def test_a_rescaled_mask_that_keeps_nothing_is_zero_and_not_nan():
  head = models.get_head("masked", num_classes=3, rescale=True)
  state = head_state.of_head("masked", head, 2)["head"].init()._replace(keep=jnp.float32(0))
  draw = head.draw({"logits": {"kernel": jnp.ones((4, 3))}}, jax.random.key(0), jnp.int32(0), state)
  np.testing.assert_array_equal(draw.factors["logits", "kernel"], 0)
