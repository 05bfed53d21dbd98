"""Probabilities of exactly 0: the floor against its definition, and what it must not change."""

import numpy as np
import pytest
from scipy import special

from calib_jax import calibrators, evaluation

TINY = np.finfo(np.float32).tiny


def votes(n, num_classes=4, trees=25, seed=0):
  """The shares of the votes of trees, of which many are 0, and labels that are drawn with other frequencies."""
  rng = np.random.default_rng(seed)
  true = rng.dirichlet(np.full(num_classes, 0.4), n)
  probs = np.stack([rng.multinomial(trees, p) for p in true]) / trees
  return probs, np.array([rng.choice(num_classes, p=p) for p in true])


def logarithms(probs):
  return np.log(np.maximum(probs, TINY)).astype(np.float32)


@pytest.mark.parametrize("base", [pytest.param("temperature_scaling", marks=pytest.mark.slow), "vector_scaling"])
def test_zeros_count_as_half_of_the_smallest_probability(base):
  probs, labels = votes(300)
  floored = np.maximum(probs, 0.02)
  floored /= floored.sum(1, keepdims=True)
  fitted = calibrators.probability_floor(base).fitted(logarithms(probs), labels)
  np.testing.assert_allclose(np.exp(fitted.params["floor"]), 0.02, rtol=1e-5)
  expected = calibrators.get(base).fitted(logarithms(floored), labels)(logarithms(floored))
  np.testing.assert_allclose(fitted(logarithms(probs)), expected, atol=2e-4)
  # It keeps to the floor of the fit, also of other rows, and of a probability that is between.
  np.testing.assert_allclose(fitted(logarithms(probs[::-1])), expected[::-1], atol=2e-4)
  scores = fitted(logarithms(np.tile([[0.5, 0.49, 0.01, 0.0]], (300, 1))))[0]
  assert scores[2] == scores[3] or base != "temperature_scaling"


def test_rows_that_do_not_count_and_classes_that_a_row_lacks_have_no_say():
  halves = logarithms(np.tile([[0.5, 0.5, 0.0]], (12, 1)))  # Rows that do not count have equal probabilities here, 1/3.
  params = calibrators.probability_floor("identity").fit(halves, np.arange(12) % 2, where=np.arange(12) < 10)
  np.testing.assert_allclose(np.exp(params["floor"]), 0.25, rtol=1e-5)
  logits = np.array([[0, -np.inf, 0, TINY]], np.float32)
  assert np.isneginf(calibrators.probability_floor("identity").apply(params, logits)[0, 1])


def test_without_zeros_it_is_the_base_and_with_them_the_log_loss_falls():
  rng = np.random.default_rng(0)
  logits = 3 * rng.normal(size=(300, 4)).astype(np.float32)
  labels = (logits / 2 + rng.gumbel(size=(300, 4))).argmax(1)
  both = calibrators.temperature_scaling(), calibrators.probability_floor()
  plain, floored = (c.fitted(logits, labels)(logits) for c in both)
  np.testing.assert_allclose(floored, plain, atol=2e-5)
  (probs, labels), (new, new_labels) = votes(300), votes(300, seed=1)
  scores = (c.fitted(logarithms(probs), labels)(logarithms(new)) for c in both)
  plain, floored = (-np.asarray(x)[np.arange(300), new_labels].mean() for x in scores)
  assert floored < plain - 0.1


def test_extremes_are_finite_and_keep_the_order():
  certain = np.eye(3)[[0, 1, 2, 0, 1, 2]]
  for labels in (certain.argmax(1), (certain.argmax(1) + 1) % 3, np.zeros(6, int)):
    scores = np.asarray(calibrators.probability_floor().fitted(logarithms(certain), labels)(logarithms(certain)))
    assert np.isfinite(scores).all()
    assert (scores.argmax(1) == certain.argmax(1)).all()
  far = np.array([[0, -50.0, -1e3], [0, -60.0, -9e3], [-70.0, 0, -5.0]], np.float32)
  scores = calibrators.probability_floor("identity").fitted(far, np.array([0, 0, 1]))(far)
  np.testing.assert_allclose(scores[:, 1], special.log_softmax(far, axis=1)[:, 1], rtol=1e-5)


def test_options_that_a_row_does_not_have_are_no_probabilities_of_0():
  rng = np.random.default_rng(3)
  is_there = np.arange(4) < rng.integers(2, 5, 60)[:, None]
  probs = np.where(is_there, rng.gamma(1.0, size=(60, 4)), 0)
  probs /= probs.sum(1, keepdims=True)
  logits = np.where(is_there, np.log(np.maximum(probs, 1e-30)), -np.inf).astype(np.float32)
  part = evaluation.Predictions(logits, rng.integers(0, 2, 60).astype(np.int32), probs=probs)
  notes = []
  evaluation.fit([part], {"TS": calibrators.temperature_scaling()}, notes.append)
  assert not any("exactly 0" in note for note in notes)
  own = calibrators.probability_floor("identity")
  fitted = np.exp(own.apply(own.fit(logits, part.labels), logits))
  assert (fitted[~is_there] == 0).all()
  np.testing.assert_allclose(fitted.sum(1), 1, rtol=1e-6)
