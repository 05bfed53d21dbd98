"""BalCAL: the frame, the class-balanced loss, λ after each epoch, and which λ predictions have."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from calib_jax._system.errors import UserError
from calib_jax.training import head_state, models
from tests.training.small import PLAIN, alone, built, short, tiny_splits, train


@pytest.mark.parametrize(("dimension", "classes"), [(9, 10), (5, 2)])
def test_the_frame_has_equal_norms_and_angles(dimension, classes):
  frame = np.float64(models.simplex_frame(jax.random.key(dimension), dimension, classes))
  cosines = frame.T @ frame
  wanted = np.full((classes, classes), -1 / (classes - 1))
  np.fill_diagonal(wanted, 1)
  np.testing.assert_allclose(cosines, wanted, atol=2e-6)
  other = models.simplex_frame(jax.random.key(dimension + 1), dimension, classes)
  assert np.abs(frame - np.float64(other)).max() > 0.01  # It is drawn from the key.


def test_too_few_features_are_refused():
  with pytest.raises(ValueError, match="a simplex frame of 10 classes needs at least 9 features: got 8"):
    models.simplex_frame(jax.random.key(0), 8, 10)
  model = models.get("mlp", num_classes=10, hidden=(8,), head="simplex_etf")
  with pytest.raises(UserError, match="'simplex_etf' needs at least 9 features for 10 classes, and this model has 8"):
    jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 2, 2, 1)))


@pytest.mark.parametrize("soft", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_loss_balances_classes_over_all_devices(soft):
  """Eight examples on two devices; one of the four classes is absent, and two examples do not count."""
  head = models.get_head("simplex_etf", num_classes=4)
  rng = np.random.default_rng(0)
  output = rng.normal(size=(2, 4, 2, 4)).astype(np.float32)
  labels = np.array([[0, 0, 1, 1], [1, 3, 3, 0]])
  where = np.array([[True, True, True, False], [True, True, True, False]])
  shares = np.eye(4)[labels]
  shares = 0.7 * shares + 0.3 * shares[:, ::-1] if soft else shares
  given = jnp.asarray(shares, jnp.float32) if soft else jnp.asarray(labels)
  state = head_state.of_head("simplex_etf", head, 1)["head"].init()._replace(share=jnp.float32(0.2))
  result = jax.vmap(lambda z, y, w: head.objectives(z, y, state, where=w, axis_name="batch"),
                   axis_name="batch")(output, given, where)
  counts = shares[where].sum(0)
  scale = [np.sqrt(6 / ((counts > 0).sum() * n)) if n else 1.0 for n in counts]
  for (weight, logits), wanted_weight, factor, i in zip(result, (0.2, 0.8), (1.0, scale), (0, 1), strict=True):
    np.testing.assert_allclose(weight, wanted_weight, rtol=1e-6)
    np.testing.assert_allclose(logits, output[:, :, i] * factor, rtol=1e-5)


@pytest.mark.parametrize(("spread", "accurate"), [pytest.param(6.0, 0.6, marks=pytest.mark.slow), (0.2, 0.9)])
def test_lambda_meets_its_target_or_is_1(spread, accurate):
  """The confidence and accuracy of all logits of three steps on two devices, in float64, at the λ that was found."""
  head = models.get_head("simplex_etf", num_classes=5, target=0.9)
  method = head_state.of_head("simplex_etf", head, 7)["head"]
  rng = np.random.default_rng(1)
  state = method.init()
  step = jax.vmap(lambda s, z, y, w: method.on_step(s, z, y, where=w, axis_name="batch"), in_axes=(None, 0, 0, 0),
                  out_axes=None, axis_name="batch")
  linears, fixeds, labels = [], [], []
  for _ in range(3):
    linear = spread * rng.normal(size=(2, 200, 5))
    fixed = 0.6 / spread * linear + 0.3 * rng.normal(size=(2, 200, 5))
    where = rng.random((2, 200)) < 0.8
    own = np.where(rng.random((2, 200)) < accurate, linear.argmax(-1), rng.integers(0, 2, (2, 200)))  # Not balanced.
    state = step(state, np.stack([linear, fixed], 2).astype(np.float32), own, where)
    counts = np.bincount(own[where], minlength=5)
    linears.append(linear[where])
    fixeds.append(fixed[where] * np.sqrt(counts.sum() / (5 * counts)))
    labels.append(own[where])
  linear, fixed, labels = np.concatenate(linears), np.concatenate(fixeds), np.concatenate(labels)

  def excess(share):
    probs = scipy.special.softmax(share * linear + (1 - share) * fixed, -1)
    return probs.max(-1).mean() - 0.9 * (probs.argmax(-1) == labels).mean()

  state = method.on_epoch(state, 1, None, None)
  share = float(state.share)
  if excess(1) <= 0:
    assert share == 1 and spread == 0.2
  else:
    assert 0.01 < share < 0.99 and excess(share - 0.02) < 0 < excess(share + 0.02)
    # The excess is interpolated between 129 shares; the bisection stops within 1e-4 of λ, times the steepest slope.
    grid = np.linspace(0, 1, head_state.SHARES)
    values = [excess(x) for x in grid]
    assert abs(np.interp(share, grid, values)) <= 1e-4 * 128 * np.abs(np.diff(values)).max() + 1e-5
  assert float(state.count) == float(jnp.max(state.correct)) == float(jnp.max(state.confidence)) == 0


@pytest.mark.slow
def test_a_run_minimises_both_losses_and_predicts_with_the_newest_lambda():
  """The logged loss of the first step against cross entropies in NumPy; the frame's logits are scaled by class."""
  config = short(*PLAIN, "training.num_epochs=2", "training.batch_size=44", "optimizer.learning_rate=0.0",
                 "head.name=simplex_etf", "head.share=0.3", "head.target=0.6")
  seen = []
  state, (predictions,) = train(config, hooks=[lambda step, measured: seen.append(float(measured["loss"][0]))])
  split = tiny_splits()
  model = models.get(num_classes=3, head=config.head, **config.model)
  trained = {kind: alone(getattr(state, kind)) for kind in ("params", "batch_stats")}
  program, keys = built(config)
  begun = program.stages[0].start(None, keys)
  images = (split.train.images / np.float32(255) - split.mean) / split.std
  output, _ = jax.jit(lambda *x: model.apply(*x, train=True, mutable=["batch_stats"]))(
    {"params": alone(begun.params), "batch_stats": alone(begun.batch_stats)}, images)
  counts = np.bincount(split.train.labels)
  fixed = np.float64(output[:, 1]) * np.sqrt(44 / (3 * counts))
  losses = [-scipy.special.log_softmax(z, -1)[np.arange(44), split.train.labels].mean()
            for z in (np.float64(output[:, 0]), fixed)]
  np.testing.assert_allclose(seen[0], 0.3 * losses[0] + 0.7 * losses[1], rtol=1e-5)

  share = float(state.loss_states["head"].share[0])
  assert 0 <= share <= 1 and share != 0.3 and float(trained["batch_stats"]["head"]["share"]) == share
  np.testing.assert_array_equal(trained["batch_stats"]["head"]["frame"], begun.batch_stats["head"]["frame"][0])
  images = (split.test.images / np.float32(255) - split.mean) / split.std
  np.testing.assert_allclose(jax.jit(model.apply)(trained, images), predictions["test"]["logits"], rtol=1e-4, atol=1e-5)
