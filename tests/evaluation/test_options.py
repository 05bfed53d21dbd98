"""Multiple choice: how many options rows have, and the accuracy relative to guessing among them."""

import numpy as np
import pytest

from calib_jax import evaluation
from calib_jax.evaluation.sections.options import of_values
from tests.evaluation.data import K, N, predictions, values_of


def _values(correct, num_options, groups=None):
  return values_of(np.full(len(correct), 0.5), correct, groups, num_options=np.asarray(num_options, np.int32)[:, None])


def test_the_share_of_what_guessing_lacks_is_that_of_its_definition():
  options = of_values(_values([1, 1, 0, 1], [2, 4, 4, 5]))
  gained = (1 - 1 / 2) + (1 - 1 / 4) - 1 / 4 + (1 - 1 / 5)
  assert options.above_guessing.estimate == pytest.approx(gained / (1 / 2 + 3 / 4 + 3 / 4 + 4 / 5))
  assert (options.fewest, options.most, options.mean, options.accuracy) == (2, 5, 3.75, 0.75)
  assert options.guess == pytest.approx((1 / 2 + 1 / 4 + 1 / 4 + 1 / 5) / 4)
  # An option alone can only be right, so that such rows change nothing but the number of rows.
  alone = of_values(_values([1, 1, 0, 1, 1], [2, 4, 4, 5, 1]))
  assert alone.above_guessing.estimate == pytest.approx(options.above_guessing.estimate)


def test_rows_that_are_all_right_or_all_wrong_have_intervals_within_what_is_possible():
  right, wrong = (of_values(_values(np.full(50, outcome), np.arange(50) % 3 + 2)).above_guessing for outcome in (1, 0))
  assert right.estimate == right.high == 1 and 0.9 < right.low < 1
  assert wrong.estimate == wrong.low < wrong.high < -0.4
  one = of_values(_values([1], [2])).above_guessing
  assert (one.low, one.estimate, one.high) == (-1, 1, 1)


@pytest.mark.parametrize(("n", "skill", "group_size"), [(60, 0.0, 1), (60, 0.9, 1), (200, 0.5, 1), (200, 0.5, 4)])
def test_intervals_hold_the_true_share(n, skill, group_size):
  rng, covered, repeats = np.random.default_rng(0), 0, 500
  groups = np.arange(n) // group_size
  for _ in range(repeats):
    number = rng.integers(2, 7, n)
    uniform = rng.uniform(size=n) if group_size == 1 else rng.uniform(size=n)[groups]
    correct = uniform < 1 / number + skill * (1 - 1 / number)
    interval = of_values(_values(correct, number, groups if group_size > 1 else None)).above_guessing
    covered += interval.low <= skill <= interval.high
  assert covered >= repeats * (0.95 - 2.5 * (0.05 * 0.95 / repeats) ** 0.5), covered


def test_the_section_is_there_only_where_some_rows_have_fewer_options():
  part = predictions(1)
  labels, number = part.labels % 2, 2 + np.arange(N) % 2
  masked = np.where(np.arange(K) < number[:, None], part.logits, -1e9).astype(np.float32)
  for logits, is_there in ((part.logits, False), (masked, True)):
    results = evaluation.judge({"a": evaluation.Model({"a": [evaluation.Predictions(logits, labels)]}, {})},
                               num_resamples=20)
    text = evaluation.to_json(results)
    assert ("above_guessing" in text) == is_there == any("Rows have 2 to 3 options, 2.5 on average." in x
                                                         for x in results.verdict.reasons)
