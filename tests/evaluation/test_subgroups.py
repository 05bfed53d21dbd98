"""Subgroups: against float64 references written from the definitions, and what is said where the truth is known."""

import dataclasses
import math
import types

import numpy as np
import pytest
from scipy import stats

from calib_jax import evaluation
from calib_jax.evaluation import subgroups
from calib_jax.evaluation.predictions.predictions import Subgroups
from calib_jax.evaluation.verdict import decisions
from experiments.estimators.verdicts import share, worse_subgroup
from tests.evaluation.data import values_of


def _draw(rng, sizes=(60, 25, 8), offset=0.1, group_size=0):
  number = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
  confidence = rng.beta(4, 1.2, len(number)).round(2)
  groups = np.arange(len(number)) // group_size if group_size else None
  return values_of(confidence, rng.uniform(size=len(number)) < confidence - offset, groups), Subgroups(
    tuple("abc"), number)


def _reference(values, parts):
  """A sum of signed mean excesses, its standard error and degrees of freedom, one example at a time."""
  confidence, correct = values.confidence[:, 0].astype(float), values.correct[:, 0]
  groups = range(len(confidence)) if values.groups is None else values.groups.tolist()
  rho, estimate, of_two, freedom = values.dependence(), 0.0, 0.0, math.inf
  robust, weighted, independent = {}, {}, 0.0
  for rows, sign in parts:
    excess = [confidence[i] - correct[i] for i in rows]
    mean, units = sum(excess) / len(rows), len({groups[i] for i in rows})
    estimate += sign * mean
    for i, e in zip(rows, excess, strict=True):
      scale, v = math.sqrt(units / (units - 1)) if units > 1 else 1, confidence[i] * (1 - confidence[i])
      robust[groups[i]] = robust.get(groups[i], 0) + sign * scale * (e - mean) / len(rows)
      weighted[groups[i]] = weighted.get(groups[i], 0) + sign * math.sqrt(v) / len(rows)
      independent += v / len(rows) ** 2
    c = sum(confidence[i] for i in rows) / len(rows)
    of_two += (c**2 + (1 - c) ** 2) / units**2
    freedom = min(freedom, units - 1)
  calibrated = (1 - rho) * independent + rho * sum(x**2 for x in weighted.values())
  return estimate, math.sqrt(max(sum(x**2 for x in robust.values()), calibrated) + of_two), freedom


@pytest.mark.parametrize("group_size", [0, 3])
def test_offsets_and_the_test_of_the_worst_are_those_of_their_definitions(group_size):
  rng = np.random.default_rng(1)
  values, of = _draw(rng, (60, 40, 36), group_size=group_size)
  by_name = subgroups.measured(values, of, num_resamples=1)
  worse = []
  for k, name in enumerate(of.names):
    rows, others = (np.flatnonzero(x).tolist() for x in (of.number == k, of.number != k))
    estimate, error, freedom = _reference(values, [(rows, 1)])
    margin = stats.t.ppf(0.975, freedom) * error
    np.testing.assert_allclose(dataclasses.astuple(by_name[name].offset), [
      estimate, max(estimate - margin, -1), min(estimate + margin, 1)], rtol=1e-6)
    above = []
    for sign in (-1, 1):
      change, error, freedom = _reference(values, [(rows, 1), (others, sign)])
      above.append(stats.t.sf(math.copysign(1, estimate) * change / error, freedom))
    worse.append(min(2 * max(above), 1))
    assert by_name[name].offset_of_others.estimate == pytest.approx(_reference(values, [(others, 1)])[0], rel=1e-6)
  order = np.argsort(worse)
  adjusted = [max(min((3 - j) * worse[order[j]], 1) for j in range(i + 1)) for i in range(3)]
  assert [by_name[of.names[k]].worse_p_value for k in order] == pytest.approx(adjusted, rel=1e-5)


def test_the_ece_of_a_subgroup_and_its_noise_floor_are_those_of_its_examples_alone():
  values, of = _draw(np.random.default_rng(2), (300, 80, 1), offset=0.3)
  by_name = subgroups.measured(values, of, num_resamples=400)
  rng = np.random.default_rng(3)
  for k, name in enumerate(of.names):
    confidence, correct = (x[of.number == k, 0].astype(float) for x in (values.confidence, values.correct))
    bins = np.ceil(confidence * 15 - 1e-6).astype(int)
    outcomes = np.concatenate([correct[:, None], rng.uniform(size=(len(confidence), 2000)) < confidence[:, None]], 1)
    errors = sum(abs((confidence[:, None] - outcomes)[bins == j].sum(0)) for j in range(16)) / len(confidence)
    assert by_name[name].ece == pytest.approx(errors[0], rel=1e-5)
    assert by_name[name].floor == pytest.approx(errors[1:].mean(), rel=0.08)
  assert by_name["a"].p_value == pytest.approx(3 / 401)  # The smallest, for three subgroups.


