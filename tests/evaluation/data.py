"""Predictions that are calibrated but for a scale."""

import numpy as np

from calib_jax import evaluation

N, K = 400, 3


def predictions(scale, n=N, rng=None):
  """Returns predictions on n examples of which logits times ``1 / scale`` are calibrated."""
  rng = np.random.default_rng(7) if rng is None else rng
  logits = 2 * rng.normal(size=(n, K))
  p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
  labels = (p.cumsum(1) > rng.uniform(size=(n, 1))).argmax(1)
  return evaluation.Predictions((scale * logits).astype(np.float32), labels.astype(np.int32))
