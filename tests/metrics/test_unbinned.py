"""Errors without bins against their definitions in float64, and the laws that make them worth having."""

import functools

import jax
import numpy as np
import pytest

from calib_jax import metrics
from calib_jax.losses import kernels
from tests.metrics import references
from tests.metrics.data import batch, every_kind, pairs, predictions

BY_HAND = {
  "wrong and sure": ([1.0, 1.0], [0, 0], 1.0, 1.0), "right and sure of the opposite": ([0.0], [1], 1.0, 1.0),
  "right and sure": ([1.0, 0.0], [1, 0], 0.0, 0.0), "calibrated": ([0.25] * 4, [1, 0, 0, 0], 0.0, 0.0),
  "no example": ([], [], 0.0, 0.0),
}


@pytest.mark.parametrize(("name", "sizes"), [("ks", (1, 2, 15, 600)), ("smooth", (1, 2, 40))])
def test_errors_equal_the_reference_and_values_by_hand_under_masks_and_vmap(name, sizes):
  metric, reference = (getattr(m, f"{name}_calibration_error") for m in (metrics, references))
  samples = every_kind(sizes)
  by_hand = [(np.array(c, np.float32), np.array(a, bool)) for c, a, *_ in BY_HAND.values()]
  data = [x.reshape(len(x), 5, -1) for x in batch([*by_hand, *samples.values()], sizes[-1])]
  actual = jax.vmap(lambda c, a, w: metric(c, a, where=w))(*data)
  for (label, (*_, smooth, ks)), value in zip(BY_HAND.items(), actual, strict=False):
    np.testing.assert_allclose(value, smooth if name == "smooth" else ks, atol=1e-4 if name == "smooth" else 1e-7,
                               err_msg=label)
  tolerance = {"rtol": 1e-5, "atol": 1e-7} if name == "ks" else {"rtol": 5e-4, "atol": 1e-7}
  for (label, pair), value in zip(samples.items(), actual[len(by_hand):], strict=True):
    np.testing.assert_allclose(value, reference(*pair), **tolerance, err_msg=label)


@pytest.mark.slow
def test_ks_of_a_million_keeps_its_digits():
  pair = pairs(1_000_000, "ones")
  np.testing.assert_allclose(metrics.ks_calibration_error(*pair), references.ks_calibration_error(*pair), atol=1e-7)


FORMS = ("top_label", "canonical", "marginal")


@functools.partial(jax.jit, static_argnames=("form", "norm", "bandwidth"))
def _kernel_error(probs, labels, where, bandwidth, form="top_label", norm=1.0):
  return metrics.kde_calibration_error(probs, labels, bandwidth=bandwidth, norm=norm, form=form, where=where)


@pytest.mark.parametrize(("form", "norm"), [
  ("top_label", 1.0), ("top_label", 2.0), ("canonical", 2.0), ("marginal", 1.0)])
def test_kde_equals_the_reference_under_masks(form, norm, monkeypatch):
  monkeypatch.setattr(kernels, "CHUNK", 7 * 80)  # Seven rows at a time.
  samples = [predictions(n, 4) for n in (1, 2, 60)]
  for probs, _ in samples:
    probs[0] = np.eye(4)[0]  # Certain: clipped.
  for sample, *padded in zip(samples, *batch(samples, 80), strict=True):
    n = len(sample[1])
    expected = references.kde_calibration_error(*sample, 0.07, norm, form)[0] if n > 1 else 0
    np.testing.assert_allclose(_kernel_error(*padded, 0.07, form, norm), expected, rtol=1e-4, err_msg=str(n))


@pytest.mark.parametrize("form", FORMS)
def test_kde_takes_the_likeliest_bandwidth_of_its_grid(form):
  probs, labels = predictions(60, 3)
  padded = (x[0] for x in batch([(probs, labels)], 80))
  grid = np.concatenate([np.logspace(-5, -1, 15), np.linspace(0.2, 1, 5)])
  best = max(grid, key=lambda h: references.kde_calibration_error(probs, labels, h, form=form)[1])
  expected, _ = references.kde_calibration_error(probs, labels, best, form=form)
  np.testing.assert_allclose(_kernel_error(*padded, None, form), expected, rtol=2e-4)


def test_the_smooth_error_is_small_for_the_truth_and_continuous():
  rng = np.random.default_rng(0)
  confidence = rng.uniform(size=200_000).astype(np.float32)
  assert metrics.smooth_calibration_error(confidence, rng.uniform(size=200_000) < confidence) < 0.01
  halves = np.full(1000, 0.5, np.float32)  # A nudge moves all of it from one bin to another, but not this error.
  correct = rng.uniform(size=1000) < 0.7
  near, nudged = (metrics.smooth_calibration_error(c, correct) for c in (halves, halves + 1e-4))
  np.testing.assert_allclose(near, nudged, atol=2e-4)
