"""The whole evaluation: its numbers against their definitions, its verdicts, and folds."""

import argparse
import csv
import dataclasses
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from calib_jax import calibrators, evaluation, metrics
from calib_jax._system.errors import UserError
from calib_jax.cli import inputs
from calib_jax.cli import shared as shared
from calib_jax.evaluation import class_errors
from calib_jax.evaluation.columns import COLUMNS
from calib_jax.evaluation.predictions import automatic, fitting
from calib_jax.evaluation.predictions.calibrated import Calibrated
from calib_jax.evaluation.reports import formats
from calib_jax.evaluation.results import over_seeds
from calib_jax.evaluation.sections.over_seeds import effect_size
from calib_jax.evaluation.subgroups import class_gaps
from calib_jax.evaluation.verdict import decisions, reasons
from calib_jax.evaluation.verdict.verdict import verdict
from calib_jax.intervals.groups import stratified_folds
from tests.evaluation.data import K, N, predictions
from tests.metrics import references

pytestmark = pytest.mark.xdist_group("results")  # One worker makes what most of these tests share.
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def results():
  """Logits three times too large; the calibrator with temperature 3 mends them."""
  fit, test = predictions(3, rng=np.random.default_rng(1)), predictions(3)
  sets = {"test": [test], "far": [predictions(0.2)._replace(kind="out_of_distribution")]}
  model = evaluation.Model(sets, evaluation.fit([fit], {"TS": calibrators.temperature_scaling()}))
  return evaluation.judge({"mine": model}, num_resamples=40)


@pytest.mark.parametrize("is_broken", [lambda logits: logits[:, :1] > 2, lambda logits: logits[:, :1] < -90])
def test_a_calibrator_whose_predictions_are_not_numbers_is_left_out(results, is_broken):
  # NaN for some test examples, and for one of those out of distribution alone.
  broken = calibrators.Calibrator(lambda logits, labels: {}, lambda params, logits: jnp.where(
    is_broken(logits), jnp.nan, jax.nn.log_softmax(logits)))
  far = predictions(0.2)._replace(kind="out_of_distribution")
  far.logits[0, 0] = -99.0
  both = evaluation.fit([predictions(3, rng=np.random.default_rng(1))], {
    "broken": broken, "TS": calibrators.temperature_scaling()})
  sets = {"test": [predictions(3)], "far": [far]}
  judged = evaluation.judge({"mine": evaluation.Model(sets, both)}, num_resamples=40)
  assert list(judged.sets["test"].rows) == [("mine", "none"), ("mine", "TS")] and list(judged.fitted["mine"]) == ["TS"]
  (sentence,) = judged.failed.values()
  assert sentence.startswith("broken is left out, because its fit failed: on ") and "are not numbers" in sentence
  assert judged.verdict.lines == [*results.verdict.lines[:-1], judged.verdict.lines[-2], sentence]
  nan = predictions(3)
  nan.logits[0] = np.nan
  with pytest.raises(UserError, match="mine on test: 1 of 400 predictions are not numbers"):
    evaluation.judge({"mine": evaluation.Model({"test": [nan]}, {})}, num_resamples=40)


def test_no_interval_leaves_the_range_of_its_quantity():
  # Two seeds of unlike luck: Student's quantile of one degree of freedom is 12.7.
  parts = [predictions(scale) for scale in (0.1, 8.0)]
  judged = evaluation.judge({"mine": evaluation.Model({"test": parts}, {"half": (
    calibrators.Calibrator(None, lambda params, logits: jax.nn.log_softmax(logits / 2)), [{}, {}])})}, num_resamples=40)
  evaluated = judged.sets["test"]
  most = {name: {"Brier": 2.0, "mean entropy": np.log(K), "NLL": np.inf}.get(metric.heading, 1.0)
          for name, metric in COLUMNS.items()}
  for row in evaluated.rows.values():
    assert row.excess.low >= -1 and row.excess.high <= 1
    assert all(x.low >= 0 and x.high <= most[name] * (1 + 1e-6) for name, x in row.estimates.items())
  (changes,) = evaluated.differences.values()
  assert all(-most[name] <= x.low and x.high <= most[name] for name, x in changes.items())
  assert "points (-100 to 100)" in judged.verdict.lines[1], judged.verdict.lines


