"""Binned errors against float64 references, on data that tells conventions apart, and their laws."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import metrics
from calib_jax._numerics import binning
from tests.metrics import references
from tests.metrics.data import KINDS, batch, every_kind, pairs, predictions

OPTIONS = [
  {}, {"norm": 2}, {"norm": "max"}, {"norm": 1.5, "num_bins": 7}, {"form": "label", "norm": 2},
  {"form": "label", "norm": "max"}, {"closed": "left"}, {"closed": "left", "num_bins": 10, "norm": 2},
  {"binning": "equal_mass"}, {"binning": "equal_mass", "norm": 2}, {"binning": "equal_mass", "form": "label"},
  {"debias": True, "norm": 2}, {"debias": True, "norm": 2, "binning": "equal_mass", "num_bins": 4}, {"num_bins": 1},
  {"binning": "equal_mass", "ties": "order"}, {"binning": "equal_mass", "ties": "order", "form": "label", "norm": 2},
  {"sign": "over"}, {"sign": "under", "norm": 2}, {"sign": "over", "binning": "equal_mass", "norm": "max"},
  {"sign": "under", "form": "label"},
]
SIZES = (1, 2, 15, 100, 5000)


@jax.jit
@jax.vmap
def _errors(confidence, correct, where):
  """The error of each row of a batch by each of ``OPTIONS``, in one program."""
  return [metrics.calibration_error(confidence, correct, where=where, **options) for options in OPTIONS]


def test_calibration_error_equals_the_reference_under_masks_and_vmap():
  samples = every_kind(SIZES)
  actual = _errors(*batch(list(samples.values()), SIZES[-1]))
  for options, values in zip(OPTIONS, actual, strict=True):
    for (name, pair), value in zip(samples.items(), values, strict=True):
      expected = references.calibration_error(*pair, **options)
      np.testing.assert_allclose(value, expected, rtol=1e-5, atol=2e-6, err_msg=f"{options} {name}")


BY_HAND = {
  "all right and sure": ([1.0, 1.0], [1, 1], 0.0), "all wrong and sure": ([1.0, 1.0], [0, 0], 1.0),
  "right and sure of the opposite": ([0.0, 0.0], [1, 1], 1.0), "one example": ([0.25], [1], 0.75),
  "no example": ([], [], 0.0),
}


def test_by_hand_and_the_order_of_examples_does_not_matter():
  confidence, correct = pairs(40)
  shuffled = np.random.default_rng(1).permutation(40)
  samples = [(np.array(c, np.float32), np.array(a, bool)) for c, a, _ in BY_HAND.values()]
  samples += [(confidence, correct), (confidence[shuffled], correct[shuffled])]
  filled = [*samples, *samples[:1] * (len(SIZES) * len(KINDS) - len(samples))]  # Of the shape that is compiled already.
  actual = np.asarray(_errors(*batch(filled, SIZES[-1])))[:, :len(samples)]
  for options, (*values, first, second) in zip(OPTIONS, actual, strict=True):
    if "debias" not in options and "sign" not in options:
      np.testing.assert_allclose(values, [e for *_, e in BY_HAND.values()], atol=1e-6, err_msg=str(options))
    np.testing.assert_allclose(second, first, rtol=1e-5, atol=1e-7, err_msg=str(options))
  assert metrics.calibration_error(np.zeros(0, np.float32), np.zeros(0, bool)) == 0


@pytest.mark.slow
def test_a_hundred_thousand_and_four_million_examples_keep_their_digits():
  for n, options in ((100_000, {}), (100_000, {"binning": "equal_mass", "norm": 2}), (4_000_000, {})):
    confidence, correct = pairs(n, "ones")
    expected = references.calibration_error(confidence, correct, **options)
    np.testing.assert_allclose(metrics.calibration_error(confidence, correct, **options), expected, atol=1e-6)


@pytest.mark.parametrize("metric", [
  lambda c, a, **o: metrics.calibration_error(c, a, **o),
  lambda c, a, **o: metrics.calibration_error(c, a, form="label", **o),
  lambda c, a, **o: metrics.classwise_calibration_error(jnp.stack([c, 1 - c], axis=1), 1 - a, **o),
])
def test_a_high_norm_is_nearly_the_largest_gap(metric):
  """The power of a gap of 0.01 underflows from a norm of 19 on."""
  confidence, correct = jnp.full(100, 0.76), (jnp.arange(100) < 75).astype(jnp.int32)
  errors = jax.jit(lambda c, a: [metric(c, a, norm=p) for p in (2, 30, 300)])(confidence, correct)
  np.testing.assert_allclose(errors, 0.01, rtol=1e-4)


@pytest.mark.parametrize("metric", [
  lambda c, a, **o: metrics.calibration_error(c, a, **o),
  lambda c, a, **o: metrics.calibration_error(c, a, form="label", **o),
  lambda c, a, **o: metrics.classwise_calibration_error(jnp.stack([c, 1 - c], axis=1), 1 - a, **o),
])
def test_the_gradient_of_no_error_is_0(metric):
  correct = jnp.array([0, 0, 1, 1])
  slopes = jax.jit(lambda c: [jax.grad(lambda c, p=p: metric(c, correct, norm=p))(c) for p in (1, 2, 3, "max")])
  np.testing.assert_array_equal(slopes(jnp.array([0.0, 0.0, 1.0, 1.0])), 0)


def test_the_gradient_of_a_debiased_error_that_is_clipped_at_0_is_0():
  confidence, correct = jnp.array([0.4, 0.4, 0.6, 0.6]), jnp.array([0, 1, 0, 1])
  actual = jax.value_and_grad(lambda c: metrics.calibration_error(c, correct, norm=2, debias=True))(confidence)
  for value in actual:
    np.testing.assert_array_equal(value, 0)


def test_equal_width_bins_put_edges_where_they_say_in_float32():
  for num_bins in (2, 3, 10, 15, 1000):
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
  actual = diagram(*batch(samples, 202))
  for i, (confidence, correct) in enumerate(samples):
    edges, counts, mean_confidence, accuracy = (np.asarray(x[i]) for x in actual)
    for j, index in enumerate(references.groups(confidence, 6, kind)):
      assert counts[j] == len(index)
      if len(index):
        np.testing.assert_allclose(accuracy[j], correct[index].mean(), rtol=1e-6)
        np.testing.assert_allclose(mean_confidence[j], confidence[index].mean(), rtol=1e-6)
        assert edges[j] <= confidence[index].min() and confidence[index].max() <= edges[j + 1]
      else:
        assert np.isnan(accuracy[j]) and np.isnan(mean_confidence[j])
    assert edges.shape == (7,) and edges[0] == 0 and edges[-1] == 1
    assert np.all(np.diff(edges) >= 0)


def test_shorthands_are_calibration_error_of_the_top_label():
  rng = np.random.default_rng(0)
  probs = rng.dirichlet(np.ones(4), 50).astype(np.float32)
  labels = rng.integers(0, 4, 50)
  pair = probs.max(1), probs.argmax(1) == labels
  for function, options in ((metrics.expected_calibration_error, {}),
                            (metrics.maximum_calibration_error, {"norm": "max"}),
                            (metrics.adaptive_calibration_error, {"binning": "equal_mass"})):
    np.testing.assert_allclose(function(probs, labels, num_bins=4),
                               references.calibration_error(*pair, num_bins=4, **options), rtol=1e-5)


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


def _classwise(probs, labels, binning_name, norm, where=None):
  return metrics.classwise_calibration_error(probs, labels, binning=binning_name, norm=norm, where=where)


@pytest.mark.parametrize(("binning_name", "norm"), [("equal_width", 1), ("equal_mass", 2), ("equal_width", "max")])
def test_classwise_calibration_error_equals_the_reference_under_masks(binning_name, norm):
  shape = (5, 1000, 7)
  probs, where = np.full(shape, np.nan, np.float32), np.zeros(shape[:2], bool)
  labels = np.full(shape[:2], -3)
  samples = [predictions(n, 7) for n in (1, 2, 100, 1000)]
  for i, (p, y) in enumerate(samples):
    where[i, np.random.default_rng(i).permutation(1000)[:len(y)]] = True
    probs[i, where[i]], labels[i, where[i]] = p, y
  actual = jax.vmap(lambda p, y, w: _classwise(p.reshape(4, 250, 7), y.reshape(4, 250), binning_name, norm,
                                              w.reshape(4, 250)))(probs, labels, where)
  expected = [references.classwise_calibration_error(*s, binning=binning_name, norm=norm) for s in samples]
  np.testing.assert_allclose(actual, [*expected, 0], rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize(("binning_name", "norm", "n", "k"), [
  ("equal_width", 1, 60, 1000), ("equal_mass", 2, 60, 100), *(pytest.param(*case, marks=pytest.mark.slow) for case in (
    ("equal_width", 2, 1, 1000), ("equal_mass", 1, 5000, 100), ("equal_width", 1, 100_000, 10)))])
def test_classwise_calibration_error_of_many_classes(binning_name, norm, n, k):
  probs, labels = predictions(n, k)
  expected = references.classwise_calibration_error(probs, labels, binning=binning_name, norm=norm)
  np.testing.assert_allclose(_classwise(probs, labels, binning_name, norm), expected, rtol=2e-5, atol=1e-7)


SORTED = {f"right where {name}": (np.linspace(0.01, 0.99, 40).astype(np.float32), correct) for name, correct in (
  ("always", np.ones(40, bool)), ("never", np.zeros(40, bool)), ("sure", np.arange(40) >= 12),
  ("not second", np.arange(40) != 1), ("unsure", np.arange(40) < 30))}


@pytest.mark.parametrize("binning_name", ["equal_width", "equal_mass"])
def test_sweep_equals_the_reference_under_masks_and_vmap(binning_name):
  """Of accuracies in order it takes one bin an example."""
  samples = {**every_kind((1, 15, 400), seeds=range(3)), **SORTED}
  data = batch([*samples.values(), (np.zeros(0), np.zeros(0))], 400)
  actual = jax.jit(lambda *data: jax.lax.map(lambda x: metrics.sweep_calibration_error(
    x[0], x[1], where=x[2], binning=binning_name), data))(*data)
  assert actual[-1] == 0
  for (name, pair), value in zip(samples.items(), actual, strict=False):
    expected = references.sweep_calibration_error(*pair, binning_name)
    np.testing.assert_allclose(value, expected, rtol=2e-5, atol=2e-6, err_msg=name)
  sweep = functools.partial(metrics.sweep_calibration_error, binning=binning_name)
  mapped = jax.vmap(lambda c, a, w: sweep(c.reshape(20, 20), a.reshape(20, 20), where=w.reshape(20, 20)))
  np.testing.assert_allclose(mapped(*(x[13:17] for x in data)), actual[13:17], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("binning_name", "norm"), [("equal_width", 2), ("equal_mass", 1)])
def test_sweep_of_thousands_equals_the_reference(binning_name, norm):
  for kind in KINDS:
    for seed in range(3):
      pair = pairs(400 if kind == "ties" else 5000, kind, seed)
      actual = metrics.sweep_calibration_error(*pair, binning=binning_name, norm=norm)
      expected = references.sweep_calibration_error(*pair, binning_name, norm)
      np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-6, err_msg=f"{kind} {seed}")
