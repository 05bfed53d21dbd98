"""Weights of examples: whole ones are repeated rows, and all numbers are those of definitions in float64."""

import dataclasses
import functools
import json

import numpy as np
import pytest
from scipy import special

from calib_jax import calibrators, evaluation, metrics
from calib_jax._system.errors import UserError
from calib_jax.calibrators.base import NoWeights
from calib_jax.cli import evaluate as command
from calib_jax.evaluation import measures, reports, sections, subgroups
from calib_jax.evaluation.predictions.predictions import Subgroups
from calib_jax.evaluation.reports import formats
from calib_jax.evaluation.resampled_errors import MOST, UNIT, Ordered, binned_error, units
from calib_jax.evaluation.sections.options import of_values
from calib_jax.intervals import resamples
from calib_jax.intervals.groups import effective_number, standard_error
from tests.evaluation.data import predictions
from tests.evaluation.predictions.data import LABELS, LOGITS, load, written
from tests.metrics import references

RNG = np.random.default_rng(0)
N = 300
COPIES = RNG.integers(1, 4, N)
SOME = RNG.gamma(0.7, size=N) + 1e-3
PART = predictions(1.5, N)._replace(logits=np.round(predictions(1.5, N).logits, 1))  # Ties.
OF = Subgroups(tuple("abc"), RNG.integers(0, 3, N))
REPEATED = PART._replace(logits=np.repeat(PART.logits, COPIES, axis=0), labels=np.repeat(PART.labels, COPIES))
PARTS = {"plain": PART, "repeated": REPEATED, **{kind: PART._replace(weights=weights) for kind, weights in (
  ("ones", np.ones(N)), ("whole", COPIES), ("scaled", COPIES / 7), ("some", SOME))}}


def _values(part, **options):
  return evaluation.per_example([part], num_bins=15, num_redraws=20, **options)


@functools.cache
def _measured(kind):
  return evaluation.measure({"a": _values(PARTS[kind])}, num_resamples=200)[0]["a"]


@pytest.mark.parametrize("kind", ["whole", "scaled"])
def test_whole_weights_are_repeated_rows_in_every_estimate(kind):
  weighted, repeated = _measured(kind), _measured("repeated")
  left_out = {"debiased", "sweep", "classwise_equal_mass", "aurc", "excess_aurc", "coverage_at_1", "coverage_at_5"}
  assert repeated.keys() - weighted.keys() == left_out
  for name, estimate in weighted.items():
    # Groups of equal mass of a scaled weight may divide a row, where those of copies do not.
    tolerance = 0.05 if kind == "scaled" and name in ("adaptive", "ece_equal_mass_l2") else 1e-5
    assert estimate.value == pytest.approx(repeated[name].value, rel=tolerance), name
    assert estimate.low <= estimate.estimate <= estimate.high


def test_errors_and_means_are_those_of_their_definitions():
  values, estimates = _values(PART), _measured("some")
  confidence, correct = values.confidence[:, 0], values.correct[:, 0]
  probs = special.softmax(PART.logits.astype(float), axis=1)
  expected = {
    **{name: np.average(getattr(values, name.replace("accuracy", "correct"))[:, 0], weights=SOME)
       for name in ("accuracy", "nll", "brier", "entropy")},
    "ece": references.calibration_error(confidence, correct, weights=SOME),
    "mce": references.calibration_error(confidence, correct, norm="max", weights=SOME),
    "ks": references.ks_calibration_error(confidence, correct, weights=SOME),
    "classwise": references.classwise_calibration_error(probs, PART.labels, weights=SOME)}
  for name, value in expected.items():
    assert estimates[name].value == pytest.approx(value, rel=2e-4), name


def test_blocks_of_many_examples_have_the_same_values(monkeypatch):
  single = _measured("some")
  monkeypatch.setattr(resamples, "MOST_EXAMPLES", 100)
  for name, estimate in _measured.__wrapped__("some").items():
    assert estimate.value == pytest.approx(single[name].value, rel=1e-6), name
    # Blocks of one or two examples and fine cells change an interval by what other draws do.
    assert estimate.high - estimate.low == pytest.approx(single[name].high - single[name].low, rel=0.5), name