def _probs(part):
  return special.softmax(part.logits.astype(np.float64), axis=1)


def test_detection_is_the_share_of_pairs_in_order(results):
  scores = np.concatenate([_probs(predictions(scale)).max(1) for scale in (3, 0.2)])
  pairs = references.auroc(scores, np.arange(2 * N) < N)
  measured = results.sections["detection"]["far"]["mine"]["none"]["msp"]
  for key in ("auroc", "auroc_outside"):
    np.testing.assert_allclose(measured[key].estimate, pairs, atol=2e-5)
  assert measured["auroc"].low < pairs < measured["auroc"].high


def test_a_verdict_stands_where_the_interval_excludes_zero(results):
  evaluated, none, scaled = results.sets["test"], ("mine", "none"), ("mine", "TS")
  change = decisions.difference(evaluated, "nll", scaled, none)
  expected = evaluated.rows[scaled].estimates["nll"].value - evaluated.rows[none].estimates["nll"].value
  np.testing.assert_allclose(change.estimate, expected, atol=1e-5)
  assert change.high < 0 and decisions.side(change) == -1
  assert decisions.difference(evaluated, "nll", none, scaled) == evaluation.Interval(
    -change.estimate, -change.high, -change.low)
  assert decisions.compared(evaluated, "nll", scaled, none) == "better"
  assert decisions.compared(evaluated, "nll", none, scaled) == "worse"
  assert decisions.is_best(evaluated, "nll", scaled) and not decisions.is_best(evaluated, "nll", none)
  # A temperature keeps every prediction.
  assert decisions.difference(evaluated, "accuracy", scaled, none) == evaluation.Interval(0, 0, 0)
  assert not any(decisions.is_best(evaluated, "accuracy", row) for row in evaluated.rows)
  assert decisions.difference(evaluated, "nll", none, ("other", "none")) is None


def test_the_sentences_have_the_numbers(results):
  actual = results.verdict
  values = results.sets["test"].rows["mine", "none"].values
  gap = 100 * (values.confidence.astype(np.float64) - values.correct).mean()
  assert actual.reasons[0].startswith(f"Overconfident by {gap:.1f} ± ")
  temperature = results.fitted["mine"]["TS"][1][0]["temperature"]
  before, after = (results.sets["test"].rows["mine", label].estimates for label in ("none", "TS"))
  change = results.sets["test"].differences[("mine", "TS"), ("mine", "none")]["nll"]
  arms = 2.4977 / 1.9600 * np.array([change.high - change.estimate, change.low - change.estimate])  # Of 98.75%.
  low, high = -change.estimate - arms
  assert 2 < temperature < 4.5 and actual.first_line == (
    f"Use TS (T = {temperature:.2f}): log loss {before['nll'].value:.2f} → {after['nll'].value:.2f} (lower by "
    f"{low:.2f} to {high:.2f}, corrected for 4 tests) at equal accuracy.")
  # The ECE as computed, and never one without its bias beside it.
  assert actual.reasons[1].startswith(
    f"TS lowers the ECE, {100 * before['ece'].value:.1f} → {100 * after['ece'].value:.1f}%: ")
  assert not any("TS is not shown to" in reason for reason in actual.reasons)
  (recommendation,) = actual.recommendations
  assert (recommendation.kind, recommendation.subject) == ("use", "TS")
  assert recommendation.numbers["log_loss_after"] == after["nll"].value
  gaps = class_gaps(values, K)
  chosen = values.predicted[:, 0] == 1
  excess = (values.confidence - values.correct)[chosen, 0].astype(np.float64)
  expected = [excess.mean(), excess.std(ddof=1) / len(excess) ** 0.5]
  np.testing.assert_allclose([gaps.gap[1], gaps.error[1]], expected, rtol=1e-3)


