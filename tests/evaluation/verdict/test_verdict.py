"""The first line of the verdict: rarely wrong where the truth is known, and right on ten sets of predictions."""

import itertools
import re
import types

import numpy as np
import pytest
from scipy import stats
from scipy.special import log_softmax

from calib_jax import calibrators, evaluation
from calib_jax.evaluation.measures import measure, per_example
from calib_jax.evaluation.results import Interval
from calib_jax.evaluation.subgroups import Subgroup, class_gaps
from calib_jax.evaluation.verdict import decisions
from calib_jax.evaluation.verdict.reasons import subgroup_text
from calib_jax.evaluation.verdict.verdict import verdict
from experiments.estimators.verdicts import (
  Truth,
  compared,
  equal_models,
  off_by_five_points,
  one_seed_against_ten,
  recommendations,
  share,
  simulated,
  useless_calibrators,
)
from tests.evaluation.data import predictions, values_of


def _is_rare(number, repeats, share=0.05):
  """Whether what has at most a chance of ``share`` may have happened so often, by two standard errors."""
  return number <= share * repeats + 2 * (share * (1 - share) * repeats) ** 0.5


@pytest.mark.parametrize(("n", "spread", "repeats"), [(500, 2, 100), (300, 12, 100)])
def test_a_calibrated_model_is_to_be_kept_in_at_least_95_percent(n, spread, repeats):
  # With the spread of 12 many predictions are nearly certain, and their own spread is almost 0.
  kinds = [x.kind for x in recommendations(Truth(n, spread=spread), repeats)]
  assert _is_rare(sum(kind != "keep" for kind in kinds), repeats), kinds


def test_a_model_whose_only_fault_is_a_temperature_is_seldom_told_to_try_another_calibrator():
  # It was told so in 20%, because a calibrator that is not shown to help was taken for one that does not help.
  recommended = recommendations(Truth(1000, scale=1.15), 60)
  assert sum(x.kind == "mend" for x in recommended) <= 3, recommended
  assert sum("mends the model is not shown" in x.text for x in recommended) > 6


def test_a_fault_that_no_temperature_mends_needs_another_calibrator():
  recommended = recommendations(Truth(3000, scale=0.7, bias=1.0), 10)
  assert sum(x.kind == "mend" for x in recommended) >= 9, recommended


def test_a_weak_model_is_not_called_no_better_than_guessing():
  assert not any("guessing" in x.text for x in recommendations(Truth(500, spread=0.43), 20))
  # A log loss that is 1% below that of guessing, which so many examples show.
  assert not any("guessing" in x.text for x in recommendations(Truth(20_000, spread=0.25), 1))


def test_intervals_over_few_groups_decide_nothing():
  results = simulated(np.random.default_rng(0), Truth(500, scale=3.0, num_groups=9))
  assert verdict(results).first_line == "Nothing is decided: intervals over 9 groups say nothing, and need 10 or more."
  evaluated = results.sets["test"]
  assert decisions.compared(evaluated, "nll", ("a", "TS"), ("a", "none")) == ""  # No cell is bold.
  assert not simulated(np.random.default_rng(0), Truth(500, num_groups=10)).sets["test"].has_few_units


def test_predictions_that_are_right_without_exception_are_not_called_underconfident():
  # Of 60 predictions of each class with a confidence of 97%, 1.8 would be wrong; none is wrong in 16% of samples.
  confidence = np.random.default_rng(0).uniform(0.965, 0.975, (120, 1))
  predicted = np.arange(120)[:, None] % 2
  all_right = values_of(confidence, np.ones(120), predicted=predicted)
  assert decisions.miscalibrated_classes(class_gaps(all_right, 2)).size == 0
  assert decisions.side(all_right.excess()) == 0
  five_seeds = values_of(*(np.repeat(x, 5, 1) for x in (confidence, all_right.correct)), predicted=predicted)
  assert decisions.miscalibrated_classes(class_gaps(five_seeds, 2)).size == 0
  assert decisions.side(five_seeds.excess()) == 0
  none_right = values_of(confidence, np.zeros(120), predicted=predicted)
  assert decisions.miscalibrated_classes(class_gaps(none_right, 2)).size == 2
  assert decisions.side(none_right.excess()) == 1


