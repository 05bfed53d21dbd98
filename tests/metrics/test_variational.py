"""The variational calibration error against its definition by proper losses, and the laws of a lower bound."""

import numpy as np
import pytest
from scipy import special
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression

from calib_jax import metrics


class Powered(ClassifierMixin, BaseEstimator):
  """Says softmax(x / 2) whatever it is fitted to, so that the recalibration is known."""

  def fit(self, x, y):
    self.classes_ = np.arange(x.shape[1])
    return self

  def predict_proba(self, x):
    return special.softmax(x / 2, axis=1)


class Shifted(ClassifierMixin, BaseEstimator):
  """Shifts the confidences by their mean error on the examples that it is fitted to."""

  def fit(self, x, y):
    self.classes_ = np.arange(2)
    self.shift = (y - np.exp(x[:, 1])).mean()
    return self

  def predict_proba(self, x):
    p = np.exp(x[:, 1]) + self.shift
    return np.stack([1 - p, p], 1)


def predictions(n, num_classes=4, factor=2.0, seed=0):
  rng = np.random.default_rng(seed)
  logits = 1.5 * rng.normal(size=(n, num_classes))
  return special.softmax(factor * logits, axis=1), (logits + rng.gumbel(size=logits.shape)).argmax(1)


def proper_loss(f, g, y, norm):
  """Eq. of the proper loss of an example that has the divergence ``-norm(g - f)``: its tangent at g, taken at y."""
  d = g - f
  size = np.linalg.norm(d, norm)
  if not size:
    return 0.0
  gradient = np.zeros(len(d))
  if norm == np.inf:
    k = np.abs(d).argmax()
    gradient[k] = np.sign(d[k])
  else:
    for k in range(len(d)):
      gradient[k] = np.sign(d[k]) * (abs(d[k]) / size) ** (norm - 1)
  return -size - gradient @ (y - g)


@pytest.mark.parametrize("norm", [1, 2, "max"])
def test_it_is_the_proper_loss_that_the_recalibration_removes(norm):
  probs, labels = predictions(60)
  g = special.softmax(np.log(probs) / 2, axis=1)
  units = np.eye(4)[labels]
  order = np.inf if norm == "max" else norm
  removed = [proper_loss(f, f, y, order) - proper_loss(f, x, y, order) for f, x, y in zip(probs, g, units, strict=True)]
  error = metrics.variational_calibration_error(probs, labels, norm=norm, form="canonical", classifier=Powered())
  np.testing.assert_allclose(error.estimate, np.mean(removed), rtol=1e-12)
  np.testing.assert_allclose(error.low, np.mean(removed) - 1.6448536 * np.std(removed) * (2 / 60) ** 0.5, rtol=1e-6)


def test_of_the_top_label_it_counts_where_the_recalibration_is_below_and_above_the_confidence():
  probs, labels = predictions(80, num_classes=3)
  confidence, correct = probs.max(1), probs.argmax(1) == labels
  recalibrated = confidence**0.5 / (confidence**0.5 + (1 - confidence) ** 0.5)
  over = np.where(recalibrated < confidence, confidence - correct, 0).mean()
  under = np.where(recalibrated > confidence, correct - confidence, 0).mean()
  error = {sign: metrics.variational_calibration_error(probs, labels, sign=sign, classifier=Powered()).estimate
           for sign in ("over", "under", "both")}
  np.testing.assert_allclose([error["over"], error["under"], error["both"]], [over, under, over + under], rtol=1e-12)
  assert over and under


def test_boosting_shows_overconfidence():
  probs, labels = predictions(2000, factor=3)
  error = metrics.variational_calibration_error(probs, labels, sign="over")
  binned = float(metrics.calibration_error(*metrics.top_label(probs, labels), sign="over"))
  assert 0.8 * binned < error.estimate < 1.1 * binned and error.low > 0.1


def test_of_a_calibrated_model_the_limit_is_above_0_at_most_as_often_as_it_says():
  draws = [metrics.variational_calibration_error(*predictions(200, factor=1, seed=seed), classifier=Shifted(),
                                                 level=0.9) for seed in range(400)]
  estimates = [error.estimate for error in draws]
  assert 0.01 < np.mean([error.low > 0 for error in draws]) < 0.1 + 3 * (0.1 * 0.9 / 400) ** 0.5
  assert np.mean(estimates) < 3 * np.std(estimates) / 400**0.5


def test_extremes():
  certain = np.eye(3)[[0, 1, 2, 0, 1, 2, 0, 1]]
  right = metrics.variational_calibration_error(certain, certain.argmax(1))
  wrong = metrics.variational_calibration_error(certain, (certain.argmax(1) + 1) % 3)
  assert right == (0, 0) and wrong == (1, 1)
  absent = metrics.variational_calibration_error(predictions(40)[0], np.zeros(40, int), form="canonical")
  assert np.isfinite(absent).all()
  copies = metrics.variational_calibration_error(*[np.repeat(x, 5, 0) for x in predictions(60)], classifier=Powered(),
                                                 groups=np.repeat(np.arange(60), 5))
  once = metrics.variational_calibration_error(*predictions(60), classifier=Powered())
  np.testing.assert_allclose(copies.estimate, once.estimate, rtol=1e-12)
  np.testing.assert_allclose(copies.estimate - copies.low, (once.estimate - once.low) * (60 / 59) ** 0.5, rtol=1e-9)
  with pytest.raises(ValueError, match="5 folds needs at least 5 examples"):
    metrics.variational_calibration_error(certain[:4], certain[:4].argmax(1))
  with pytest.raises(ValueError, match='form="canonical" needs sign="both"'):
    metrics.variational_calibration_error(certain, certain.argmax(1), sign="over", form="canonical")


@pytest.mark.parametrize("number", [60, 100, 200])
def test_sure_predictions_that_are_all_right_show_no_error(number):
  """A calibrated model of 99% gives such samples in 55, 37 and 13% of draws: its limit may lie above 0 in 5% alone."""
  above = 0
  for seed in range(40):
    rng = np.random.default_rng([seed, number])
    confidence = rng.uniform(0.986, 0.994, number)
    right = rng.uniform(size=number) < confidence
    error = metrics.variational_calibration_error(np.stack([1 - confidence, confidence], 1), right.astype(int),
                                                  classifier=LogisticRegression())
    above += error.low > 0
  assert above <= 40 * 0.05 + 3 * (40 * 0.05 * 0.95) ** 0.5
  confidence = np.linspace(0.986, 0.994, number)
  right = metrics.variational_calibration_error(np.stack([1 - confidence, confidence], 1), np.ones(number, int),
                                                classifier=LogisticRegression())
  assert right.low < 0 < right.estimate
