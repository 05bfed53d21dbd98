"""Logits to calibrate: synthetic ones, whose labels know a bent truth, and a real classifier's."""

import functools

import numpy as np
from scipy import special
from sklearn import datasets, linear_model


def synthetic(n, k, *, scale=3.0, seed=0):
  """Overconfident logits, unevenly so by class; labels drawn from the truth."""
  rng = np.random.default_rng(seed)
  logits = scale * rng.normal(size=(n, k))
  truth = logits / 1.7 * np.exp(0.2 * rng.normal(size=k)) + 0.5 * rng.normal(size=k)
  labels = (special.softmax(truth, axis=1).cumsum(1) < rng.uniform(size=(n, 1))).sum(1).clip(0, k - 1)
  return logits.astype(np.float32), labels.astype(np.int32)


@functools.cache
def real():
  """1,197 held-out logits of a logistic regression trained on 600 real digits, 8 by 8."""
  images, labels = datasets.load_digits(return_X_y=True)
  order = np.random.default_rng(0).permutation(len(labels))
  images, labels = images[order] / 16, labels[order]
  model = linear_model.LogisticRegression(C=100.0, max_iter=500).fit(images[:600], labels[:600])
  return model.decision_function(images[600:]).astype(np.float32), labels[600:].astype(np.int32)


SETS = {"real": real, **{f"K={k}": functools.partial(synthetic, n, k)
                         for n, k in ((300, 2), (500, 10), (1000, 100), (1500, 1000))}}
