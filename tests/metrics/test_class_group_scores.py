"""Scores of head, medium and tail classes, held against loops in float64."""

import jax
import numpy as np
import pytest

from calib_jax import metrics
from tests.metrics import references

TRAIN_COUNTS = np.array([10, 500, 40, 40, 3, 200, 7])  # Head: 1, 5, 2; medium: 3, 0; tail: 6, 4.
GROUPS = ((1, 5, 2), (3, 0), (6, 4))


def _data(n=400, seed=0):
  rng = np.random.default_rng(seed)
  probs = rng.dirichlet(np.ones(7) / 2, n).astype(np.float32)
  return probs, rng.choice(7, n, p=TRAIN_COUNTS / TRAIN_COUNTS.sum())


def test_each_group_has_the_scores_of_its_rows():
  probs, labels = _data()
  where = np.random.default_rng(1).uniform(size=len(labels)) < 0.8
  actual = metrics.class_group_scores(np.where(where[:, None], probs, np.nan), np.where(where, labels, 99),
                                     TRAIN_COUNTS, num_bins=10, where=where)
  for i, group in enumerate(GROUPS):
    p, y = (x[where & np.isin(labels, group)] for x in (probs, labels))
    scores = references.scores(p, y)
    expected = [len(y), scores["accuracy"].mean(), scores["nll"].mean(),
                references.calibration_error(p.max(1), scores["accuracy"], num_bins=10)]
    np.testing.assert_allclose([values[i] for values in actual], expected, rtol=1e-5)


def test_groups_without_examples_are_nan_and_two_classes_have_no_tail():
  probs, labels = _data()
  only_head = np.isin(labels, GROUPS[0])
  actual = jax.jit(metrics.class_group_scores)(probs, labels, TRAIN_COUNTS, where=only_head)
  np.testing.assert_array_equal(actual.counts, [only_head.sum(), 0, 0])
  for values in actual[1:]:
    assert np.isfinite(values[0]) and np.isnan(values[1:]).all()
  pair = np.array([[0.75, 0.25], [0.75, 0.25]], np.float32)
  actual = metrics.class_group_scores(pair, np.array([0, 1]), np.array([1, 9]))
  np.testing.assert_allclose(actual.accuracy, [0, 1, np.nan])


@pytest.mark.parametrize(("train_counts", "error", "message"), [
  (np.ones(7), TypeError, "train_counts must be integers: got dtype float"),
  (np.ones(6, int), ValueError, r"train_counts must have one number for each of 7 classes: got shape \(6,\)"),
])
def test_mistakes_are_named(train_counts, error, message):
  with pytest.raises(error, match=message):
    metrics.class_group_scores(*_data(5), train_counts)