def test_a_weight_counts_for_as_much_as_its_ratio_and_a_row_that_is_left_out_leaves_nothing_behind():
  for weights in (SOME, 1e-9 * SOME, 1e12 * SOME):
    np.testing.assert_array_equal(units(weights), units(SOME))
  assert abs(units(SOME) / units(SOME).sum() - SOME / SOME.sum()).max() < 1e-8 and units(SOME).sum() < MOST
  ordered = measures._ordered({"a": _values(PART._replace(weights=SOME))}, 15, None)["a"][0]
  every, half = np.ones((1, N), bool), RNG.random((1, N)) < 0.5
  correct = RNG.random(N) < 0.5
  rest = ordered.sums(every, correct).without(ordered.sums(half, correct))
  np.testing.assert_array_equal(rest.size, ordered.sums(~half, correct).size)
  np.testing.assert_array_equal(rest.gap, ordered.sums(~half, correct).gap)


@pytest.mark.parametrize("by_confidence", [False, True])
def test_p_values_of_calibrated_models_are_as_small_as_they_say(by_confidence):
  rng, draws, small = np.random.default_rng(1), 400, 0
  for _ in range(draws):
    confidence = (1 / (1 + np.exp(-1.2 - 1.5 * rng.normal(size=N)))).astype(np.float32)
    weights = np.exp(rng.normal(size=N) + by_confidence * 3 * confidence)
    ordered, every = Ordered(confidence, 15, units(weights)), np.ones((1, N), bool)
    outcomes = rng.random((100, N), np.float32) < confidence  # The first is the observed one.
    errors = binned_error(ordered.sums(every, outcomes))
    small += np.sum(errors[1:] >= errors[0]) < 5
  assert abs(small / draws - 0.05) <= 3 * (0.05 * 0.95 / draws) ** 0.5


def test_weights_that_leave_fewer_than_ten_examples_decide_nothing_and_have_no_interval():
  heavy = np.where(np.arange(N) < 8, 1e6, 1.0)
  part = PART._replace(weights=heavy, subgroups={"part": OF})
  results = evaluation.judge({"mine": evaluation.Model({"test": [part]}, {})}, num_resamples=20)
  assert results.verdict.first_line == (
    f"Nothing is decided: weights make {N:,} examples worth 8.0 equal ones, and intervals need 10 or more.")
  text = formats.text(results)
  assert "[" not in text and "Without intervals, which need 10 or more of them." in text
  assert not any("[" in cell for table in sections.tables(results) for row in table.rows for cell in row)