def test_twenty_groups_of_equal_rows_are_seldom_called_over_or_underconfident():
  # At a third of 5%. By the spread of the groups alone it was 5.4%: where few groups are wrong, none may be.
  rng, accused, groups = np.random.default_rng(0), 0, np.repeat(np.arange(20), 10)
  for _ in range(150):
    confidence = 1 / (1 + np.exp(-np.abs(2 * (1 + rng.normal(size=20)))))
    correct = rng.uniform(size=20) < confidence
    of_groups = values_of(confidence[groups], correct[groups], groups)
    accused += decisions.side(decisions.widened(of_groups.excess(), decisions.TESTS)) != 0
  assert accused <= 4


def test_intervals_of_class_wise_errors_hold_the_truth_with_few_examples_a_class():
  # With 30 examples a class the intervals that subtract an estimate of the bias held the 0 of this model in no sample.
  rng, repeats, num_covered = np.random.default_rng(0), 15, 0
  for _ in range(repeats):
    part = predictions(1, 300, rng, num_classes=10)
    estimates = measure({0: per_example([part], num_redraws=80)}, num_resamples=20)[0][0]
    num_covered += estimates["classwise"].low == 0
    assert estimates["classwise"].low <= estimates["classwise"].estimate <= estimates["classwise"].high
  assert num_covered >= 12  # At 97.5%, fewer have a chance of 3e-4.


@pytest.mark.parametrize(("simulation", "repeats"), [
  (useless_calibrators, 400), (equal_models, 1000), (one_seed_against_ten, 400),
  pytest.param(off_by_five_points, 80, marks=pytest.mark.slow)])
def test_nothing_is_recommended_without_reason_in_more_than_5_percent(simulation, repeats):
  assert _is_rare(repeats * share(simulation, repeats), repeats)


def test_the_simplest_calibrator_is_used_unless_another_one_is_better():
  far, near = evaluation.Interval(-0.2, -0.3, -0.1), evaluation.Interval(-0.21, -0.31, -0.11)
  evaluated = compared({"TS": far, "SVS": near, "worse": evaluation.Interval(0.2, 0.1, 0.3)})
  pair = ("a", "SVS"), ("a", "TS")
  assert decisions.to_use(evaluated, "a", ["TS", "SVS", "worse"]) == "TS"
  evaluated.differences[pair] = {"nll": evaluation.Interval(-0.01, -0.015, -0.005)}
  assert decisions.to_use(evaluated, "a", ["TS", "SVS", "worse"]) == "SVS"
  assert decisions.to_use(evaluated, "a", ["worse"]) == decisions.to_use(evaluated, "a", []) == ""
  # A calibrator that loses accuracy is not used.
  evaluated.rows["a", "SVS"].estimates["accuracy"] = evaluation.Estimate(0.7, 0.7, 0, 1)
  evaluated.differences[("a", "SVS"), ("a", "none")]["accuracy"] = evaluation.Interval(-0.1, -0.12, -0.08)
  assert decisions.to_use(evaluated, "a", ["TS", "SVS", "worse"]) == "TS"


def _set(errors, **others):
  """A set of the model "a" whose rows have these errors, known to a point, and no difference of log loss."""
  rows = {("a", label): evaluation.Row({"ece": evaluation.Estimate(x, x, x - 0.01, x + 0.01, 0.01, float(x < 0.05)),
                                        **dict.fromkeys(("nll", "accuracy"), evaluation.Estimate(0.5, 0.5, 0, 1))},
                                       evaluation.Interval(0, -0.01, 0.01)) for label, x in errors.items()}
  names = list(rows)
  return evaluation.EvaluatedSet(500, 10, 1, rows=rows, differences={
    (row, other): dict.fromkeys(("nll", "accuracy", "ece"), evaluation.Interval(0, -0.01, 0.01))
    for i, row in enumerate(names) for other in names[:i]}, **others)


FITTED = {"a": {label: (calibrators.platt(), [{}]) for label in ("TS", "SVS")}}


def _warnings(sets, **sections):
  return [x for x in verdict(evaluation.Results(15, 100, sets, FITTED, sections)).recommendations
          if x.kind == "do_not_rely"]


