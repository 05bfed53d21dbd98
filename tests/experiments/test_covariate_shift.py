"""Importance weights are right where nothing but the inputs changes."""

import numpy as np
import pytest

from experiments import covariate_shift


def _drawn(rng, n, tilt=0.0):
  """Logits of two classes, of which large ones are right and small ones twice too large, and the entropies.

  An example is kept with a probability that grows with the entropy, by ``tilt``.
  """
  margin = rng.uniform(-4, 4, n)
  p = 1 / (1 + np.exp(-margin))
  entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p))
  keep = rng.uniform(size=n) < np.exp(tilt * (entropy - np.log(2)))
  labels = (rng.uniform(size=n) < 1 / (1 + np.exp(-margin / np.where(np.abs(margin) > 2, 1, 2)))).astype(int)
  return (np.stack([np.zeros(n), margin], 1).astype(np.float32)[keep], labels[keep]), entropy[keep]


@pytest.mark.slow
def test_weights_are_the_ratio_of_densities_and_give_the_temperature_of_the_target():
  rng = np.random.default_rng(0)
  (target, _), (validation, entropy) = _drawn(rng, 6000), _drawn(rng, 20_000, tilt=5)
  weights, truth = covariate_shift.weights_of(validation[0], target[0]), np.exp(-5 * entropy)
  np.testing.assert_allclose(weights, truth / truth.mean(), rtol=0.25)
  row = covariate_shift.measured_set(validation, target)
  plain, weighted, known = (row[f"temperature_{name}"] for name in ("plain", "weighted", "known"))
  assert abs(weighted - known) < abs(plain - known) / 4
  assert row["nll_known"] <= row["nll_weighted"] < row["nll_plain"]
  assert row["predicted"] == pytest.approx(row["ece_plain"], abs=0.01)
