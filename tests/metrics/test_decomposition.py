"""The parts of a loss: the definition in float64, laws of masks, weights and groups, known truths, and mistakes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

from calib_jax import _checks as checks
from calib_jax import metrics
from calib_jax.intervals.groups import stratified_folds
from calib_jax.metrics import decomposition
from tests.metrics.data import batch

N, K, RESAMPLES = 150, 3, 40  # One shape and one number of resamples, so that little is compiled.
parts_of = functools.partial(metrics.calibration_refinement, key=jax.random.key(0), num_resamples=RESAMPLES)


def _data(n=N, k=K, exponent=2.0, seed=0):
  """Probabilities whose logits are ``exponent`` times those of the posterior, and labels of the posterior."""
  rng = np.random.default_rng(seed)
  logits = 2 * rng.normal(size=(n, k))
  labels = (special.softmax(logits, axis=1).cumsum(1) < rng.uniform(size=(n, 1))).sum(1).clip(0, k - 1)
  return special.softmax(exponent * logits, axis=1).astype(np.float32), labels.astype(np.int32)


def _leaves(actual):
  return np.array(jax.tree.leaves(actual))


# The definition, from the papers, in float64.


def _nll(log_probs, labels):
  return -log_probs[np.arange(len(labels)), labels]


def _brier(log_probs, labels):
  return np.sum((np.exp(log_probs) - np.eye(log_probs.shape[1])[labels]) ** 2, axis=1)


def _fitted(log_probs, labels, recalibration):
  """A function of log-probabilities, fitted to these."""
  n, k = log_probs.shape

  def scaled(temperature, x):
    return special.log_softmax(x / temperature, axis=1)

  inverse = optimize.minimize_scalar(lambda b: _nll(scaled(1 / b, log_probs), labels).mean(), bounds=(1e-3, 1e3),
                                     method="bounded", options={"xatol": 1e-10}).x
  if recalibration == "temperature_scaling":
    return lambda x: scaled(1 / inverse, x)

  def mixed(x):
    return np.log(n / (n + 1) * np.exp(scaled(1 / inverse, x)) + 1 / (n + 1) / k)

  def unpacked(flat):
    matrix = flat[2 * k:].reshape(k, k) if recalibration == "structured_matrix_scaling" else np.zeros((k, k))
    return flat[:k], flat[k:2 * k], matrix * (1 - np.eye(k))

  def mapped(flat, x):
    bias, scale, matrix = unpacked(flat)
    return special.log_softmax(x + x * scale + x @ matrix.T + bias, axis=1)

  def objective(flat):
    bias, scale, matrix = unpacked(flat)
    penalty = k / n * (bias @ bias + scale @ scale) + k * (k - 1) / n * np.sum(matrix**2)
    return _nll(mapped(flat, mixed(log_probs)), labels).mean() + penalty

  flat = optimize.minimize(objective, np.zeros(2 * k + k * k), options={"gtol": 1e-9}).x
  return lambda x: mapped(flat, mixed(x))


def _reference(probs, labels, recalibration, folds):
  """By loss: it, the calibration and the refinement part out of fold, and the calibration part of the fit to all."""
  log_probs, fold = np.log(probs.astype(np.float64)), stratified_folds(labels, folds)
  recalibrated = np.empty_like(log_probs)
  for k in range(folds):
    out = fold == k
    recalibrated[out] = _fitted(log_probs[~out], labels[~out], recalibration)(log_probs[out])
  within = _fitted(log_probs, labels, recalibration)(log_probs)
  for name, loss in (("nll", _nll), ("brier", _brier)):
    before, after, best = (loss(x, labels).mean() for x in (log_probs, recalibrated, within))
    yield name, (before, before - after, after, before - best)


@pytest.mark.parametrize("recalibration", [
  pytest.param(name, marks=[pytest.mark.slow] * (name == "structured_vector_scaling"))
  for name in decomposition.LEAST])
def test_estimates_follow_the_definition(recalibration):
  probs, labels = _data()
  removed = decomposition.of_examples(probs, labels, np.ones(N, np.float32), recalibration=recalibration, folds=3)
  for name, expected in _reference(probs, labels, recalibration, 3):
    actual = parts_of(probs, labels, loss=name, recalibration=recalibration, folds=3)
    # The fit may end where the NLL could still fall by 1e-6 of itself, and its square root moves single losses.
    np.testing.assert_allclose([x.estimate for x in actual], expected[:3], atol=2e-4)
    np.testing.assert_allclose(np.mean(removed[name], axis=0), [*expected[:2], expected[3]], atol=2e-4)
    np.testing.assert_allclose(actual.loss.estimate, expected[0], rtol=1e-5)
    parts = actual.calibration.estimate + actual.refinement.estimate
    np.testing.assert_allclose(actual.loss.estimate, parts, rtol=1e-6)


@pytest.mark.parametrize("array", [np.array, jnp.array])
def test_intervals_begin_out_of_fold_and_end_at_the_fit_to_all_or_the_identity(array):
  # The loss, what is removed out of fold and within, and what is left out of fold and within.
  means, low, high = array([[5.0, 1.0, 2.0, 4.0, 3.0], [4.5, 0.5, 1.5, 3.5, 2.5], [5.5, 1.5, 2.5, 4.5, 3.5]])
  actual = decomposition.parts(means, low, high)
  assert actual == ((5.0, 4.5, 5.5), (1.0, 0.5, 2.5), (4.0, 2.5, 4.5))
  # The identity removes 0 and leaves the loss, where fits raise it.
  means, low, high = array([[1.0, -2.0, -1.0, 3.0, 2.0], [0.5, -3.0, -1.5, 2.0, 1.5], [1.5, -1.0, -0.5, 4.0, 2.5]])
  assert decomposition.parts(means, low, high) == ((1.0, 0.5, 1.5), (-2.0, -3.0, 0.0), (3.0, 0.5, 4.0))


def test_auto_looks_at_the_numbers_of_examples_and_classes_alone():
  for n, k, expected in ((1000, 20, "matrix"), (999, 2, "vector"), (1000, 21, "vector"), (299, 2, "temperature"),
                         (5000, 1000, "vector"), (4999, 1000, "temperature"), (10**6, 101, "vector")):
    assert expected in decomposition.chosen(n, k)
  probs, labels = _data()
  np.testing.assert_array_equal(_leaves(parts_of(probs, labels)),
                                _leaves(parts_of(probs, labels, recalibration="temperature_scaling")))


def test_masked_examples_are_as_if_they_were_not_there():
  """They may hold NaN, and labels out of range."""
  probs, labels = _data()
  wide, wide_labels, where = (x[0] for x in batch([(probs, labels)], 2 * N))
  expected = _leaves(parts_of(probs, labels))
  np.testing.assert_array_equal(_leaves(parts_of(wide, wide_labels, where=where)), expected)
  folded = parts_of(wide.reshape(2, N, K), wide_labels.reshape(2, N), weights=where.reshape(2, N).astype(np.float32))
  np.testing.assert_allclose(_leaves(folded), expected, rtol=1e-5, atol=1e-6)


def test_whole_weights_are_repeated_rows_of_one_group():
  probs, labels = _data(N * 2 // 3)
  weights = 1 + (np.arange(len(labels)) % 2)
  rows = np.repeat(np.arange(len(labels)), weights)  # N of them, whose fits are compiled.
  actual = parts_of(probs, labels, weights=weights)
  expected = parts_of(probs[rows], labels[rows], groups=rows)
  np.testing.assert_allclose(_leaves(actual), _leaves(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_rows_of_a_group_share_a_fold_and_make_intervals_wider():
  probs, labels = _data(N // 3)
  rows = np.repeat(np.arange(N // 3), 3)
  alone, together = (parts_of(probs[rows], labels[rows], recalibration="structured_matrix_scaling", groups=groups)
                     for groups in (None, rows))
  # A copy of an example in the fit lets recalibration seem to remove more of it.
  assert together.calibration.estimate < alone.calibration.estimate
  # Three copies of each example: the standard error of the loss is √3 times what it seems.
  widths = [float(x.loss.high - x.loss.low) for x in (together, alone)]
  assert widths[0] > 1.3 * widths[1]
  assert not np.intersect1d(*(rows[stratified_folds(labels[rows], 5, rows) == k] for k in (0, 1))).size


def test_an_overconfident_model_is_shown_to_lose_and_a_calibrated_one_is_not():
  for exponent in (1.0, 2.5):
    probs, labels = _data(1000, exponent=exponent, seed=3)
    posterior = special.softmax(np.log(probs.astype(np.float64)) / exponent, axis=1)
    truths = {"nll": np.mean(np.sum(posterior * (np.log(posterior) - np.log(probs)), axis=1)),
              "brier": np.mean(np.sum((posterior - probs) ** 2, axis=1))}
    for loss, truth in truths.items():
      calibration = parts_of(probs, labels, loss=loss, recalibration="temperature_scaling").calibration
      assert calibration.low <= truth <= calibration.high
      assert (calibration.low > truth / 2) == (exponent > 1)


EXTREMES = {
  "certain and right": (np.eye(K)[np.arange(N) % K], np.arange(N) % K),
  "certain and wrong": (np.eye(K)[np.arange(N) % K], (np.arange(N) + 1) % K),
  "uniform": (np.full((N, K), 1 / K), np.arange(N) % K),
  "one class alone": (_data()[0], np.zeros(N, int)),
}


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("recalibration", ["temperature_scaling", "structured_matrix_scaling"])
def test_extreme_predictions_give_finite_parts_in_order(name, recalibration):
  probs, labels = (x.astype(dtype) for x, dtype in zip(EXTREMES[name], (np.float32, np.int32), strict=True))
  for loss, most in (("nll", -np.log(np.finfo(np.float32).tiny)), ("brier", 2)):
    actual = parts_of(probs, labels, loss=loss, recalibration=recalibration)
    assert np.isfinite(_leaves(actual)).all()
    for part in actual:
      assert part.low <= part.estimate + 1e-6 and part.estimate <= part.high + 1e-6 and part.high <= most * (1 + 1e-6)
    assert actual.calibration.high >= 0 and actual.refinement.low >= -1e-6
    if name == "certain and right":  # The identity is best, and a fit mixes in 1/(n + 1) of the uniform distribution.
      assert actual.loss.estimate == 0 and abs(actual.calibration.estimate) < 3 / N
    if name == "certain and wrong":
      np.testing.assert_allclose(actual.loss.estimate, most, rtol=1e-5)
      assert actual.calibration.low > most / 3


@pytest.mark.slow
def test_five_examples_are_enough_and_two_classes_are():
  probs, labels = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.5, 0.5], [0.3, 0.7]], np.float32), np.arange(5) % 2
  assert np.isfinite(_leaves(parts_of(probs, labels))).all()


@pytest.mark.parametrize(("message", "options"), [
  ("loss must be", {"loss": "ece"}), ("recalibration must be", {"recalibration": "isotonic"}),
  ("folds must be", {"folds": 1}), ("level must be", {"level": 1.0}), ("no row counts", {"where": np.zeros(N, bool)}),
  ("groups must be integers of shape", {"groups": np.zeros(3, int)}),
  ("weights must be finite", {"weights": np.full(N, -1.0)}),
  ("needs at least 5 examples: there are 1", {"where": np.arange(N) == 3}),
  ("needs at least 5 groups: there are 3", {"groups": np.arange(N) % 3})])
def test_mistakes_are_said(message, options):
  with pytest.raises(ValueError, match=message):
    parts_of(*_data(), **options)


def test_without_checks_a_label_out_of_range_gives_nan():
  probs, labels = _data()
  checks.check_values(False)
  try:
    assert np.isnan(_leaves(parts_of(probs, np.where(np.arange(N) == 7, K, labels)))).all()
  finally:
    checks.check_values(True)


def test_traced_arrays_are_refused():
  with pytest.raises(TypeError, match="folds on the host"):
    jax.jit(parts_of)(*_data())
