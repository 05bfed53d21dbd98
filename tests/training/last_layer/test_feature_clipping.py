"""The threshold of clipped features, against a search in float64."""

import numpy as np
import pytest
from scipy.special import log_softmax

from calib_jax.training.last_layer import feature_clipping


def _overconfident(seed=0, n=300, inputs=6, classes=4):
  """Features of which some are very large, and a layer for them."""
  rng = np.random.default_rng(seed)
  features = np.abs(rng.normal(size=(n, inputs)) * rng.choice([1, 8], (n, inputs), p=[0.9, 0.1]))
  kernel, bias = rng.normal(size=(inputs, classes)), rng.normal(size=classes) / 4
  p = np.exp(log_softmax(np.minimum(features, 2) @ kernel + bias, axis=1))
  return features, (p.cumsum(1) < rng.random((n, 1))).sum(1), {"kernel": kernel, "bias": bias}


def _ece(log_probs, labels):
  confidence, correct = np.exp(log_probs).max(1), log_probs.argmax(1) == labels
  bins = np.minimum((confidence * 15).astype(int), 14)
  return sum(abs((confidence - correct)[bins == b].sum()) for b in range(15)) / len(labels)


@pytest.mark.parametrize("objective", feature_clipping.OBJECTIVES)
def test_the_threshold_has_the_lowest_objective(objective):
  features, labels, layer = _overconfident()
  clipped = feature_clipping.fit(features, labels, objective=objective, **layer)
  thresholds = features.max() * np.arange(1, 201) / 200

  def value(threshold):
    log_probs = log_softmax(np.minimum(features, threshold) @ layer["kernel"] + layer["bias"], axis=1)
    return _ece(log_probs, labels) if objective == "ece" else -log_probs[np.arange(len(labels)), labels].mean()

  values = np.array([value(c) for c in thresholds])
  assert np.isclose(thresholds, clipped.threshold, rtol=1e-5).any()
  assert value(clipped.threshold) <= values.min() + 1e-5
  assert value(clipped.threshold) < value(np.inf)  # Large features are of no use here.
  logits = np.minimum(features, clipped.threshold) @ layer["kernel"] + layer["bias"]
  np.testing.assert_allclose(clipped.logits(features), logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("features", "objective", "message"), [
  (-np.ones((3, 2)), "nll", "some above 0"), (np.full((3, 2), np.nan), "nll", "must be finite"),
  (np.ones((3, 2)), "brier", "objective must be one of 'nll', 'ece'")])
def test_what_cannot_be_clipped_is_refused(features, objective, message):
  with pytest.raises(ValueError, match=message):
    feature_clipping.fit(features, np.zeros(3, int), kernel=np.eye(2), bias=np.zeros(2), objective=objective)