@pytest.mark.parametrize("groups", [None, np.arange(N) // 3])
def test_offsets_of_all_of_classes_and_of_subgroups_are_weighted_means(groups):
  values = _values(PART._replace(weights=SOME, groups=groups))
  excess, w = (values.confidence - values.correct)[:, 0].astype(float), SOME / SOME.sum()
  assert values.excess().estimate == pytest.approx(w @ excess)
  unit = np.arange(N) if groups is None else groups
  sums = np.bincount(unit, w * (excess - w @ excess))
  error = np.sqrt(np.sum(sums**2) * (1 if groups is None else len(sums) / (len(sums) - 1)))
  assert standard_error(excess, groups, SOME) == pytest.approx(error)
  assert values.num_units == pytest.approx(1 / np.sum(np.bincount(unit, w) ** 2)) == effective_number(groups, SOME)
  gaps = subgroups.class_gaps(values, 3)
  for k in range(3):
    rows = values.predicted[:, 0] == k
    assert gaps.gap[k] == pytest.approx(np.average(excess[rows], weights=SOME[rows]))
    assert gaps.share[k] == pytest.approx(w[rows].sum())
  for name, subgroup in subgroups.measured(values, OF, num_resamples=20).items():
    rows = OF.number == "abc".index(name)
    assert subgroup.offset.estimate == pytest.approx(np.average(excess[rows], weights=SOME[rows]), rel=1e-6)
    assert subgroup.offset_of_others.estimate == pytest.approx(np.average(excess[~rows], weights=SOME[~rows]), rel=1e-6)
    assert subgroup.accuracy == pytest.approx(np.average(values.correct[rows, 0], weights=SOME[rows]))
    assert subgroup.ece == pytest.approx(references.calibration_error(
      values.confidence[rows, 0], values.correct[rows, 0], weights=SOME[rows]), rel=1e-4)


def test_equal_weights_change_no_number():
  def numbers(x):
    return [number for number in dataclasses.astuple(dataclasses.replace(x, per_seed=None)) if number is not None]

  for name, estimate in _measured("ones").items():
    assert numbers(estimate) == pytest.approx(numbers(_measured("plain")[name]), rel=1e-5, abs=1e-7), name
  plain = _values(PART)
  weighted = dataclasses.replace(plain, weights=np.full(N, 3.0))
  assert dataclasses.astuple(weighted.excess()) == pytest.approx(dataclasses.astuple(plain.excess()), rel=1e-5)
  for new, old in zip(subgroups.class_gaps(weighted, 3), subgroups.class_gaps(plain, 3), strict=True):
    np.testing.assert_allclose(new / new.sum(), old / old.sum(), rtol=1e-6)
  new, old = (subgroups.measured(x, OF, num_resamples=20) for x in (weighted, plain))
  assert list(new) == list(old)
  for name, subgroup in old.items():
    np.testing.assert_allclose(np.hstack(dataclasses.astuple(new[name])), np.hstack(dataclasses.astuple(subgroup)),
                               rtol=1e-5)


def test_the_accuracy_relative_to_guessing_is_that_of_repeated_rows():
  masked = PART.logits.copy()
  masked[np.arange(N), (PART.labels + 1) % 3] = np.where(np.arange(N) % 2, -np.inf, masked[0, 0])
  part = PART._replace(logits=masked)
  copies = part._replace(logits=np.repeat(masked, COPIES, axis=0), labels=REPEATED.labels)
  weighted, repeated = (of_values(_values(x)) for x in (part._replace(weights=COPIES), copies))
  for name in ("mean", "accuracy", "guess"):
    assert getattr(weighted, name) == pytest.approx(getattr(repeated, name), rel=1e-6)
  assert weighted.above_guessing.estimate == pytest.approx(repeated.above_guessing.estimate)


def test_calibrators_are_fitted_with_weights_where_they_take_them_and_it_is_said_where_not():
  def fit(logits, labels, *, weights=None):
    return {"weights": weights}

  def fit_without(logits, labels, *, weights=None):
    if weights is not None:
      raise NoWeights("mine takes no weights.")
    return {"weights": None}

  cautions, apply = [], calibrators.identity().apply
  fitted = evaluation.fit([PARTS["scaled"]], {
    "takes": calibrators.Calibrator(fit, apply), "mine": calibrators.Calibrator(fit_without, apply)}, cautions.append)
  np.testing.assert_allclose(fitted["takes"][1][0]["weights"], COPIES / COPIES.mean(), rtol=1e-6)
  assert fitted["mine"][1] == [{"weights": None}]
  assert cautions == ["caution: mine takes no weights, so it is fitted without them."]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "npz"])
def test_weights_are_read_of_every_file_and_rows_of_weight_0_are_left_out(suffix, tmp_path):
  columns = {"label": LABELS, **{f"logit_{k}": LOGITS[:, k] for k in range(3)}}
  if suffix == "npz":
    columns = {"labels": LABELS, "logits": LOGITS}
  weights = np.where(np.arange(12) == 4, 0, np.arange(12) / 4 + 0.5)
  part, notes = load(tmp_path, columns | {"w": weights}, suffix, weights="w")
  assert "1 of its 12 rows have the weight 0 and are left out" in notes
  np.testing.assert_allclose(part.weights, np.delete(weights, 4) / weights.max(), rtol=1e-6)
  np.testing.assert_array_equal(part.labels, np.delete(LABELS, 4))
  np.testing.assert_allclose(part.logits, np.delete(LOGITS, 4, axis=0), rtol=1e-6)
  part, notes = load(tmp_path, columns | {"w": np.full(12, 2.5)}, suffix, weights="w")
  assert part.weights is None and "all weights 'w' are equal, so they change nothing" in notes
  for wrong, message in ((np.nan, "that of row 3, counted from 0, is"), (-1.0, "that of row 3, counted from 0, is")):
    with pytest.raises(UserError, match=message):
      load(tmp_path, columns | {"w": np.where(np.arange(12) == 3, wrong, weights)}, suffix, weights="w")


