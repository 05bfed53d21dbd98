"""Errors without bins against their definitions in float64, and the laws that make them worth having."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import metrics
from tests.metrics import references
from tests.metrics.data import KINDS, pairs, predictions


@pytest.mark.parametrize("kind", KINDS)
def test_ks_equals_the_reference(kind):
  for n in (1, 2, 15, 100, 5000):
    pair = pairs(n, kind)
    np.testing.assert_allclose(metrics.ks_calibration_error(*pair), references.ks_calibration_error(*pair), rtol=1e-5)


def test_ks_of_a_million_keeps_its_digits():
  pair = pairs(1_000_000, "ones")
  np.testing.assert_allclose(metrics.ks_calibration_error(*pair), references.ks_calibration_error(*pair), atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_smooth_error_equals_the_reference(kind):
  for n in (1, 2, 15, 60):
    pair = pairs(n, kind)
    found, expected = metrics.smooth_calibration_error(*pair), references.smooth_calibration_error(*pair)
    np.testing.assert_allclose(found, expected, rtol=5e-4, atol=1e-7, err_msg=str(n))


@pytest.mark.parametrize(("confidence", "correct", "expected"), [
  ([1.0, 1.0], [0, 0], 1.0), ([0.0], [1], 1.0), ([1.0, 0.0], [1, 0], 0.0), ([0.25] * 4, [1, 0, 0, 0], 0.0),
])
def test_by_hand(confidence, correct, expected):
  pair = jnp.array(confidence), jnp.array(correct)
  np.testing.assert_allclose(metrics.smooth_calibration_error(*pair), expected, atol=1e-4)
  if confidence[0] != 0.25:
    np.testing.assert_allclose(metrics.ks_calibration_error(*pair), expected, atol=1e-7)


@pytest.mark.parametrize("form", ["top_label", "canonical", "marginal"])
@pytest.mark.parametrize("norm", [1.0, 2.0])
def test_kde_equals_the_reference(form, norm):
  for n, k in ((2, 2), (7, 3), (60, 4), (15, 10), (2, 1000), (100, 100), (5000 if form == "top_label" else 400, 3)):
    probs, labels = predictions(n, k)
    probs[0] = np.eye(k)[0]  # Certain: clipped.
    found = metrics.kde_calibration_error(probs, labels, bandwidth=0.07, norm=norm, form=form)
    expected, _ = references.kde_calibration_error(probs, labels, 0.07, norm, form)
    np.testing.assert_allclose(found, expected, rtol=1e-4, err_msg=f"{n} {k}")
  assert metrics.kde_calibration_error(probs[:1], labels[:1], form=form) == 0


@pytest.mark.parametrize("form", ["top_label", "canonical", "marginal"])
def test_kde_takes_the_likeliest_bandwidth_of_its_grid(form):
  probs, labels = predictions(80, 3)
  grid = np.concatenate([np.logspace(-5, -1, 15), np.linspace(0.2, 1, 5)])
  best = max(grid, key=lambda h: references.kde_calibration_error(probs, labels, h, form=form)[1])
  expected, _ = references.kde_calibration_error(probs, labels, best, form=form)
  np.testing.assert_allclose(metrics.kde_calibration_error(probs, labels, form=form), expected, rtol=2e-4)


def test_what_does_not_count_changes_nothing():
  confidence, correct = pairs(60, "ones")
  probs, labels = predictions(60, 3)
  where = np.arange(60) % 3 > 0
  masked = np.where(where, confidence, np.nan)
  for metric in (metrics.ks_calibration_error, metrics.smooth_calibration_error):
    expected = metric(confidence[where], correct[where])
    np.testing.assert_allclose(metric(masked, correct, where=where), expected, rtol=1e-5)
    shaped = metric(*(x.reshape(3, 4, 5) for x in (masked, correct)), where=where.reshape(3, 4, 5))
    np.testing.assert_allclose(shaped, expected, rtol=1e-5)
    assert metric(masked, correct, where=np.zeros(60, bool)) == 0
    stacked = jax.vmap(metric)(confidence.reshape(2, 30), correct.reshape(2, 30))
    np.testing.assert_allclose(stacked, [metric(confidence[:30], correct[:30]), metric(confidence[30:], correct[30:])],
                               rtol=1e-5)
  masked = np.where(where[:, None], probs, np.nan)
  for bandwidth in (0.1, None):
    expected = metrics.kde_calibration_error(probs[where], labels[where], bandwidth=bandwidth)
    found = metrics.kde_calibration_error(masked, labels, bandwidth=bandwidth, where=where)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_smooth_error_is_small_for_the_truth_and_continuous():
  rng = np.random.default_rng(0)
  confidence = rng.uniform(size=200_000).astype(np.float32)
  assert metrics.smooth_calibration_error(confidence, rng.uniform(size=200_000) < confidence) < 0.01
  halves = np.full(1000, 0.5, np.float32)  # A nudge moves all of it from one bin to another, but not this error.
  correct = rng.uniform(size=1000) < 0.7
  near, nudged = (metrics.smooth_calibration_error(c, correct) for c in (halves, halves + 1e-4))
  np.testing.assert_allclose(near, nudged, atol=2e-4)