def test_what_speaks_against_other_calibrators_comes_after_all_else(results):
  evaluated, none = results.sets["test"], ("mine", "none")
  row = evaluated.rows["mine", "TS"]
  worse = dataclasses.replace(row, estimates={**row.estimates, **{
    name: evaluation.Estimate(x, x, x, x) for name, x in (("accuracy", 0.5), ("nll", 9.0))}})
  lower, same, higher = (evaluation.Interval(x, x - 0.1, x + 0.1) for x in (-0.2, 0, 0.2))
  for accuracy, nll, sentence in ((lower, same, "other loses "), (same, higher, "other raises the log loss, "),
                                  (same, same, "other is not shown to have a lower log loss than TS.")):
    change = {**dict.fromkeys(evaluation.COLUMNS, same), "accuracy": accuracy, "nll": nll}
    pairs = {(("mine", "other"), none): change, (("mine", "other"), ("mine", "TS")): change}
    changed = dataclasses.replace(evaluated, rows={**evaluated.rows, ("mine", "other"): worse},
                                  differences={**evaluated.differences, **pairs})
    fitted = {"mine": {**results.fitted["mine"], "other": results.fitted["mine"]["TS"]}}
    actual = verdict(dataclasses.replace(results, sets={"test": changed}, fitted=fitted))
    assert actual.first_line.startswith("Use TS (") and "other" not in actual.first_line
    assert actual.reasons[-1].startswith(sentence), actual.reasons


def test_an_error_as_computed_is_bold_only_where_it_is_the_lowest():
  value = {"a": 0.03, "b": 0.02}  # Without their bias, the first is lower.
  rows = {("m", name): evaluation.Row({"ece": evaluation.Estimate(x, 0.01, 0, 0.02, 0.01, 0.5)},
                                      evaluation.Interval(0, 0, 0)) for name, x in value.items()}
  change = {(("m", "b"), ("m", "a")): {"ece": evaluation.Interval(0.01, 0.005, 0.015)}}
  evaluated = evaluation.EvaluatedSet(9, 2, 1, rows=rows, differences=change)
  results = evaluation.Results(15, 9, {"test": evaluated}, columns=("ece", "ece_debiased"))
  assert [cells[-2:] for cells in formats.bold(results, formats.to_rows(results)[0])] == [[False, True], [False, False]]


def test_what_auto_chose_is_said_by_the_verdict_the_note_and_the_terminal(capsys):
  fit, test = predictions(3, rng=np.random.default_rng(1)), predictions(3)
  names = ["temperature_scaling", "ensemble_temperature_scaling"]
  params = [{automatic.CHOSEN: {name: calibrators.get(name).fit(fit.logits, fit.labels)}, automatic.SCORES: {}}
            for name in names]
  model = evaluation.Model({"test": [test, test]}, {automatic.AUTO: (automatic.automatic(), params)})
  results = evaluation.judge({"mine": model}, num_resamples=40)
  chose = "auto chose temperature_scaling for 1 of 2 seeds, ensemble_temperature_scaling for 1 of 2 seeds"
  first_line = results.verdict.first_line
  assert first_line.startswith(f"Use auto ({chose.partition('chose ')[2]}): log loss")
  assert evaluation.note(results).endswith(f" {chose}.")
  shared.write(argparse.Namespace(json=None, out=None, columns="nll"), results, shared.Inputs({}, {}, []))
  printed = capsys.readouterr().out
  assert printed.startswith(f"{first_line}\n") and f"{chose}." in printed
  first, second = (verdict(dataclasses.replace(results, fitted={
    "mine": {automatic.AUTO: (automatic.automatic(), [p, p])}})).first_line for p in params)
  assert first.startswith("Use auto (temperature_scaling, T = ") and (
    second.startswith("Use auto (ensemble_temperature_scaling): "))


