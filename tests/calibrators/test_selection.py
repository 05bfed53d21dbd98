"""``select`` scores out of fold, prefers the simpler of equals, and takes what the data need."""

import jax
import numpy as np
import pytest
from scipy import special

from calib_jax import calibrators, evaluation
from calib_jax.evaluation.predictions import fitting
from calib_jax.intervals.groups import standard_error
from tests.calibrators.data import synthetic

pytestmark = pytest.mark.xdist_group("selection")  # One worker compiles what these tests share.
NAMES = ["identity", "temperature_scaling", "vector_scaling"]


@pytest.mark.parametrize(("excess", "expected"), [
  ((0.1, 0.1, 0.0), "identity"), ((0.3, 0.1, 0.0), "temperature_scaling"),
  pytest.param((0.3, 0.3, 0.0), "vector_scaling", marks=pytest.mark.slow)])
def test_it_takes_the_first_within_one_standard_error_of_the_best(excess, expected, monkeypatch):
  """The excess of each candidate is the mean of differences whose standard error is 0.2."""
  noise = 0.2 * np.sqrt(60) * np.tile([1, -1, 0], 20) * np.sqrt(1.5)
  scores = np.stack([1 + excess[0] + noise, 1 + excess[1] + noise, np.ones(60)])
  monkeypatch.setattr(calibrators.selection, "_out_of_fold", lambda *_: scores)
  logits, labels = synthetic(60, 3)
  chosen = calibrators.select(logits, labels, NAMES)
  assert chosen.name == expected and [s.name for s in chosen.scores] == NAMES
  np.testing.assert_allclose([s.standard_error for s in chosen.scores], [0.2, 0.2, 0], rtol=1e-6)
  groups = [standard_error(np.array([0.0, 1.0]), np.array(pair)) for pair in ([4, 5], [4, 4])]
  assert groups == [0.5, np.inf]  # One group says nothing of the spread.
  direct = calibrators.get(expected).fit(logits, labels)
  assert all(np.array_equal(direct[key], chosen.params[key]) for key in direct)
  assert f"* {expected}" in str(chosen)


def test_a_second_choice_compiles_nothing():
  data = synthetic(83, 3)
  calibrators.select(*data, NAMES[:2])
  events = []
  jax.monitoring.register_event_duration_secs_listener(lambda event, _, **__: events.append(event))
  calibrators.select(*data, NAMES[:2])
  assert not [event for event in events if "compile" in event]


@pytest.mark.parametrize("criterion", ["nll", "brier"])
def test_scores_are_those_of_fits_without_the_fold(criterion):
  logits, labels = synthetic(203, 4)
  chosen = calibrators.select(logits, labels, {"TS": calibrators.temperature_scaling()}, criterion=criterion, folds=7)
  rng = np.random.default_rng(0)
  order = rng.permutation(203)
  order = order[np.argsort(labels[order], kind="stable")]
  values = np.empty(203)
  for held_out in range(7):
    rows = order[held_out::7]
    kept = np.setdiff1d(np.arange(203), rows)
    params = calibrators.temperature_scaling().fit(logits[kept], labels[kept])
    log_p = special.log_softmax(logits[rows].astype(np.float64) / float(params["temperature"]), axis=1)
    onehot = np.eye(4)[labels[rows]]
    values[rows] = -(log_p * onehot).sum(1) if criterion == "nll" else ((np.exp(log_p) - onehot) ** 2).sum(1)
  np.testing.assert_allclose(chosen.scores[0].score, values.mean(), rtol=1e-4)
  assert chosen.scores[0].excess == 0


@pytest.mark.slow
def test_the_default_candidates_have_the_most_flexible_one_where_examples_are_many(monkeypatch):
  monkeypatch.setattr(calibrators.selection, "_out_of_fold",
                      lambda candidates, logits, *_: np.zeros((len(candidates), len(logits))))
  for size, num_classes, last in ((150, 3, "structured_matrix_scaling"), (149, 3, None), (1999, 2, None),
                                  (2000, 2, "spline_calibration")):
    names = [s.name for s in calibrators.select(*synthetic(size, num_classes), folds=2).scores]
    assert names == [*calibrators.selection.CANDIDATES, *filter(None, [last])]


