"""Metrics of segmentation maps need no more than a few times the memory of the maps."""

import functools

import jax
import jax.numpy as jnp
import pytest

from calib_jax import metrics

METRICS = {
  "classwise": metrics.classwise_calibration_error,
  "classwise equal mass": functools.partial(metrics.classwise_calibration_error, binning="equal_mass"),
  "kde": functools.partial(metrics.kde_calibration_error, form="canonical", bandwidth=0.01),
  "smooth": lambda p, y, where: metrics.smooth_calibration_error(*metrics.top_label(p, y), where=where),
  "histogram": lambda p, y, where: metrics.CalibrationHistogram.from_model_output(probs=p, labels=y, where=where),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "classwise"))
                                  for name in METRICS])
def test_maps_with_ignored_pixels_take_at_most_seven_times_their_size(name):
  shape = (4, 256, 256)
  maps = (jax.ShapeDtypeStruct((*shape, 20), jnp.float32), jax.ShapeDtypeStruct(shape, jnp.int32),
          jax.ShapeDtypeStruct(shape, bool))
  compiled = jax.jit(lambda p, y, w: METRICS[name](p, y, where=w)).lower(*maps).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < 7 * 4 * 20 * 4 * 256 * 256
