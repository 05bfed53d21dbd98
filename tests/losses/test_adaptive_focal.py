"""AdaFocal's state: its bins, its exponents, and what each update does to them."""

import jax
import numpy as np
import pytest

from calib_jax import losses


def _update(gammas, confidence, correct, rate=1.0, switch=0.2, low=-2.0, high=20.0):
  """One update in plain numpy, from its definition."""
  order = np.argsort(confidence, kind="stable")
  groups = np.array_split(order, len(gammas))
  edges = [0.0] + [1.0] * len(gammas)
  actual = []
  for j, (gamma, group) in enumerate(zip(gammas, groups, strict=True)):
    if len(group) == 0:
      actual.append(gamma)
      continue
    if j > 0:
      edges[j] = (confidence[groups[j - 1][-1]] + confidence[group[0]]) / 2
    gap = confidence[group].mean() - correct[group].mean()
    new = gamma * np.exp((rate if gamma > 0 else -rate) * gap)
    if abs(new) < switch:
      new = -switch if gamma > 0 else switch
    actual.append(np.clip(new, low, high))
  return np.array(actual), np.array(edges)


@pytest.mark.parametrize(("n", "bins"), [(100, 15), (7, 15), (64, 1)])
def test_updates_follow_the_definition_through_sign_switches_and_clips(n, bins):
  rng = np.random.default_rng(n)
  state = losses.init_adaptive_focal(num_bins=bins)
  np.testing.assert_allclose(state.gammas, 1)
  np.testing.assert_allclose(state.bin_edges, np.linspace(0, 1, bins + 1), atol=1e-7)
  gammas = np.ones(bins)
  signs, update = set(), jax.jit(losses.update_adaptive_focal)
  for epoch in range(12):
    confidence = rng.uniform(size=n).astype(np.float32)
    correct = rng.uniform(size=n) < (0.95 if epoch < 6 else 0.05)
    state = update(state, confidence, correct, rate=4.0)
    gammas, edges = _update(gammas, confidence.astype(np.float64), correct, rate=4.0)
    np.testing.assert_allclose(state.gammas, gammas, rtol=2e-3)
    np.testing.assert_allclose(state.bin_edges, edges, atol=1e-6)
    signs |= set(np.sign(gammas))
  assert signs == {-1.0, 1.0} and gammas.max() <= 20 and gammas.min() >= -2


def test_values_outside_the_edges_belong_to_the_outer_bins():
  edges, gammas = np.array([0.3, 0.5, 0.7], np.float32), np.array([2.0, -1.0], np.float32)
  logits, labels = np.array([[-3, 0], [3, 0]], np.float32), np.array([0, 0])
  low, high = 1 / (1 + np.exp([3.0, -3.0]))
  expected = [-(1 - low)**2 * np.log(low), -(1 + high) * np.log(high)]
  actual = jax.jit(losses.adaptive_focal)(logits, labels, gammas=gammas, bin_edges=edges)
  np.testing.assert_allclose(actual, expected, rtol=1e-5)
