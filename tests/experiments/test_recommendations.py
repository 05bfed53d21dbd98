"""What is recommended is what the rows of the leaderboards say."""

import numpy as np
import pandas as pd

from experiments import recommendations
from experiments.common import ranking


def test_a_method_is_recommended_where_it_is_told_apart_from_the_best_on_no_set():
  rng = np.random.default_rng(0)

  def rows(**means):
    return pd.DataFrame([{"task": "", "method": name, "calibrator": "TS", "seed": str(i),
                          "nll": str(mean + 0.01 * rng.normal())} for name, mean in means.items() for i in range(10)])

  need = recommendations.Need("", "nll", "TS")
  sets = [rows(a=0.4, b=0.4, c=0.5), rows(a=0.4, b=0.5, c=0.401), rows(a=0.6, b=0.4, c=0.5)]
  by_set = {str(i): recommendations.places(table, need, {"a", "b", "c"}) for i, table in enumerate(sets)}
  assert by_set["0"].loc["c", ["rank", "is_worse"]].tolist() == [3, True] and not by_set["0"].is_worse["b"]
  assert recommendations.recommended(by_set) == []  # Each is worse on a set.
  assert sorted(recommendations.recommended({"0": by_set["0"]})) == ["a", "b"]
  assert recommendations.better_than_cross_entropy(
    [rows(**{recommendations.BASELINE: 0.5}, a=0.4, b=b) for b in (0.4, 0.6)], need, {"a", "b"}) == ["a"]


def test_of_equal_methods_none_is_called_worse_than_the_one_that_happens_to_be_lowest():
  rng, errors = np.random.default_rng(0), 0
  for _ in range(200):
    values = {str(i): dict(enumerate(rng.normal(size=10))) for i in range(12)}
    order = sorted(values, key=lambda name: np.mean([*values[name].values()]))
    errors += any(ranking.worse_than_first(values, order))
  assert errors <= 10  # 5% of 200; Holm's correction for the eleven comparisons with the lowest errs in more.
