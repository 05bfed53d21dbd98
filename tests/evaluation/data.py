"""Predictions that are calibrated but for a scale, and values of examples that are made up."""

import numpy as np

from calib_jax import evaluation

N, K = 400, 3


def predictions(scale, n=N, rng=None, num_classes=K):
  """Returns predictions on n examples of which logits times ``1 / scale`` are calibrated."""
  rng = np.random.default_rng(7) if rng is None else rng
  logits = 2 * rng.normal(size=(n, num_classes))
  p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
  labels = (p.cumsum(1) > rng.uniform(size=(n, 1))).argmax(1)
  return evaluation.Predictions((scale * logits).astype(np.float32), labels.astype(np.int32))


def values_of(confidence, correct, groups=None, predicted=0, **others):
  """Returns values of examples ``[N]`` or ``[N, S]`` with these numbers, and the confidence in place of all losses."""
  confidence, correct = np.asarray(confidence, np.float32), np.asarray(correct, bool)
  confidence, correct = (x.reshape(len(x), -1) for x in (confidence, correct))
  predicted = np.broadcast_to(np.asarray(predicted, np.int32), correct.shape)
  return evaluation.Values(confidence, correct, *[confidence] * 3, predicted, {}, groups, **others)
