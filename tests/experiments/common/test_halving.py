"""Successive halving: which candidates go on, what is kept, and what is not trained twice."""

import numpy as np
import pytest

from calib_jax.training import config as run_config
from experiments.common import halving, rows, settings

SPACE = {"rate": {"none": {}, **{f"rate {i}": {"optimizer.learning_rate": 0.01 * (i + 2)} for i in range(8)}},
         "decay": {"none": {}, "decay": {"optimizer.l2": 1e-3}}}


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
  standings = halving.halve(config, SPACE, halving.draw(SPACE, 18), _score(calls), path=tmp_path / "x.csv")
  assert standings[0].choice["rate"] == "rate 7" and len(standings) == 3
  assert standings[-1].choice == {"rate": "none", "decay": "none"}  # The first goes on whatever its loss is.
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
  first, second = (halving.halve(config, SPACE, halving.draw(SPACE, 6), _score(of), path=path)
                   for of in (calls, again))
  assert first == second
  assert again == [] and len(rows.read(path)) == sum(number for *_, number in calls)


def test_candidates_are_drawn_once_and_the_plain_one_is_among_them():
  drawn = halving.draw(SPACE, 7)
  assert drawn[0] == {"rate": "none", "decay": "none"} and len({tuple(x.values()) for x in drawn}) == 7
  assert halving.draw(SPACE, 100) != drawn and len(halving.draw(SPACE, 100)) == 18
  assert halving.fields(SPACE, {"rate": "rate 0", "decay": "decay"}) == {
    "optimizer.learning_rate": 0.02, "optimizer.l2": 1e-3}
