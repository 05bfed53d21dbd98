"""The state of CALS: multipliers of classes and the curvature, against float64, and what each update does to them."""

import jax
import numpy as np

from calib_jax import losses
from tests.losses import references

UPDATE = jax.jit(losses.update_class_adaptive, static_argnames=("margin", "growth", "tolerance", "every"))


def test_multipliers_and_curvature_follow_the_definition():
  rng, k = np.random.default_rng(0), 4
  state, multipliers, curvature, last = losses.init_class_adaptive(k), np.full(k, 1e-6), np.ones(k), np.inf
  grown = []
  for epoch in range(1, 31):
    # Logits grow apart, class 0 far below the largest; then they come together, and no constraint is above 0.
    z = rng.normal(size=(37, k)) * 0.2 * epoch - 4 * np.eye(k)[0] if epoch < 20 else 0.3 * rng.normal(size=(37, k))
    z = z.astype(np.float32)
    state = UPDATE(state, epoch, z, margin=2.0, growth=1.5, tolerance=0.8, every=3)
    h = (z.max(1, keepdims=True) - z.astype(float)) / 2 - 1
    _, slopes = references.penalty_of_constraints(h, multipliers, curvature)
    grows = (epoch % 3 == 0) & (h.mean(0) > 0.8 * np.maximum(last, 0))
    grown.append(grows)
    multipliers, curvature, last = (np.clip(slopes, 1e-6, 1e6).mean(0),
                                    np.where(grows, np.minimum(10, 1.5 * curvature), curvature), h.mean(0))
    np.testing.assert_allclose(state.multipliers, multipliers, rtol=2e-4)
    np.testing.assert_allclose(state.last_constraints, last, rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(state.curvature, curvature, rtol=1e-5)
    assert epoch != 19 or state.multipliers[0] > 1.2 * state.multipliers[1:].max()
  counts = np.sum(grown, axis=0)  # The curvature of class 0 grows more often.
  assert counts[0] > counts[1:].max() > 0 and not np.any(grown[19:]) and state.multipliers.min() < 1e-5


def test_extreme_logits_stay_in_bounds_and_one_example_and_two_classes_are_enough():
  state = UPDATE(losses.init_class_adaptive(2, 10.0), 1, np.array([[1e8, -1e8]], np.float32), margin=1.0)
  np.testing.assert_allclose(state.multipliers, [1e-6, 1e6])
  state = UPDATE(losses.init_class_adaptive(2), 10, np.array([[1e4, -1e4]], np.float32))
  assert np.isfinite(state.last_constraints).all() and (state.curvature == 1).all()  # No epoch came before.