def test_the_note_says_what_rows_cost_that_are_not_of_one_pass_through_one_network(results):
  def note(*names):
    evaluated = results.sets["test"]
    of_names = dataclasses.replace(evaluated, rows={(name, "none"): evaluated.rows["mine", "none"] for name in names})
    return evaluation.note(dataclasses.replace(results, sets={"test": of_names}))

  plain, sentences = note("mine", "Laplace of mine", "20 samples"), list(formats.COSTS.values())
  assert not any(sentence in plain for sentence in sentences)
  for name, sentence in zip(("mine, ensemble of 5, TS of each", "mine, 20 samples", "mine, Laplace"), sentences,
                            strict=True):
    assert note("mine", name) == f"{plain} {sentence}"
  assert note("mine, 4 samples, ensemble of 2", "mine, Laplace") == " ".join([plain, *sentences])
  assert "n times as long to train and to predict" in sentences[0]


def test_errors_by_the_conventions_of_tools(results):
  actual = results.sections["conventions"]["test"]
  assert actual.keys() == metrics.CONVENTIONS.keys() - {"hle"}
  for label, name in (("none", "uncalibrated"), ("TS", "TS")):
    values = results.sets["test"].rows["mine", label].values
    for convention, num_bins in (("guo", 15), ("netcal", 10)):
      expected = references.calibration_error(values.confidence[:, 0], values.correct[:, 0], num_bins)
      np.testing.assert_allclose(actual[convention][name], expected, rtol=1e-4)


def test_conventions_are_spoken_of_where_they_disagree_about_a_difference_that_is_real(results):
  none, scaled = {"uncalibrated": 0.1, "TS": 0.2}, {"uncalibrated": 0.1, "TS": 0.05}
  sentence = "Which row has the lowest calibration error depends on the tool that computes it: TS, uncalibrated."

  def is_named(by_convention, difference=None):
    evaluated = results.sets["test"]
    if difference:
      changes = {pair: {**of, "ece": difference} for pair, of in evaluated.differences.items()}
      evaluated = dataclasses.replace(evaluated, differences=changes)
    changed = dataclasses.replace(results, sets={"test": evaluated}, sections={"conventions": {"test": by_convention}})
    return sentence in verdict(changed).reasons

  assert is_named({"a": scaled, "b": none, "c": scaled}) and not is_named({"a": scaled, "b": scaled})
  assert not is_named({"a": scaled, "b": none, "c": scaled}, evaluation.Interval(-0.02, -0.05, 0.01))


def test_every_format_has_the_same_numbers(results):
  content = json.loads(evaluation.to_json(results))
  table = content["results"]["test"]["mine"]
  for line in csv.DictReader(io.StringIO(evaluation.to_csv(results))):
    cell = table[line["calibrator"]][line["metric"]]
    np.testing.assert_allclose(float(line["estimate"]), cell["estimate"], rtol=1e-7)
    assert (line["p_value"] != "") == ("p_value" in cell)
  latex = evaluation.to_latex(results)
  assert latex.count(r"\\") == 3 and r"\textbf{" in latex and r"accuracy \%" in latex and " & $p$ & " in latex
  html = results._repr_html_()
  assert f"{table['TS']['nll']['estimate']:.4f}" in html and f"N = {N}" in html


def test_the_noise_floor_of_a_class_is_that_of_the_binomial():
  n, p = 60, 0.8
  logits = np.tile(np.log([p, 1 - p]), (n, 1)).astype(np.float32)
  part = evaluation.Predictions(logits, np.zeros(n, np.int32))
  summing = class_errors.Summing(Calibrated.of(part), 15, 4000)
  for rows, first, log_probs in Calibrated.of(part).chunks():
    summing.add(rows, first, np.exp(log_probs), part.labels[rows])
  sums = summing.sums()["equal_width"]
  k = np.arange(n + 1)
  log_choose = np.concatenate([[0], np.cumsum(np.log(n - k[:-1]) - np.log(k[:-1] + 1))])
  chance = np.exp(log_choose + k * np.log(p) + (n - k) * np.log(1 - p))
  gap = np.abs(k / n - p)  # Both classes have this gap.
  spread = np.sqrt(np.sum(chance * gap**2) - np.sum(chance * gap) ** 2)
  np.testing.assert_allclose(sums.redrawn.mean(), np.sum(chance * gap), atol=5 * spread / np.sqrt(4000))
  np.testing.assert_allclose(class_errors.resampled([sums], 20).value, 1 - p, rtol=1e-5)