def test_sets_are_warned_of_by_what_is_left_on_them():
  fine, off = {"none": 0.01, "TS": 0.02, "SVS": 0.02}, {"none": 0.2, "TS": 0.14, "SVS": 0.19}
  assert not _warnings({"test": _set(fine), "b": _set({"none": 0.055, "TS": 0.2, "SVS": 0.2})})
  (warning,) = _warnings({"test": _set(fine), "b": _set(off), "c": _set(fine), "d": _set({**off, "SVS": 0.1})})
  assert warning.subject == "b, d" and warning.numbers == {"least": 0.1, "most": 0.19}
  assert warning.text == ("Do not rely on these probabilities on b and d: off by 10 to 19 points after every "
                          "calibrator, shown to be more than 5.")
  # That no calibrator mends the test set is said once.
  results = evaluation.Results(15, 100, {"test": _set(off)}, FITTED)
  assert [x.kind for x in verdict(results).recommendations] == ["do_not_rely"]
  # A calibrator that is not recommended would mend it.
  (warning,) = _warnings({"test": _set(fine), "b": _set({"none": 0.2, "TS": 0.01, "SVS": 0.19})})
  assert warning.text == "Do not rely on these probabilities on b: off by 20 points, shown to be more than 5."
  # The interval of one set would lie above 5 points; those of forty sets at once do not.
  almost = {label: 0.0605 for label in fine}
  assert _warnings({"test": _set(almost)})
  assert not _warnings({"test": _set(fine), **{f"s{i}": _set(almost) for i in range(40)}})


def test_out_of_distribution_sets_that_no_score_detects_are_warned_of():
  def scores(*lows):
    return {"far": {"a": {label: {f"score{i}": {"auroc": evaluation.Interval(low + 0.1, low, low + 0.2)}
                                  for i, low in enumerate(lows)} for label in ("none", "TS", "SVS")}}}

  sets = {"test": _set(dict.fromkeys(("none", "TS", "SVS"), 0.01))}
  assert not _warnings(sets, detection=scores(0.4, 0.6))
  (warning,) = _warnings(sets, detection=scores(0.4, 0.45))
  assert warning.text == "Do not rely on the confidence to tell far from test: AUROC 55% (95% interval 45 to 65)."


N, K = 800, 5
CALIBRATORS = {"TS": calibrators.temperature_scaling()}


def _part(seed, *, n=N, num_classes=K, scale=1, bias=0, noise=0, flipped=0, spread=2, model_seed=0):
  """Predictions of logits z: labels are drawn from the softmax of z, some of them anew from all classes.

  The model shows ``scale`` (z + ``bias`` + ``noise``), so that with 1, 0 and 0 it is calibrated.
  """
  rng = np.random.default_rng(seed)
  logits = spread * rng.normal(size=(n, num_classes))
  labels = (np.exp(log_softmax(logits, axis=1)).cumsum(1) > rng.uniform(size=(n, 1))).argmax(1)
  labels = np.where(rng.uniform(size=n) < flipped, rng.integers(0, num_classes, n), labels)
  shown = scale * (logits + bias + noise * np.random.default_rng((9, model_seed)).normal(size=logits.shape))
  return evaluation.Predictions(shown.astype(np.float32), labels.astype(np.int32))


def _right(seed, n=N):
  """Predictions that are always right."""
  rng = np.random.default_rng(seed)
  labels = rng.integers(0, K, n)
  return evaluation.Predictions(np.float32(rng.normal(size=(n, K)) + 12 * np.eye(K)[labels]), labels.astype(np.int32))


def _first_line(sets, *, fit=None, calibrators=CALIBRATORS, **others):
  models = {"mine": evaluation.Model(sets, evaluation.fit([fit], calibrators) if fit else {})}
  models |= {name: evaluation.Model({"test": parts}, {}) for name, parts in others.items()}
  return evaluation.judge(models, num_resamples=100).verdict.first_line


def _alone(n=N, calibrators=CALIBRATORS, **truth):
  return _first_line({"test": [_part(0, n=n, **truth)]}, fit=_part(1, **truth), calibrators=calibrators)


USE = r"Use TS \(T = {}\d\): log loss 1\.\d+ → [01]\.\d+ \(lower by 0\.\d+ to 0\.\d+, corrected for 4 tests\) " + (
  r"at equal accuracy\.")
