"""What resamples draw: examples equally often and independently, groups whole, outcomes as dependent as they are."""

import jax
import numpy as np
import pytest

from calib_jax.intervals import draws

WORDS = np.asarray(draws.words(jax.random.split(jax.random.key(0), 50)))
COUNT = 20_000


def _check_even_and_independent(drawn, number, values):
  """Of whole numbers below ``number``, and of values with mean 0 and variance 1, both ``[50, COUNT]``."""
  counts = np.stack([np.bincount(row, minlength=number) for row in drawn])
  assert counts.shape == (50, number)
  # Pearson's statistic of one key has mean number - 1 and twice that variance; of all keys together it has the same.
  for observed in (counts, counts.sum(0, keepdims=True)):
    expected = observed.sum(1, keepdims=True) / number
    statistic = ((observed - expected) ** 2 / expected).sum(1)
    assert abs(statistic.mean() - (number - 1)) < 5 * np.sqrt(2 * (number - 1) / len(statistic))
  # Neighbours in a resample, and the same place in two resamples, have no correlation.
  for a, b in ((values[:, :-1], values[:, 1:]), (values[:-1], values[1:])):
    assert abs(np.mean(a * b)) < 5 / np.sqrt(a.size)


@pytest.mark.parametrize("below", [2, 1000])
def test_resamples_draw_each_example_equally_often_and_independently(below):
  drawn = draws.draw(WORDS, COUNT, below)
  np.testing.assert_array_equal(jax.jit(draws.draw, static_argnums=(1, 2))(WORDS[0], COUNT, below), drawn[0])
  _check_even_and_independent(drawn, below, (drawn - drawn.mean()) / drawn.std())


def test_redraws_are_uniform_and_independent():
  x = draws.uniform(WORDS, COUNT)
  np.testing.assert_array_equal(jax.jit(draws.uniform, static_argnums=1)(WORDS[0], COUNT), x[0])
  assert x.min() >= 0 and x.max() < 1
  _check_even_and_independent((x * 16).astype(int), 16, (x.astype(np.float64) - 0.5) * np.sqrt(12))


def test_dependence_is_none_of_independent_and_all_of_equal_rows():
  rng, dependence = np.random.default_rng(0), jax.jit(draws.dependence)
  confidence = (1 / (1 + np.exp(-2 * np.abs(1 + rng.normal(size=3000))))).astype(np.float32)
  correct, groups = rng.uniform(size=3000) < confidence, np.repeat(np.arange(600), 5)
  members = draws.members(groups, 3000)
  assert dependence(confidence, correct, members) < 0.1
  np.testing.assert_allclose(dependence(confidence[groups], correct[groups], members), 1, atol=0.15)
  assert dependence(confidence, correct, draws.members(None, 3000)) == 0
  # By hand: one pair of residuals -0.8 and 0.4, whose product is below 0, and one of 0.4 and 0.2; and fifty equal
  # pairs, whose estimate has a relative standard error of a fifth, also where confidences are near 1.
  fifty = draws.members(np.repeat(np.arange(50), 2), 100)
  pairs, outcomes = np.tile(np.float32([0.8, 0.6, 0.6, 0.8]), 25), np.tile([0, 1, 1, 1], 25)
  np.testing.assert_allclose(dependence(pairs, outcomes, fifty), 0, atol=1e-6)
  for gaps in ([0.3, 0.15], [4e-6, 2e-6]):
    low, high = 1 - np.float32(gaps)
    pair = dependence(np.tile([low, high], 50), np.ones(100, bool), fifty)
    np.testing.assert_allclose(pair, (1 - low) / low / 0.6, rtol=1e-5)
