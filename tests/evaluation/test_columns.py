"""The list of columns: its order is that of the tables, and a new column is one entry."""

import json

import numpy as np
import pytest

from calib_jax import calibrators, evaluation, metrics
from calib_jax.evaluation.columns import COLUMNS, SCORES, Column, Mean
from tests.evaluation.data import predictions

pytestmark = pytest.mark.xdist_group("columns")  # One worker makes what these tests compare with.


@pytest.fixture
def columns():
  """A function that puts other columns in the place of ``COLUMNS``, until the test ends."""
  def replace(changed):
    COLUMNS.clear()
    COLUMNS.update(changed)

  unchanged = dict(COLUMNS)
  yield replace
  replace(unchanged)


def _judged():
  fitted = evaluation.fit([predictions(3, rng=np.random.default_rng(1))], {"TS": calibrators.temperature_scaling()})
  seeds = [predictions(3), predictions(2)]
  models = {"mine": evaluation.Model({"test": seeds}, {"TS": (fitted["TS"][0], fitted["TS"][1] * 2)}),
            "other": evaluation.Model({"test": seeds[:1]}, {})}
  results = evaluation.judge(models, num_resamples=200, columns=("nll_refinement", "ece_p"))
  return results, json.loads(evaluation.to_json(results)), evaluation.to_rows(results, every=True)


@pytest.fixture(scope="module")
def judged():
  """What the list as it is gives, which both tests compare with."""
  return _judged()


def test_another_order_of_the_list_is_another_order_of_columns_and_no_other_number(judged, columns):
  results, numbers, (head, *rows) = judged
  columns(dict(reversed(COLUMNS.items())))
  reordered, numbers_of_reordered, (head_of_reordered, *rows_of_reordered) = _judged()
  assert numbers_of_reordered == numbers and reordered.verdict == results.verdict
  row, row_of_reordered = (list(x.first[1].rows["mine", "TS"].estimates) for x in (results, reordered))
  assert row_of_reordered == row[::-1] and len(row) == len(COLUMNS)
  assert head_of_reordered != head and sorted(head_of_reordered) == sorted(head)
  for cells, cells_of_reordered in zip(rows, rows_of_reordered, strict=True):
    assert dict(zip(head_of_reordered, cells_of_reordered, strict=True)) == dict(zip(head, cells, strict=True))


def test_slow_errors_have_a_twentieth_of_the_resamples_and_all_have_biases_of_their_own(judged):
  estimates = judged[0].first[1].rows["mine", "TS"].estimates
  for name, number in (("ece", 200), ("ks", 200), ("sweep", 10), ("smooth", 10)):
    count = estimates[name].p_value * (1 + number)
    assert count == pytest.approx(round(count), abs=1e-6), name
  for name in ("ks", "sweep", "smooth"):
    assert COLUMNS[name].bias == metrics.bias_model(getattr(metrics, f"{name}_calibration_error"))


def test_a_new_column_is_one_entry_in_the_place_that_it_has_in_the_list(judged, columns):
  squares = Column("squares", "mean square of the NLL", "", Mean(lambda values: values.nll**2), True, None, SCORES,
                   most=np.inf)
  before, numbers, _ = judged
  columns({"squares": squares, **COLUMNS})
  results, with_squares, (head, *_) = _judged()
  values = results.first[1].rows["mine", "TS"]
  np.testing.assert_allclose(values.estimates["squares"].value, np.mean(values.values.nll.astype(float)**2), rtol=1e-6)
  assert head[2] == "mean square of the NLL" and evaluation.to_csv(results).count(",squares,") == 3
  for pair, change in zip(with_squares["differences"]["test"], numbers["differences"]["test"], strict=True):
    difference = pair.pop("squares")
    assert difference["low"] <= difference["difference"] <= difference["high"] and pair == change
  assert results.verdict == before.verdict