def test_redraws_that_equal_the_labels_count_for_the_p_value():
  probs = np.array([[0.7, 0.3, 1e-30], [0.6, 0.4, 1e-30]], np.float32)
  sums = evaluation.per_example([evaluation.Predictions(np.log(probs), np.array([0, 0], np.int32))]).class_sums
  # Both labels are drawn again with the probability 0.42, and every other draw has a larger error.
  for (part,) in sums.values():
    assert class_errors.resampled([part], 20).p_value == 1


def test_a_compared_model_has_the_groups_of_the_same_examples():
  part = predictions(1)
  grouped = part._replace(groups=np.arange(N, dtype=np.int32) // 20)
  models = {name: evaluation.Model({"test": [x]}, {}) for name, x in (("mine", grouped), ("other", part))}
  first, second = evaluation.judge(models, num_resamples=2).rows
  assert first[-1].estimates == second[-1].estimates


def test_equal_seeds_have_no_effect_size():
  assert effect_size([0.1] * 3, [0.2] * 3) is None
  assert effect_size([0.9, 0.9 + 1e-12], [0.8, 0.8]) is None and effect_size([0.1, 0.2], [0.3]) is None
  assert effect_size([0.1, 0.2], [0.3, 0.4]) == pytest.approx(-2.828, abs=0.01)


@pytest.mark.parametrize("num_bins", [1, 15])
def test_class_sums_are_those_of_all_rows_however_many_are_read_at_a_time(num_bins, monkeypatch):
  part, sums = predictions(2), []
  for chunk in (K * N, K * 64, K * 7):
    monkeypatch.setattr("calib_jax.evaluation.predictions.calibrated.CHUNK", chunk)
    sums.append(evaluation.per_example([part], num_bins=num_bins).class_sums)
  for name, (first,) in sums[0].items():
    for (chunked,) in (x[name] for x in sums[1:]):
      np.testing.assert_allclose(chunked.gaps, first.gaps, rtol=1e-5, atol=1e-9)
      np.testing.assert_allclose(chunked.redrawn, first.redrawn, rtol=1e-5)
    if num_bins == 1:
      expected = np.abs(_probs(part).mean(0) - np.bincount(part.labels) / N).mean()
      np.testing.assert_allclose(class_errors.resampled([first], 20).value, expected, rtol=1e-5)


def test_calibrators_that_need_all_rows_together_get_them(monkeypatch):
  monkeypatch.setattr("calib_jax.evaluation.predictions.calibrated.CHUNK", K * 50)
  part, calibrator = predictions(1), calibrators.Calibrator(lambda logits, labels: {}, lambda params, logits: (
    jax.nn.log_softmax(logits - logits.mean(0, keepdims=True))), together=True)
  part = part._replace(logits=part.logits + np.arange(N, dtype=np.float32)[:, None] % 100 * [1, 0, 0] / 30)
  log_probs = np.asarray(calibrator.apply({}, part.logits))
  for source in (evaluation.calibrated({"mine": (calibrator, [{}])}, "mine", [part])[0],
                 fitting.out_of_fold(part, {"mine": calibrator}, 4)["mine"][0]):
    for rows, _, chunk in source.chunks():
      np.testing.assert_allclose(chunk, log_probs[rows], rtol=1e-5, atol=1e-6)


def test_folds_have_their_share_of_each_class_and_keep_groups():
  labels = np.repeat([0, 1, 2], [50, 30, 7])
  fold = stratified_folds(labels, 5)
  counts = np.array([[np.sum((fold == k) & (labels == c)) for c in range(3)] for k in range(5)])
  assert (np.ptp(counts, axis=0) <= 1).all() and np.ptp(counts.sum(1)) <= 1
  groups = np.arange(87) // 3
  fold = stratified_folds(labels, 5, groups)
  assert all(len(set(fold[groups == g])) == 1 for g in range(29)) and set(fold) == set(range(5))
  with pytest.raises(ValueError, match="cross-validation in 5 folds needs at least 5 groups: there are 2"):
    stratified_folds(labels, 5, groups // 20)


def test_every_number_is_out_of_fold():
  # The fit of this calibrator keeps the sum of what it saw, which tells which examples those were.
  part = predictions(1, 20)
  spy = calibrators.Calibrator(lambda logits, labels: {"seen": jnp.sum(logits[:, 0])},
                               lambda params, logits: logits.at[:, 1].set(params["seen"]))
  actual = fitting.out_of_fold(part, {"spy": spy}, 4)["spy"][0].log_probs()
  fold = stratified_folds(part.labels, 4)
  expected = [part.logits[fold != fold[i], 0].sum() for i in range(20)]
  np.testing.assert_allclose(actual[:, 1], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("text", "message"), [
  ("temperature", "calibrator name must be one of .*temperature_scaling"),
  ("temperature_scaling:objectiv=ece", "has no option 'objectiv'; options look like .*Did you mean"),
  ("auto:folds=3", "auto has no options: got 'auto:folds=3'"),
  ("temperature_scaling:ece", "has no option 'ece'"), ("temperature_scaling:objective=x", "objective must be"),
])
def test_a_wrong_calibrator_is_one_sentence(text, message):
  with pytest.raises((UserError, ValueError), match=message):
    inputs.calibrator(text)


def _one_row(p_value, excess, num_examples=1000):
  error = evaluation.Estimate(0.05, 0.04, 0.0, 0.06, 0.03, p_value, [0.05])
  row = evaluation.Row({"ece": error}, evaluation.Interval(excess, excess - 0.01, excess + 0.01))
  return evaluation.Results(15, 1000, {"test": evaluation.EvaluatedSet(num_examples, 2, 1, rows={("a", "none"): row})})


@pytest.mark.parametrize(("p_value", "excess", "start", "rest"), [
  (1 / 1001, 0.05, "Overconfident by 5.0 ± 1.3 points (corrected for 4 tests): its ECE is 5.0%", "(p ≤ 0.001)."),
  (0.3, -0.05, "Underconfident by 5.0 ± 1.3 points (corrected for 4 tests): ", "that the ECE alone does not show it."),
  (0.012, 0.005, "The confidence is wrong in places: ", "0.5 ± 1.3 points above the accuracy (corrected for 4 tests)."),
  (0.013, 0.0124, "No miscalibration can be shown: ", "1.2 ± 1.3 points above the accuracy (corrected for 4 tests)."),
])
def test_each_of_two_tests_of_calibration_is_reported(p_value, excess, start, rest):
  # These are two of four tests: a p of 1.3% and an interval that excludes 0 at 98% show nothing.
  sentence = reasons.confidence(_one_row(p_value, excess), ("a", "none"))
  assert sentence.startswith(start) and sentence.endswith(rest), sentence


@pytest.mark.parametrize(("seeds", "share"), [(2, 0.3), (3, 0.3), (3, 1.0)])
def test_few_seeds_that_happen_to_agree_do_not_make_an_interval_too_short(seeds, share):
  """With Satterthwaite's degrees of freedom 88, 92 and 95% of them hold the mean; ``share`` is images over seeds."""
  rng, repeats, covered = np.random.default_rng(0), 4000, 0
  for _ in range(repeats):
    of_images, of_seeds = share * rng.normal(), seeds**0.5 * rng.normal(size=seeds)
    mean = of_images + of_seeds.mean()
    interval = over_seeds(evaluation.Interval(mean, mean - 1.96 * share, mean + 1.96 * share), of_images + of_seeds)
    covered += interval.low <= 0 <= interval.high
  assert covered >= 0.94 * repeats  # At 95%, fewer have a chance of 0.2%.