@pytest.mark.parametrize(("arrays", "message"), [
  ({}, "the weights 'w' must be 12 numbers, one a row: the file holds nothing of that name"),
  ({"w": np.ones(6)}, "must be 12 numbers, one a row: the file holds float64 of shape"),
  ({"w": np.zeros(12)}, "all weights 'w' are 0, so that no row is left"),
  ({"w": np.array(["1"] * 11 + ["x"])}, "that of row 11, counted from 0, is 'x'")])
def test_weights_that_are_none_are_refused_in_a_sentence(arrays, message, tmp_path, capsys):
  path = written(tmp_path / "p.npz", {"labels": LABELS, "logits": LOGITS} | arrays)
  assert command.main(["--test", str(path), "--weights=w"]) == 2
  assert message in capsys.readouterr().err


def test_the_command_says_what_is_weighted_and_refuses_what_counts_examples(tmp_path, capsys):
  for name, part in (("val", predictions(2.0, N, np.random.default_rng(1))), ("test", PART)):
    written(tmp_path / f"{name}.npz", {"logits": part.logits, "labels": part.labels, "w": SOME, "task": OF.number})
  command_line = ["--fit", str(tmp_path / "val.npz"), "--test", str(tmp_path / "test.npz"), "--weights=w"]
  assert command.main([*command_line, "--by=task", "--num_resamples=20", "--json", str(tmp_path / "r.json")]) == 0
  worth = effective_number(None, SOME)
  assert f"N = 300, K = 3, weights that make them worth {worth:.1f} equal examples" in capsys.readouterr().out
  content = json.loads((tmp_path / "r.json").read_text())
  row = content["results"]["test"]["test"]["none"]
  assert content["settings"]["sets"]["test"]["num_effective"] == pytest.approx(worth) and "aurc" not in row
  assert row["accuracy"]["value"] == pytest.approx(np.average(_values(PART).correct[:, 0], weights=SOME))
  for arguments, message in ((["--columns=aurc"], "aurc counts examples"), (["--risk=0.1"], "--weights cannot be"),
                             (["--compare", str(tmp_path / "val.npz")], "val has other examples than test")):
    assert command.main([*command_line, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_points_of_the_diagram_are_weighted_and_its_intervals_are_of_the_effective_number():
  values = _values(PART)
  axes = reports.reliability_diagram(values.confidence[:, 0], values.correct[:, 0], num_bins=5, weights=SOME)
  expected = metrics.reliability(values.confidence[:, 0], values.correct[:, 0], num_bins=5, weights=SOME)
  points = np.concatenate([np.array(line.get_xydata()) for line in axes.lines if line.get_marker() == "o"])
  used = np.asarray(expected.counts) > 0
  np.testing.assert_allclose(points[np.argsort(points[:, 0])], np.stack(
    [expected.mean_confidence, expected.accuracy], axis=1)[used], rtol=1e-4)
  counts, *_ = reports.reliability._bins(values.confidence[:, 0], values.correct[:, 0], 5, False, SOME)
  index = np.clip(np.ceil(values.confidence[:, 0] * 5).astype(int) - 1, 0, 4)
  np.testing.assert_allclose(counts[used], (np.bincount(index, SOME, 5) ** 2)[used] / np.bincount(
    index, SOME**2, 5)[used], rtol=2e-5)


@pytest.mark.parametrize("heavy", [2.0**40, 2.0**26, 0.37e9])
def test_a_row_of_nearly_all_the_weight_may_be_drawn_fifteen_times(heavy):
  weights = units(np.array([heavy, 1.0, 2.0]))
  ordered = Ordered(np.float32([0.25, 0.5, 0.75]), 15, weights)
  sums = ordered.sums(np.array([[15, 1, 0]]), np.array([True, False, False]))
  assert sums.size[0, -1] == 15 * int(weights[0]) + int(weights[1])
  expected = 15.0 * weights[0] * (0.25 - 1) + weights[1] * 0.5
  assert sums.gap[0, -1] / UNIT == pytest.approx(expected, rel=1e-6)