def test_a_candidate_on_the_host_changes_no_score_of_the_others():
  logits, labels = synthetic(83, 3)
  compiled = calibrators.select(logits, labels, NAMES[:2]).scores
  on_host = calibrators.select(logits, labels, [*NAMES[:2], "isotonic"]).scores
  np.testing.assert_allclose([s.score for s in on_host[:-1]], [s.score for s in compiled], rtol=1e-6)


def test_logits_that_no_fit_takes_are_refused_before_the_folds_are_fitted():
  logits, labels = synthetic(40, 3)
  with pytest.raises(ValueError, match="finite or -inf: 1 of 40 rows is not; the first, row 7, holds nan"):
    calibrators.select(np.where(np.arange(40)[:, None] == 7, np.nan, logits), labels)
  labels = np.where(np.arange(40) == 5, np.int64(2**40), labels)  # Its lowest 32 bits are 0, which is a class.
  with pytest.raises(ValueError, match=r"labels must be in \[0, 3\): 1 of 40 .* row 5, holds 1099511627776"):
    calibrators.select(logits, labels)


@pytest.mark.parametrize(("options", "match"), [
  ({"criterion": "ece"}, "criterion must be one of 'nll', 'brier'"), ({"folds": 1}, "folds must be in"),
  ({"candidates": ["temprature_scaling"]}, "Did you mean 'temperature_scaling'"),
  ({"candidates": []}, "at least one calibrator")])
def test_mistakes_are_named(options, match):
  with pytest.raises(ValueError, match=match):
    calibrators.select(*synthetic(40, 3), **options)


SB_ECE = calibrators.temperature_scaling("soft_binned_ece")


@pytest.mark.parametrize(("calibrator", "size", "expected"), [
  (calibrators.histogram_binning(), (5000, 10), "holds 333 rows, and a class of 10 has about 500"),
  (calibrators.histogram_binning(), (5000, 9), ""), (calibrators.histogram_binning(16), (5000, 10), ""),
  (calibrators.histogram_binning(binning="equal_width"), (5000, 100), ""),
  (calibrators.histogram_binning(top_label=True), (5000, 100), ""),
  (calibrators.vector_scaling(), (359, 10), "vector_scaling: 359 examples of 10 classes are few"),
  (calibrators.vector_scaling(), (501, 10), ""), (calibrators.isotonic(), (2000, 10), "isotonic: 2,000 examples of 10"),
  (calibrators.isotonic(top_label=True), (2000, 10), ""), (calibrators.beta_calibration(), (501, 10), ""),
  (SB_ECE, (359, 10), "soft-binned error of 359 examples"), (SB_ECE, (500, 10), ""),
  (calibrators.temperature_scaling(), (20, 10), ""),
  (calibrators.structured_matrix_scaling(), (359, 10), ""),
  (calibrators.Calibrator(lambda *_: {}, lambda params, logits: logits), (1, 2), "")])
def test_fits_that_are_known_to_hurt_are_named(calibrator, size, expected):
  actual = calibrators.caution(calibrator, *size)
  assert expected in actual and bool(actual) == bool(expected)


def test_evaluations_say_it_once_before_they_fit(capsys):
  part = evaluation.Predictions(*synthetic(60, 20))
  labelled = {"HB": calibrators.histogram_binning(), "none": calibrators.identity()}
  evaluation.fit([part, part], labelled)
  output = capsys.readouterr().out
  assert output.count("\n") == 1 and output.startswith("caution: HB: histogram_binning: a bin of equal mass")
  fitting.out_of_fold(part, labelled, 2)  # Its fits to the parts of the data say nothing more.
  assert not capsys.readouterr().out


def test_a_candidate_whose_predictions_are_not_numbers_is_never_chosen():
  rng = np.random.default_rng(0)
  logits, labels = np.float32(3 * rng.normal(size=(60, 3))), rng.integers(0, 3, 60)
  broken = calibrators.Calibrator(lambda logits, labels, **_: {}, lambda params, logits: logits * np.float32("nan"))
  chosen = calibrators.select(logits, labels, {"broken": broken, "TS": calibrators.temperature_scaling()})
  assert chosen.name == "TS" and np.isnan(chosen.scores[0].score)
  with pytest.raises(ValueError, match="no candidate could be fitted: the scores of broken"):
    calibrators.select(logits, labels, {"broken": broken})
