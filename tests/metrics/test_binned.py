"""Binned errors against float64 references, on data that tells conventions apart, and their laws."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import metrics
from calib_jax._numerics import binning
from tests.metrics import references
from tests.metrics.data import batch, every_kind, pairs, predictions

OPTIONS = [
  {}, {"norm": "max"}, {"norm": 1.5, "num_bins": 7}, {"form": "label", "norm": 2}, {"form": "label", "norm": "max"},
  {"closed": "left", "num_bins": 10, "norm": 2}, {"num_bins": 1}, {"binning": "equal_mass"},
  {"binning": "equal_mass", "form": "label"}, {"binning": "equal_mass", "ties": "order", "form": "label", "norm": 2},
  {"debias": True, "norm": 2}, {"debias": True, "norm": 2, "binning": "equal_mass", "num_bins": 4}, {"sign": "over"},
  {"sign": "under", "norm": 2}, {"sign": "over", "binning": "equal_mass", "norm": "max"},
  {"sign": "under", "form": "label"},
]
LARGEST = 600  # Rows of three of the blocks in which sums are added.
BY_HAND = {
  "all right and sure": ([1.0, 1.0], [1, 1], 0.0), "all wrong and sure": ([1.0, 1.0], [0, 0], 1.0),
  "right and sure of the opposite": ([0.0, 0.0], [1, 1], 1.0), "one example": ([0.25], [1], 0.75),
  "no example": ([], [], 0.0),
}


def test_calibration_error_equals_the_reference_under_masks_and_vmap_and_values_by_hand():
  """The rows of a sample stand in random order at random places of the batch."""
  by_hand = [(np.array(c, np.float32), np.array(a, bool)) for c, a, _ in BY_HAND.values()]
  samples = every_kind((1, 2, 15, 100, LARGEST))
  data = batch([*by_hand, *samples.values()], LARGEST)
  errors = jax.jit(jax.vmap(lambda c, a, w: [metrics.calibration_error(c, a, where=w, **o) for o in OPTIONS]))(*data)
  for options, values in zip(OPTIONS, errors, strict=True):
    for (name, pair), value in zip(samples.items(), values[len(by_hand):], strict=True):
      expected = references.calibration_error(*pair, **options)
      np.testing.assert_allclose(value, expected, rtol=1e-5, atol=2e-6, err_msg=f"{options} {name}")
    if "debias" not in options and "sign" not in options:
      np.testing.assert_allclose(values[:len(by_hand)], [e for *_, e in BY_HAND.values()], atol=1e-6)
  assert metrics.calibration_error(np.zeros(0, np.float32), np.zeros(0, bool)) == 0


@pytest.mark.slow
def test_a_hundred_thousand_and_four_million_examples_keep_their_digits():
  for n, options in ((100_000, {}), (100_000, {"binning": "equal_mass", "norm": 2}), (4_000_000, {})):
    confidence, correct = pairs(n, "ones")
    expected = references.calibration_error(confidence, correct, **options)
    np.testing.assert_allclose(metrics.calibration_error(confidence, correct, **options), expected, atol=1e-6)


@pytest.mark.parametrize("metric", [
  metrics.calibration_error, functools.partial(metrics.calibration_error, form="label"),
  pytest.param(lambda c, a, **o: metrics.classwise_calibration_error(jnp.stack([c, 1 - c], axis=1), 1 - a, **o),
               marks=pytest.mark.slow),
])
def test_high_norms_are_nearly_the_largest_gap_and_the_gradient_of_no_error_is_0(metric):
  """The power of a gap of 0.01 underflows from a norm of 19 on."""
  errors_and_slopes = jax.jit(lambda c, a: [jax.value_and_grad(lambda c, p=p: metric(c, a, norm=p))(c)
                                            for p in (1, 2, 30, 300, "max")])
  correct = (jnp.arange(100) < 75).astype(jnp.int32)
  np.testing.assert_allclose([error for error, _ in errors_and_slopes(jnp.full(100, 0.76), correct)], 0.01, rtol=1e-4)
  for value in jax.tree.leaves(errors_and_slopes(correct.astype(jnp.float32), correct)):
    np.testing.assert_array_equal(value, 0)


def test_the_gradient_of_a_debiased_error_that_is_clipped_at_0_is_0():
  confidence, correct = jnp.array([0.4, 0.4, 0.6, 0.6]), jnp.array([0, 1, 0, 1])
  actual = jax.value_and_grad(lambda c: metrics.calibration_error(c, correct, norm=2, debias=True))(confidence)
  for value in actual:
    np.testing.assert_array_equal(value, 0)


def test_equal_width_bins_put_edges_where_they_say_in_float32():
  for num_bins in (3, 15, 1000):  # More than 64 are found by bisection.
    edges = (np.arange(num_bins + 1) / num_bins).astype(np.float32)
    right, left = (np.asarray(binning.equal_width_index(jnp.asarray(edges), num_bins, c)) for c in ("right", "left"))
    np.testing.assert_array_equal(right, np.maximum(np.arange(num_bins + 1) - 1, 0))
    np.testing.assert_array_equal(left, np.minimum(np.arange(num_bins + 1), num_bins - 1))
    above = np.nextafter(edges[1:-1], np.float32(2))
    np.testing.assert_array_equal(binning.equal_width_index(jnp.asarray(above), num_bins), np.arange(1, num_bins))


@pytest.mark.parametrize("kind", ["equal_width", "equal_mass"])
def test_reliability_agrees_with_the_reference(kind):
  diagram = jax.jit(jax.vmap(lambda c, a, w: metrics.reliability(c, a, num_bins=6, binning=kind, where=w)))
  samples = [pairs(n) for n in (3, 200)]
  for pair, *actual in zip(samples, *diagram(*batch(samples, 202)), strict=True):
    edges, counts, mean_confidence, accuracy = map(np.asarray, actual)
    confidence, correct, weights = references.rows(*pair)
    for j, part in enumerate(references.parts(confidence, weights, 6, kind)):
      members = part > 0
      assert counts[j] == members.sum()
      expected = (confidence[members].mean(), correct[members].mean()) if members.any() else (np.nan, np.nan)
      np.testing.assert_allclose((mean_confidence[j], accuracy[j]), expected, rtol=1e-6)
      assert ((edges[j] <= confidence[members]) & (confidence[members] <= edges[j + 1])).all()
    assert edges.shape == (7,) and edges[0] == 0 and edges[-1] == 1 and np.all(np.diff(edges) >= 0)


@pytest.mark.parametrize(("options", "error", "message"), [
  ({"num_bins": 0}, ValueError, "num_bins must be in"), ({"num_bins": 2.0}, TypeError, "num_bins must be an integer"),
  ({"binning": "equal"}, ValueError, "binning must be one of 'equal_width', 'equal_mass': got 'equal'"),
  ({"norm": 0.5}, ValueError, "norm must be in"), ({"norm": "inf"}, TypeError, "norm must be a number"),
  ({"ties": "shared"}, ValueError, "ties must be one of 'share', 'order': got 'shared'. Did you mean 'share'?"),
  ({"sign": "+"}, ValueError, "sign must be one of 'both', 'over', 'under'"),
  ({"sign": "over", "debias": True, "norm": 2}, ValueError, "debias=True needs sign='both': got sign='over'"),
  ({"num_bin": 15}, TypeError, "unexpected keyword argument 'num_bin'"),
  ({"form": "bins"}, ValueError, "form must be one of"), ({"closed": "both"}, ValueError, "closed must be one of"),
  ({"debias": True}, ValueError, "debias=True needs norm=2 and form='bin': got norm=1"),
  ({"closed": "left", "binning": "equal_mass"}, ValueError, "closed='left' is for binning='equal_width'"),
  ({"where": np.ones(3, bool)}, ValueError, r"where must have shape \(4,\)"),
])
def test_mistakes_are_named(options, error, message):
  with pytest.raises(error, match=message):
    metrics.calibration_error(np.ones(4, np.float32), np.ones(4, bool), **options)
  with pytest.raises(ValueError, match=r"correct must have the shape of confidence: got confidence \(4,\) and correct"):
    metrics.calibration_error(np.ones(4, np.float32), np.ones(3, bool))


@pytest.mark.parametrize(("binning_name", "norm"), [("equal_width", 1), ("equal_mass", 2), ("equal_width", "max")])
def test_classwise_calibration_error_equals_the_reference_under_masks(binning_name, norm):
  samples = [predictions(n, 7) for n in (1, 2, 300)]
  actual = jax.vmap(lambda p, y, w: metrics.classwise_calibration_error(
    p.reshape(3, 100, 7), y.reshape(3, 100), binning=binning_name, norm=norm, where=w.reshape(3, 100)))(
      *batch([*samples, predictions(0, 7)], 300))
  expected = [references.classwise_calibration_error(*s, binning=binning_name, norm=norm) for s in samples]
  np.testing.assert_allclose(actual, [*expected, 0], rtol=2e-5, atol=1e-7)


@pytest.mark.slow
def test_classwise_calibration_error_of_many_examples_and_classes():
  for n, k in ((100_000, 10), (60, 1000)):
    pair = predictions(n, k)
    expected = references.classwise_calibration_error(*pair)
    np.testing.assert_allclose(metrics.classwise_calibration_error(*pair), expected, rtol=2e-5, atol=1e-7)


SORTED = {f"right where {name}": (np.linspace(0.01, 0.99, 40).astype(np.float32), correct) for name, correct in (
  ("always", np.ones(40, bool)), ("never", np.zeros(40, bool)), ("sure", np.arange(40) >= 12),
  ("not second", np.arange(40) != 1), ("unsure", np.arange(40) < 30))}


@pytest.mark.parametrize("binning_name", ["equal_width", "equal_mass"])
def test_sweep_equals_the_reference_under_masks_and_vmap(binning_name):
  """Of accuracies in order it takes one bin an example."""
  samples = {**every_kind((1, 15, 400), seeds=range(2)), **SORTED}
  data = batch([*samples.values(), (np.zeros(0), np.zeros(0))], 400)
  actual = jax.jit(jax.vmap(lambda c, a, w: metrics.sweep_calibration_error(
    c.reshape(20, 20), a.reshape(20, 20), where=w.reshape(20, 20), binning=binning_name)))(*data)
  assert actual[-1] == 0
  for (name, pair), value in zip(samples.items(), actual, strict=False):
    expected = references.sweep_calibration_error(*pair, binning_name)
    np.testing.assert_allclose(value, expected, rtol=2e-5, atol=2e-6, err_msg=name)