KEEP = r"Keep the model as it is: 800 examples show no miscalibration, and TS is not shown to lower the log loss\."
# What is judged, of which the truth is known, and the whole first line.
TRUTHS = {
  "calibrated": (_alone, KEEP),
  "overconfident": (lambda: _alone(scale=2), USE.format(r"[12]\.\d")),
  "underconfident": (lambda: _alone(scale=0.5), USE.format(r"0\.[45]")),
  "wrong by class only": (lambda: _alone(bias=np.array([1, 1, 0, -1, -1]), calibrators={
    **CALIBRATORS, "SVS": calibrators.structured_vector_scaling()}),
    r"Use SVS: log loss \d\.\d+ → 0\.\d+ \(lower by 0\.\d+ to 0\.\d+, corrected for 8 tests\) and accuracy \d\d\.\d → "
    r"\d\d\.\d% \(\d\.\d to \d+\.\d points more\)\."),
  "shift": (lambda: _first_line({"test": [_part(0)], "shifted": [_part(2, flipped=0.5)]}, fit=_part(1)),
            KEEP + r" Do not rely on these probabilities on shifted: off by (2\d|3\d)( to \d\d)? points, shown to be "
            r"more than 5\."),
  # The noise leaves no prediction certain, which one temperature cannot say.
  "label noise": (lambda: _alone(flipped=0.3), USE.format(r"[12]\.\d") + (
    r" Do not rely on these probabilities on test: off by \d+ points after TS, shown to be more than 5\.")),
  "tiny test set": (lambda: _alone(n=40),
                    r"40 examples are too few to tell: the mean confidence may be off by 1\d points\."),
  "models of unlike accuracy": (
    lambda: _first_line({"test": [_part(0, noise=2, scale=0.5)]}, other=[_part(0)]),
    r"Use other: log loss 0\.\d+ against \d\.\d+ of mine \(lower by 0\.\d+ to [01]\.\d+, corrected for 2 tests\), "
    r"6\d\.\d against 4\d\.\d% accuracy\. "
    r"Keep other as it is: 800 examples show no miscalibration\."),
  "one seed against ten": (
    # Ten seeds of one method are of unlike worth, and the one seed of the same method is a lucky one.
    lambda: _first_line({"test": [_part(0, noise=0.4)]}, other=[
      _part(0, noise=0.2 + 0.15 * seed, model_seed=seed) for seed in range(10)]),
    r"No model is shown to be the best: log loss 0\.\d+ of mine against \d\.\d+ of other, \d\d\.\d against \d\d\.\d% "
    r"accuracy\. Keep mine as it is: 800 examples show no miscalibration\."),
  "always right": (lambda: _first_line({"test": [_right(0)]}, fit=_right(1)),
                   r"The predictions are always right here: nothing to calibrate; T is not determined\."),
  "untrained": (lambda: _alone(noise=1000, scale=0.003),
                r"No better than guessing: log loss 1\.6\d(, and| is) that of equal probabilities.* Do not rely on .*"),
  "twenty certain examples": (lambda: _first_line({"test": [_right(0, 20)]}),
                              r"20 examples are too few to tell: the mean confidence may be off by 15 points\."),
  "one example": (lambda: _first_line({"test": [_part(0, n=1)]}),
                  r"1 example is too few to tell: the mean confidence may be off by 100 points\."),
  "binary": (lambda: _alone(num_classes=2, scale=2), USE.replace(r"1\.\d+ →", r"0\.\d+ →").format(r"[12]\.\d")),
}


@pytest.mark.parametrize("truth", TRUTHS)
def test_the_first_line_of_predictions_whose_truth_is_known(truth):
  judged, line = TRUTHS[truth]
  first_line = judged()
  assert re.fullmatch(line, first_line), first_line


def test_the_subgroup_that_is_named_has_an_interval_that_holds_for_all_of_them():
  offset = Interval(0.1, 0.01, 0.19)
  of_task = {name: Subgroup(50, 50, 0.8, 0.1, 0.05, 0.1, offset, 0.0, p)
             for name, p in dict(a=0.5, b=0.5, c=0.5, d=0.5, e=None).items()}
  results = types.SimpleNamespace(sections={"subgroups": {"test": {"task": {"mine": of_task}}}}, first=("test", None),
                            row_name=lambda row: "mine")
  arm = 9 * stats.norm.ppf(1 - 0.05 / 4 / 2) / stats.norm.ppf(0.975)
  assert subgroup_text(results, ("mine", "none"), of_task["a"]) == (
    f"overconfident by 10.0 ± {arm:.1f} points (corrected for 4 subgroups)")


FAULTS = (r"wrong in places|confident by [\d.]+ ± [\d.]+ points \(corrected for 4|on test: off by|are miscalibrated|"
          "is shown to be wrong|shows a miscalibration")
