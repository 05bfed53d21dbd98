"""Metrics of segmentation maps need no more than a few times the memory of the maps."""

import functools

import jax
import jax.numpy as jnp
import pytest

from calib_jax import metrics


def _by_confidence(metric):
  return lambda probs, labels, where: metric(*metrics.top_label(probs, labels), where=where)


METRICS = {
  **{name: getattr(metrics, name) for name in (
    "adaptive_calibration_error", "classwise_calibration_error", "brier_score")},
  "classwise equal mass": functools.partial(metrics.classwise_calibration_error, binning="equal_mass"),
  **{f"kde {form}": functools.partial(metrics.kde_calibration_error, form=form, bandwidth=0.01)
     for form in ("marginal", "canonical")},
  **{name: _by_confidence(getattr(metrics, name)) for name in (
    "smooth_calibration_error", "sweep_calibration_error", "aurc", "auroc")},
  "histogram": lambda probs, labels, where: metrics.CalibrationHistogram.from_model_output(
    probs=probs, labels=labels, where=where),
}


FAST = ("adaptive_calibration_error", "classwise_calibration_error", "brier_score")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST))
                                  for name in METRICS])
def test_maps_with_ignored_pixels_take_at_most_seven_times_their_size(name):
  shape = (4, 256, 256)
  maps = (jax.ShapeDtypeStruct((*shape, 20), jnp.float32), jax.ShapeDtypeStruct(shape, jnp.int32),
          jax.ShapeDtypeStruct(shape, bool))
  compiled = jax.jit(lambda p, y, w: METRICS[name](p, y, where=w)).lower(*maps).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < 7 * 4 * 20 * 4 * 256 * 256
