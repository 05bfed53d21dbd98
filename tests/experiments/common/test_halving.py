"""Successive halving: which candidates go on, what is kept, and what is not trained twice."""

import itertools

import numpy as np
import pytest

from calib_jax.training import config as run_config
from experiments.common import halving, rows, settings

SPACE = {"rate": {"none": {}, **{f"rate {i}": {"optimizer.learning_rate": 0.01 * (i + 2)} for i in range(8)}},
         "decay": {"none": {}, "decay": {"optimizer.l2": 1e-3}}}
ALL = [{"rate": rate, "decay": decay} for rate, decay in itertools.product(*SPACE.values())]


@pytest.fixture(scope="module")
def config():
  return settings.changed(run_config.load("configs/digits_savuc.py", []), {
    "loss.secondary": {"name": ""}, "compare_with_cross_entropy": False, "optimizer.learning_rate": 0.01})


def _score(calls):
  """The loss falls with the rate, and each seed has noise; one rate diverges."""
  def score(config):
    calls.append((config.optimizer.learning_rate, config.optimizer.l2, config.seed, config.num_seeds))
    rate = config.optimizer.learning_rate
    if rate == pytest.approx(0.05):
      return [(float("inf"), 0.0)] * config.num_seeds
    return [(1 - rate + 0.001 * np.sin(seed), 0.9) for seed in range(config.seed, config.seed + config.num_seeds)]

  return score


def test_the_best_candidate_wins_and_survivors_get_more_seeds(config, tmp_path):
  calls = []
  standings = halving.halve(config, SPACE, ALL, _score(calls), path=tmp_path / "x.csv")
  assert [x.choice["rate"] for x in standings] == ["rate 7", "rate 7", "rate 6"]
  assert [x.loss for x in standings] == sorted(x.loss for x in standings)
  mean = np.mean([1 - 0.09 + 0.001 * np.sin(seed) for seed in range(100, 104)])
  assert standings[0].loss == pytest.approx(mean, abs=1e-6)
  assert len({(rate, l2) for rate, l2, *_ in calls}) == 18
  # Each seed of a candidate is trained once: 18 on the first, and survivors on what they lack.
  assert len(set(calls)) == len(calls)
  assert {(seed, number) for *_, seed, number in calls} == {(100, 1), (101, 1), (102, 2)}


def test_what_a_file_holds_is_not_trained_again(config, tmp_path):
  calls, again = [], []
  path = tmp_path / "x.csv"
  first, second = (halving.halve(config, SPACE, ALL[:6], _score(of), path=path)
                   for of in (calls, again))
  assert first == second
  assert again == [] and len(rows.read(path)) == sum(number for *_, number in calls)


def test_nothing_is_left_of_candidates_that_diverge(config, tmp_path):
  diverging = [{"rate": "rate 3", "decay": decay} for decay in SPACE["decay"]]
  assert halving.halve(config, SPACE, diverging, _score([]), path=tmp_path / "x.csv") == []
