"""Confidence and correctness on which conventions differ: gaps of both signs, edges of bins, exact ones, ties."""

import numpy as np

KINDS = ("mixed", "edges", "ones", "ties")


def pairs(n, kind="mixed", seed=0):
  """Confidences float32 ``[n]``, and whether each is right: too rarely above one half, too often below."""
  rng = np.random.default_rng(seed)
  confidence = rng.uniform(size=n)
  if kind == "edges":  # Values on the edges of 10 and 15 bins, 0 and 1 among them, in float32.
    confidence = np.concatenate([np.arange(11) / 10, np.arange(16) / 15])[rng.integers(0, 27, n)]
  if kind == "ones":
    confidence = np.where(rng.uniform(size=n) < 0.3, 1.0, confidence)
  if kind == "ties":
    confidence = np.round(confidence, 1)
  happens = np.clip(0.5 + 0.6 * (confidence - 0.5), 0, 1)
  return confidence.astype(np.float32), rng.uniform(size=n) < happens


def predictions(n, k, seed=0):
  """Probabilities float32 ``[n, k]``, confident and not, and labels of which the last class has none where k > 2."""
  rng = np.random.default_rng(seed)
  probs = rng.dirichlet(np.full(k, 0.3), n)
  labels = np.where(rng.uniform(size=n) < 0.5, probs.argmax(1), rng.integers(0, max(k - 1, 2), n))
  return probs.astype(np.float32), np.where(labels == k - 1, 0, labels) if k > 2 else labels


def batch(samples, size, seed=0):
  """Samples of several lengths as arrays ``[B, size, ...]`` and ``where``; other rows hold NaN, True or the label 99.

  The examples of a sample keep their order and stand at random places, so that masks are cut anywhere.
  """
  rng = np.random.default_rng(seed)
  where = np.zeros((len(samples), size), bool)
  for row, (first, _) in zip(where, samples, strict=True):
    row[rng.permutation(size)[:len(first)]] = True
  arrays = []
  for values in zip(*samples, strict=True):
    kind = values[0].dtype
    array = np.full((*where.shape, *values[0].shape[1:]), {"f": np.nan, "b": True}.get(kind.kind, 99), kind)
    array[where] = np.concatenate(values)
    arrays.append(array)
  return *arrays, where


def every_kind(sizes, seeds=(0,)):
  """``{name: pairs(...)}`` of each size, kind and seed."""
  return {f"{kind}, {n} examples, seed {seed}": pairs(n, kind, seed) for n in sizes for kind in KINDS for seed in seeds}