CONTRADICTIONS = (  # Pairs of patterns that no verdict has together.
  ("No miscalibration can be shown", f"{FAULTS}|Use TS|Calibrate |Try another|mends the model|few to tell|worse than"),
  ("show no miscalibration", f"{FAULTS}|Use TS|Calibrate |Try another|mends the model|few to tell|would hide much"),
  ("few to tell", f"{FAULTS}|Use TS|Calibrate |Try another|mends the model|No miscalibration"),
  ("Only the log loss shows", f"{FAULTS}|TS is not shown to".replace("|shows a miscalibration", "")),
  ("Use TS", r"TS is not shown to|TS raises the log loss|TS loses|no calibrator is shown|few to choose"),
  ("TS lowers the ECE|TS raises the ECE", "do not show to be lower"),
  (r"test: off by \d+ points after TS", "what is left is not told apart from noise"),
  ("TS loses", "at equal accuracy|no difference is shown"),
  ("on shifted: off by", r"On shifted: .*p = 0\.300"))


def _made_up(p_value, excess, arm, number, change, lost, shifted, is_worse, predicted):
  """Results of a model, with TS unless ``change``, its difference of the log loss, is None."""
  def row(p_value, low, accuracy=0.8, nll=0.5):
    ece = evaluation.Estimate(0.1, 0.09, low, 0.12, 0.05, p_value, [0.1])
    values = predicted and values_of(*predicted)
    return evaluation.Row({"accuracy": evaluation.Estimate(accuracy, accuracy, 0.0, 1.0),
                           "nll": evaluation.Estimate(nll, nll, 0.0, 9.0), "ece": ece},
                          Interval(excess, excess - arm, excess + arm), values)

  low = 0.07 if p_value < 0.001 else 0.01 if p_value < 0.05 else 0.0
  rows, differences = {("mine", "none"): row(p_value, low)}, {}
  if change is not None:
    rows["mine", "TS"] = row(p_value if is_worse else 0.3, low if is_worse else 0.0, 0.8 - lost, 0.5 + change)
    of_ece = 0.0 if shifted else change
    moves = {"nll": Interval(change, change - 0.02, change + 0.02), "accuracy": Interval(-lost, -lost, -lost),
             "ece": Interval(of_ece, of_ece - 0.02, of_ece + 0.02)}
    differences[("mine", "TS"), ("mine", "none")] = moves
  sets = {"test": evaluation.EvaluatedSet(number, 2, 1, rows=rows, differences=differences)}
  if shifted:
    sets["shifted"] = evaluation.EvaluatedSet(
      number, 2, 1, rows={key: row(*shifted) for key in rows}, differences=differences)
  subgroups = {}
  if is_worse:
    by_name = {name: Subgroup(99, 99, 0.8, 0.1, 0.05, 0.1, Interval(0.1, 0.05, 0.15), Interval(0.0, -0.1, 0.1), p)
               for name, p in {"a": 0.001, "b": 0.9}.items()}
    subgroups = {"subgroups": {"test": {"task": {"uncalibrated": by_name, "TS": by_name}}}}
  fitted = {"mine": {"TS": (calibrators.temperature_scaling(), [{"temperature": 2.0}])}}
  return evaluation.Results(15, 1000, sets, fitted, subgroups)


def test_no_two_sentences_of_a_verdict_contradict_each_other():
  by_class = (np.full((200, 1), 0.75), np.arange(200) % 100 < np.where(np.arange(200) < 100, 55, 95))
  predicted = (by_class[0], by_class[1][:, None], None, (np.arange(200) // 100)[:, None])
  seen = dict.fromkeys((pattern for pair in CONTRADICTIONS for pattern in pair), 0)
  for case in itertools.product(
      (1e-4, 0.02, 0.3), (0.05, 0.01), (0.01, 0.08), (40, 1000), (None, -0.1, 0.0, 0.1), (0.0, 0.05),
      (None, (1e-4, 0.07), (0.3, 0.0)), (False, True), (None, predicted)):
    if case[8] and (case[1], case[2]) != (0.01, 0.01):
      continue
    lines = verdict(_made_up(*case)).lines
    text = "\n".join(lines)
    for pair in CONTRADICTIONS:
      found = [re.search(pattern, text) for pattern in pair]
      for pattern, match in zip(pair, found, strict=True):
        seen[pattern] += match is not None
      assert not all(found), (case[:-1], pair, lines)
  assert all(seen.values()), {pattern for pattern, number in seen.items() if not number}


def test_an_error_that_a_calibrated_model_would_show_is_no_reason_not_to_rely_on_it():
  errors = [evaluation.Estimate(0.1, 0.1, 0.08, 0.12, 0.05, p_value) for p_value in (0.02, 0.01)]
  assert [decisions.is_off(error, 1) for error in errors] == [False, True]
