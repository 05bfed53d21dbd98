"""Errors without bins against their definitions in float64, and the laws that make them worth having."""

import functools

import jax
import numpy as np
import pytest

from calib_jax import metrics
from tests.metrics import references
from tests.metrics.data import batch, every_kind, pairs, predictions


def _mapped(metric):
  """A metric of each row of a batch, one after the other, in one program."""
  return jax.jit(lambda *data: jax.lax.map(lambda x: metric(x[0], x[1], where=x[2]), data))


BY_HAND = {
  "wrong and sure": ([1.0, 1.0], [0, 0], 1.0, 1.0), "right and sure of the opposite": ([0.0], [1], 1.0, 1.0),
  "right and sure": ([1.0, 0.0], [1, 0], 0.0, 0.0), "calibrated": ([0.25] * 4, [1, 0, 0, 0], 0.0, None),
  "no example": ([], [], 0.0, 0.0),
}
KS_AT_MOST, SMOOTH_AT_MOST = 5000, 60  # The sizes of batches; the smooth error's reference takes O(N) at 4,000 points.


@pytest.mark.parametrize("name", ["ks", "smooth"])
def test_errors_equal_the_reference_under_masks(name):
  metric, reference = (getattr(m, f"{name}_calibration_error") for m in (metrics, references))
  samples = every_kind((1, 2, 15, 100, 5000) if name == "ks" else (1, 2, 15, 60))
  data = batch(list(samples.values()), KS_AT_MOST if name == "ks" else SMOOTH_AT_MOST)
  actual = _mapped(metric)(*data)
  for (label, pair), value in zip(samples.items(), actual, strict=True):
    tolerance = {"rtol": 1e-5} if name == "ks" else {"rtol": 5e-4, "atol": 1e-7}
    np.testing.assert_allclose(value, reference(*pair), **tolerance, err_msg=label)
  # Leading axes, and a true vmap.
  folded = [x[-3:].reshape(3, 5, -1) for x in data]
  np.testing.assert_allclose(jax.vmap(lambda c, a, w: metric(c, a, where=w))(*folded), actual[-3:], rtol=1e-5)


@pytest.mark.parametrize("name", ["ks", "smooth"])
def test_by_hand(name):
  samples = [(np.array(c, np.float32), np.array(a, bool)) for c, a, *_ in BY_HAND.values()]
  actual = _mapped(getattr(metrics, f"{name}_calibration_error"))(*batch(samples, SMOOTH_AT_MOST))
  for (label, (*_, smooth, ks)), value in zip(BY_HAND.items(), actual, strict=True):
    expected = smooth if name == "smooth" else ks
    if expected is not None:
      np.testing.assert_allclose(value, expected, atol=1e-4 if name == "smooth" else 1e-7, err_msg=label)


@pytest.mark.slow
def test_ks_of_a_million_keeps_its_digits():
  pair = pairs(1_000_000, "ones")
  np.testing.assert_allclose(metrics.ks_calibration_error(*pair), references.ks_calibration_error(*pair), atol=1e-7)


FORMS = ("top_label", "canonical", "marginal")


@functools.partial(jax.jit, static_argnames=("form", "norm", "bandwidth"))
def _kernel_error(probs, labels, where, bandwidth, form="top_label", norm=1.0):
  return metrics.kde_calibration_error(probs, labels, bandwidth=bandwidth, norm=norm, form=form, where=where)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("norm", [1.0, 2.0])
def test_kde_equals_the_reference_under_masks(form, norm):
  for n in (1, 2, 60):
    probs, labels = predictions(n, 4)
    probs[0] = np.eye(4)[0]  # Certain: clipped.
    where = np.zeros(80, bool)
    where[np.random.default_rng(n).permutation(80)[:n]] = True
    padded, padded_labels = np.full((80, 4), np.nan, np.float32), np.full(80, 99)
    padded[where], padded_labels[where] = probs, labels
    actual = _kernel_error(padded, padded_labels, where, 0.07, form, norm)
    expected = references.kde_calibration_error(probs, labels, 0.07, norm, form)[0] if n > 1 else 0
    np.testing.assert_allclose(actual, expected, rtol=1e-4, err_msg=str(n))


@pytest.mark.slow
@pytest.mark.parametrize(("form", "norm"), [("top_label", 1.0), ("canonical", 2.0), ("marginal", 1.0)])
def test_kde_of_many_equals_the_reference(form, norm):
  for n, k in ((2, 2), (15, 10), (2, 1000), (100, 100), (5000 if form == "top_label" else 400, 3)):
    probs, labels = predictions(n, k)
    probs[0] = np.eye(k)[0]
    actual = _kernel_error(probs, labels, None, 0.07, form, norm)
    expected, _ = references.kde_calibration_error(probs, labels, 0.07, norm, form)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, err_msg=f"{n} {k}")


@pytest.mark.parametrize("form", FORMS)
def test_kde_takes_the_likeliest_bandwidth_of_its_grid(form):
  probs, labels = predictions(60, 3)
  where = np.arange(80) % 4 > 0
  padded, padded_labels = np.full((80, 3), np.nan, np.float32), np.zeros(80, int)
  padded[where], padded_labels[where] = probs, labels
  grid = np.concatenate([np.logspace(-5, -1, 15), np.linspace(0.2, 1, 5)])
  best = max(grid, key=lambda h: references.kde_calibration_error(probs, labels, h, form=form)[1])
  expected, _ = references.kde_calibration_error(probs, labels, best, form=form)
  np.testing.assert_allclose(_kernel_error(padded, padded_labels, where, None, form), expected, rtol=2e-4)


def test_the_smooth_error_is_small_for_the_truth_and_continuous():
  rng = np.random.default_rng(0)
  confidence = rng.uniform(size=200_000).astype(np.float32)
  assert metrics.smooth_calibration_error(confidence, rng.uniform(size=200_000) < confidence) < 0.01
  halves = np.full(1000, 0.5, np.float32)  # A nudge moves all of it from one bin to another, but not this error.
  correct = rng.uniform(size=1000) < 0.7
  near, nudged = (metrics.smooth_calibration_error(c, correct) for c in (halves, halves + 1e-4))
  np.testing.assert_allclose(near, nudged, atol=2e-4)