def test_the_smallest_and_the_surest_subgroups_have_finite_numbers_and_the_few_are_not_compared():
  only = subgroups.measured(values_of([0.5], [True]), Subgroups(("a",), np.array([0])))["a"]
  assert (only.offset.low, only.offset.high, only.worse_p_value, only.offset_of_others) == (-1, 1, None, None)
  number = np.repeat([0, 1, 2], [50, 9, 10])
  for confidence, correct in ((np.ones(69), np.ones(69)), (np.ones(69), np.zeros(69)), (np.full(69, 0.5), number == 0)):
    by_name = subgroups.measured(values_of(confidence, correct), Subgroups(tuple("abc"), number))
    assert np.isfinite([[x.ece, x.floor, x.p_value, *dataclasses.astuple(x.offset)] for x in by_name.values()]).all()
    assert {name for name, x in by_name.items() if x.worse_p_value is None} == {"b"} == {
      name for name, x in by_name.items() if x.is_few}
  # Of ten groups with five in each subgroup none is compared, however many examples they have.
  grouped = subgroups.measured(values_of(np.full(200, 0.9), np.arange(200) < 100, np.arange(200) // 20),
                               Subgroups(tuple("ab"), np.arange(200) // 100))
  assert [x.worse_p_value for x in grouped.values()] == [None, None]


def test_copies_say_no_more_than_one_also_where_all_are_right():
  confidence = np.linspace(0.8, 0.95, 60)[:, None]  # Their own spread is far below that of a calibrated model.
  margins = []
  for copies in (1, 5):
    repeated = np.repeat(confidence, copies, 0)
    sample = subgroups._Sample(repeated, repeated - 1, (repeated * (1 - repeated))[:, 0],
                               np.repeat(np.arange(60), copies), float(copies > 1))
    interval = sample.sum_of_means((np.arange(60 * copies), 1)).interval
    margins.append(interval.high - interval.low)
  np.testing.assert_allclose(margins[1], margins[0], rtol=1e-12)


@pytest.mark.slow
def test_a_subgroup_is_seldom_worse_where_all_are_alike_and_mostly_where_one_is_not():
  assert share(worse_subgroup([0.1] * 4), 60) <= 0.05 + 2 * (0.05 * 0.95 / 60) ** 0.5
  assert share(worse_subgroup([0.1] * 5, 40, 4), 40) <= 0.05 + 2 * (0.05 * 0.95 / 40) ** 0.5
  assert share(worse_subgroup([0.15, 0.0, 0.0, 0.0]), 20) >= 0.7
  assert share(worse_subgroup([0.15, -0.15]), 20) <= 0.15  # As far off as each other.


def test_each_of_several_arrays_is_tested_at_its_part_of_the_level():
  worse = subgroups.Subgroup(50, 50, 0.7, 0.2, 0.05, 0.01, evaluation.Interval(0.2, 0.1, 0.3), 0.0, worse_p_value=0.03)
  for arrays, expected in (({"task": {"row": {"x": worse}}}, ["x"]),
                           ({"task": {"row": {"x": worse}}, "source": {"row": {}}}, [])):
    results = types.SimpleNamespace(sections={"subgroups": {"test": arrays}}, first=("test", None),
                                    row_name=lambda row: row)
    assert [name for _, name, _ in decisions.worse_subgroups(results, "row")] == expected


@pytest.mark.parametrize(("n", "offset"), [(60, 0.02), (20, 0.05), (200, 0.02)])
def test_intervals_of_nearly_certain_subgroups_hold_the_offset(n, offset):
  rng, covered, repeats = np.random.default_rng(6), 0, 300
  for _ in range(repeats):
    confidence = 1 - 10 ** rng.uniform(-4, -1, n)
    interval = subgroups.measured(values_of(confidence, rng.uniform(size=n) < confidence - offset),
                                  Subgroups(("a",), np.zeros(n, int)), num_resamples=1)["a"].offset
    covered += interval.low <= offset <= interval.high
  assert covered >= repeats * (0.95 - 2 * (0.05 * 0.95 / repeats) ** 0.5), covered
