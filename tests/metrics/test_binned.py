"""Binned errors against float64 references, on data that tells conventions apart, and their laws."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import binning, metrics
from tests.metrics import references
from tests.metrics.data import KINDS, pairs, predictions

OPTIONS = [
  {}, {"norm": 2}, {"norm": "max"}, {"norm": 1.5, "num_bins": 7}, {"form": "label", "norm": 2},
  {"form": "label", "norm": "max"}, {"closed": "left"}, {"closed": "left", "num_bins": 10, "norm": 2},
  {"binning": "equal_mass"}, {"binning": "equal_mass", "norm": 2}, {"binning": "equal_mass", "form": "label"},
  {"debias": True, "norm": 2}, {"debias": True, "norm": 2, "binning": "equal_mass", "num_bins": 4}, {"num_bins": 1},
]


def _ids(value):
  return ",".join(f"{k}={v}" for k, v in value.items()) or "default" if isinstance(value, dict) else str(value)


@pytest.mark.parametrize("options", OPTIONS, ids=_ids)
def test_calibration_error_equals_the_reference(options):
  for n in (1, 2, 15, 100, 5000):
    for kind in KINDS:
      confidence, correct = pairs(n, kind)
      found = metrics.calibration_error(confidence, correct, **options)
      expected = references.calibration_error(confidence, correct, **options)
      np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6, err_msg=f"{n} {kind}")


def test_a_hundred_thousand_and_four_million_examples_keep_their_digits():
  for n, options in ((100_000, {}), (100_000, {"binning": "equal_mass", "norm": 2}), (4_000_000, {})):
    confidence, correct = pairs(n, "ones")
    expected = references.calibration_error(confidence, correct, **options)
    np.testing.assert_allclose(metrics.calibration_error(confidence, correct, **options), expected, atol=1e-6)


@pytest.mark.parametrize(("name", "confidence", "correct", "expected"), [
  ("all right and sure", [1.0, 1.0], [1, 1], 0.0), ("all wrong and sure", [1.0, 1.0], [0, 0], 1.0),
  ("right and sure of the opposite", [0.0, 0.0], [1, 1], 1.0), ("one example", [0.25], [1], 0.75),
])
def test_by_hand(name, confidence, correct, expected):
  for options in ({}, {"norm": 2}, {"norm": "max"}, {"binning": "equal_mass"}, {"closed": "left"}, {"form": "label"}):
    found = metrics.calibration_error(jnp.array(confidence), jnp.array(correct), **options)
    np.testing.assert_allclose(found, expected, atol=1e-7, err_msg=f"{name} {options}")


def test_no_examples_give_0():
  for options in OPTIONS:
    assert metrics.calibration_error(jnp.zeros(0), jnp.zeros(0, bool), **options) == 0
    assert metrics.calibration_error(jnp.full(3, jnp.nan), np.ones(3, bool), where=np.zeros(3, bool), **options) == 0


@pytest.mark.parametrize("options", OPTIONS, ids=_ids)
def test_where_equals_slicing_and_shapes_are_flattened(options):
  confidence, correct = pairs(60, "ties")
  where = np.arange(60) % 3 > 0
  masked = np.where(where, confidence, np.nan)
  expected = metrics.calibration_error(confidence[where], correct[where], **options)
  found = metrics.calibration_error(masked, correct, where=where, **options)
  np.testing.assert_allclose(found, expected, rtol=1e-6)
  shaped = [x.reshape(3, 4, 5) for x in (masked, correct, where)]
  found = jax.jit(lambda c, a, w: metrics.calibration_error(c, a, where=w, **options))(*shaped)
  np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("options", OPTIONS, ids=_ids)
def test_vmap_is_a_loop_and_order_does_not_matter(options):
  each = [pairs(40, seed=s) for s in range(3)]
  function = functools.partial(metrics.calibration_error, **options)
  found = jax.vmap(function)(*(np.stack(x) for x in zip(*each, strict=True)))
  np.testing.assert_allclose(found, [function(*pair) for pair in each], rtol=1e-5, atol=1e-7)
  shuffled = np.random.default_rng(1).permutation(40)
  np.testing.assert_allclose(function(*(x[shuffled] for x in each[0])), found[0], rtol=1e-5, atol=1e-7)


def test_label_form_is_at_least_the_bin_form_and_norms_are_ordered():
  for seed in range(5):
    pair = pairs(200, seed=seed)
    for norm in (1, 2, 3):
      assert metrics.calibration_error(*pair, norm=norm) <= metrics.calibration_error(*pair, norm=norm, form="label")
    errors = [float(metrics.calibration_error(*pair, norm=norm)) for norm in (1, 2, 4, "max")]
    assert errors == sorted(errors)


def test_debiasing_centres_the_squared_error_of_calibrated_predictions():
  plain, debiased = [], []
  for seed in range(200):
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(size=150).astype(np.float32)
    pair = confidence, rng.uniform(size=150) < confidence
    plain.append(float(metrics.calibration_error(*pair, norm=2)))
    debiased.append(float(metrics.calibration_error(*pair, norm=2, debias=True)))
  assert np.mean(debiased) < 0.5 * np.mean(plain) and np.mean(np.array(debiased) == 0) > 0.3


def test_equal_width_bins_put_edges_where_they_say_in_float32():
  for num_bins in (2, 3, 10, 15, 1000):
    edges = (np.arange(num_bins + 1) / num_bins).astype(np.float32)
    right, left = (np.asarray(binning.equal_width_index(jnp.asarray(edges), num_bins, c)) for c in ("right", "left"))
    np.testing.assert_array_equal(right, np.maximum(np.arange(num_bins + 1) - 1, 0))
    np.testing.assert_array_equal(left, np.minimum(np.arange(num_bins + 1), num_bins - 1))
    above = np.nextafter(edges[1:-1], np.float32(2))
    np.testing.assert_array_equal(binning.equal_width_index(jnp.asarray(above), num_bins), np.arange(1, num_bins))


def test_equal_mass_groups_are_those_of_array_split():
  for n in (0, 1, 4, 5, 15, 16, 31, 100):
    for num_bins in (1, 2, 5, 15):
      expected = np.concatenate([np.full(len(g), j) for j, g in enumerate(np.array_split(np.arange(n), num_bins))])
      np.testing.assert_array_equal(binning.equal_mass_index(jnp.arange(n), n, num_bins), expected)


def test_pairwise_sum_keeps_the_digits_that_a_running_sum_loses():
  x = np.random.default_rng(0).uniform(size=3_000_000).astype(np.float32)
  np.testing.assert_allclose(binning.pairwise_sum(jnp.asarray(x)), x.sum(dtype=np.float64), rtol=2e-7)
  for shape in ((0,), (1,), (0, 3), (1000, 2)):
    y = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.testing.assert_allclose(binning.pairwise_sum(jnp.asarray(y)), y.sum(0), rtol=1e-6)


@pytest.mark.parametrize("kind", ["equal_width", "equal_mass"])
def test_reliability_agrees_with_the_reference(kind):
  for n in (3, 200):
    confidence, correct = pairs(n)
    where = np.arange(n + 2) < n
    padded = np.append(confidence, [np.nan, 0.5]).astype(np.float32), np.append(correct, [True, True])
    found = metrics.reliability(*padded, num_bins=6, binning=kind, where=where)
    for j, index in enumerate(references.groups(confidence, 6, kind)):
      assert found.counts[j] == len(index)
      if len(index):
        np.testing.assert_allclose(found.accuracy[j], correct[index].mean(), rtol=1e-6)
        np.testing.assert_allclose(found.mean_confidence[j], confidence[index].mean(), rtol=1e-6)
        assert found.edges[j] <= confidence[index].min() and confidence[index].max() <= found.edges[j + 1]
      else:
        assert np.isnan(found.accuracy[j]) and np.isnan(found.mean_confidence[j])
    assert found.edges.shape == (7,) and found.edges[0] == 0 and found.edges[-1] == 1
    assert np.all(np.diff(found.edges) >= 0)


def test_shorthands_are_calibration_error_of_the_top_label():
  rng = np.random.default_rng(0)
  probs = rng.dirichlet(np.ones(4), 50).astype(np.float32)
  labels = rng.integers(0, 4, 50)
  pair = probs.max(1), probs.argmax(1) == labels
  for function, options in ((metrics.expected_calibration_error, {}),
                            (metrics.maximum_calibration_error, {"norm": "max"}),
                            (metrics.adaptive_calibration_error, {"binning": "equal_mass"})):
    np.testing.assert_allclose(function(probs, labels), references.calibration_error(*pair, **options), rtol=1e-5)
    np.testing.assert_allclose(function(probs, labels, num_bins=4),
                               references.calibration_error(*pair, num_bins=4, **options), rtol=1e-5)
  where = np.arange(50) < 30
  masked = np.where(where[:, None], probs, np.nan)
  np.testing.assert_allclose(metrics.expected_calibration_error(masked, labels, where=where),
                             metrics.expected_calibration_error(probs[:30], labels[:30]), rtol=1e-6)


@pytest.mark.parametrize(("options", "error", "message"), [
  ({"num_bins": 0}, ValueError, "num_bins must be in"), ({"num_bins": 2.0}, TypeError, "num_bins must be an integer"),
  ({"binning": "equal"}, ValueError, "binning must be one of 'equal_width', 'equal_mass': got 'equal'"),
  ({"norm": 0.5}, ValueError, "norm must be in"), ({"norm": "inf"}, TypeError, "norm must be a number"),
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


@pytest.mark.parametrize("binning_name", ["equal_width", "equal_mass"])
@pytest.mark.parametrize("norm", [1, 2])
def test_classwise_calibration_error_equals_the_reference(binning_name, norm):
  for n, k in ((1, 2), (2, 3), (100, 10), (5000, 3), (1, 1000), (2, 100), (100, 1000), (5000, 100), (100_000, 10),
               (15, 1000)):
    probs, labels = predictions(n, k)
    found = metrics.classwise_calibration_error(probs, labels, binning=binning_name, norm=norm)
    expected = references.classwise_calibration_error(probs, labels, binning=binning_name, norm=norm)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-7, err_msg=f"{n} {k}")
  where = np.arange(15) % 4 > 0
  masked = np.where(where[:, None], probs, np.nan)
  expected = metrics.classwise_calibration_error(probs[where], labels[where], binning=binning_name, norm=norm)
  found = metrics.classwise_calibration_error(masked.reshape(3, 5, k), labels.reshape(3, 5), binning=binning_name,
                                              norm=norm, where=where.reshape(3, 5))
  np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("binning_name", ["equal_width", "equal_mass"])
def test_sweep_equals_the_reference(kind, binning_name):
  for n, norm in ((1, 2), (2, 1), (15, 2), (100, 1), (400 if kind == "ties" else 5000, 2)):
    for seed in range(3):
      pair = pairs(n, kind, seed)
      found = metrics.sweep_calibration_error(*pair, binning=binning_name, norm=norm)
      expected = references.sweep_calibration_error(*pair, binning_name, norm)
      np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6, err_msg=f"{n} {seed}")


@pytest.mark.parametrize("correct", [np.ones(40, bool), np.zeros(40, bool), np.arange(40) >= 12, np.arange(40) != 1,
                                     np.arange(40) < 30])
def test_sweep_of_accuracies_in_order_goes_to_one_bin_an_example(correct):
  confidence = np.linspace(0.01, 0.99, 40).astype(np.float32)
  for binning_name in ("equal_width", "equal_mass"):
    np.testing.assert_allclose(metrics.sweep_calibration_error(confidence, correct, binning=binning_name),
                               references.sweep_calibration_error(confidence, correct, binning_name), rtol=1e-5)


def test_sweep_ignores_what_does_not_count_and_vmaps():
  confidence, correct = pairs(60, "ties")
  where = np.arange(60) % 3 > 0
  expected = metrics.sweep_calibration_error(confidence[where], correct[where])
  masked = np.where(where, confidence, np.nan)
  np.testing.assert_allclose(metrics.sweep_calibration_error(masked, correct, where=where), expected, rtol=1e-5)
  stacked = jax.vmap(metrics.sweep_calibration_error)(confidence.reshape(3, 20), correct.reshape(3, 20))
  each = [metrics.sweep_calibration_error(c, a) for c, a in zip(confidence.reshape(3, 20), correct.reshape(3, 20),
                                                                 strict=True)]
  np.testing.assert_allclose(stacked, each, rtol=1e-5)
