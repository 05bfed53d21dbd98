"""What docs/choose.md recommends is what the rows of the leaderboards say."""

import numpy as np

from experiments import recommendations


def test_the_page_recommends_what_the_rows_say():
  assert recommendations.table() in recommendations.PAGE.read_text(encoding="utf-8")


def test_a_method_is_recommended_where_it_is_not_told_apart_from_the_best_on_two_sets():
  rng = np.random.default_rng(0)

  def rows(**means):
    return [{"task": "", "method": name, "calibrator": "TS", "seed": str(i), "nll": str(mean + 0.01 * rng.normal())}
            for name, mean in means.items() for i in range(10)]

  need = recommendations.Need("", "nll", "TS")
  sets = [rows(a=0.4, b=0.4, c=0.5), rows(a=0.4, b=0.5, c=0.401), rows(a=0.6, b=0.4, c=0.5)]
  by_set = {str(i): recommendations.places(table, need, {"a", "b", "c"}) for i, table in enumerate(sets)}
  assert by_set["0"]["c"] == (by_set["0"]["c"].mean, 3, True) and not by_set["0"]["b"].is_worse
  assert recommendations.recommended(by_set) == ["b", "a"]  # c is worse on two of three sets.
