"""Intervals of many examples, from resamples of blocks of them: they are those of resamples of examples."""

import dataclasses

import jax
import numpy as np
import pytest

from calib_jax.evaluation import class_errors, measures
from calib_jax.evaluation.predictions import calibrated
from calib_jax.evaluation.results import Values
from calib_jax.intervals import resamples
from experiments.estimators import simulation
from tests.evaluation.data import predictions

DRAWS, N, BLOCKS, RESAMPLES = 50, 1200, 300, 60
EXPONENTS = {"calibrated": (1.0, 1.0), "overconfident": (1.3, 1.3)}
MEASURED = ("ece", "ece_equal_mass_l2", "ks", "accuracy", "nll", "aurc")


def _rows(seed):
  """Two models of the same examples."""
  rows = {}
  none = class_errors.ClassSums(np.full((2, 2, 15), 1e-3, np.float32), np.full(2, 1e-3, np.float32))
  for name, exponents in EXPONENTS.items():
    drawn = simulation.sample(jax.random.key(seed), (N, 1), simulation.gaussian_mixture, exponents)
    confidence, correct, nll = (np.asarray(drawn[x]) for x in ("confidence", "correct", "nll"))
    rows[name] = Values(confidence, correct == 1, nll, nll, nll, np.zeros((N, 1), int),
                        {"equal_width": [none], "equal_mass": [none]})
  return rows


def _intervals(rows, block, key):
  """The intervals of each row and of the difference of the two, by name."""
  ordered = measures._ordered(rows, 15, block)
  errors, means = (f(rows, ordered, block, key, RESAMPLES) for f in (measures._errors, measures._joint))
  by_row = {row: errors[0][row] | means[0][row] for row in rows}
  return by_row, errors[1]["overconfident", "calibrated"] | means[1]["overconfident", "calibrated"]


@pytest.mark.slow
def test_intervals_from_blocks_cover_as_often_and_are_as_wide_as_those_from_examples(monkeypatch):
  monkeypatch.setattr(resamples, "CELLS", 150)  # Six to nine examples each.
  truth = {row: simulation.limits(simulation.gaussian_mixture, exponents) for row, exponents in EXPONENTS.items()}
  covered, width = {}, {}
  for seed in range(DRAWS):
    rows, key = _rows(seed), jax.random.key(seed)
    for kind, block in (("examples", None), ("blocks", resamples.random_blocks(
        N, None, BLOCKS, np.random.default_rng(seed)))):
      by_row, difference = _intervals(rows, block, key)
      cells = {(row, name): (by_row[row][name], truth[row][name]) for row in rows for name in MEASURED}
      cells |= {("difference", name): (difference[name], truth["overconfident"][name] - truth["calibrated"][name])
                for name in ("ece", "nll")}
      for cell, (interval, value) in cells.items():
        covered.setdefault((kind, *cell), []).append(interval.low <= value <= interval.high)
        width.setdefault((kind, *cell), []).append(interval.high - interval.low)
  for _, *cell in [key for key in covered if key[0] == "examples"]:
    examples, blocks = (np.mean(width[kind, *cell]) for kind in ("examples", "blocks"))
    assert abs(blocks / examples - 1) < 0.06, (cell, examples, blocks)
    # At 95%, fewer than 42 of 50 have a chance of 1e-3.
    assert sum(covered["blocks", *cell]) >= 42, (cell, sum(covered["examples", *cell]), sum(covered["blocks", *cell]))


def test_blocks_hold_groups_whole_and_differ_by_one_of_them(monkeypatch):
  groups = np.random.default_rng(0).permutation(np.repeat(np.arange(1000), 3))
  monkeypatch.setattr(resamples, "MOST_EXAMPLES", 2999)
  assert resamples.blocks_of(2999, groups[:2999]) is None
  block = resamples.blocks_of(3000, groups)
  assert all(len(set(block[groups == group])) == 1 for group in range(0, 1000, 100))
  assert set(np.bincount(block)) == {3, 6} and len(np.bincount(block)) == resamples.BLOCKS
  few = resamples.blocks_of(3000, groups // 100)
  assert len(set(zip(few, groups // 100, strict=True))) == 10


@pytest.mark.parametrize(("num_seeds", "groups"), [
  pytest.param(1, None, marks=pytest.mark.slow), (2, np.arange(N) // 2)])
def test_more_examples_than_are_drawn_one_by_one_are_measured_in_blocks(num_seeds, groups, monkeypatch):
  rows = {row: dataclasses.replace(values, groups=groups, **{
    name: np.repeat(getattr(values, name), num_seeds, axis=1)
    for name in ("confidence", "correct", "nll", "brier", "entropy", "predicted")}, class_sums={
      name: sums * num_seeds for name, sums in values.class_sums.items()}) for row, values in _rows(0).items()}
  expected, differences = measures.measure(rows, num_resamples=100)
  monkeypatch.setattr(resamples, "MOST_EXAMPLES", 1000)
  of_blocks, differences_of_blocks = measures.measure(rows, num_resamples=100)
  for row, table in expected.items():
    for name, estimate in table.items():
      np.testing.assert_allclose(of_blocks[row][name].value, estimate.value, rtol=1e-12, err_msg=name)
      assert of_blocks[row][name].low <= of_blocks[row][name].estimate <= of_blocks[row][name].high
      if name in ("ece", "nll", "aurc"):
        width, width_of_blocks = (x[row][name].high - x[row][name].low for x in (expected, of_blocks))
        np.testing.assert_allclose(width_of_blocks, width, rtol=0.3, err_msg=name)  # Of 100 resamples.
    assert of_blocks[row]["ece"] != table["ece"] and of_blocks[row]["aurc"] != table["aurc"]
  (pair,), (changes,) = differences, differences_of_blocks.values()
  np.testing.assert_allclose(changes["nll"].estimate, differences[pair]["nll"].estimate, rtol=1e-9)


@pytest.mark.parametrize("logits", [lambda z: z, np.round, np.zeros_like])  # Without ties, with some, all the same.
def test_edges_of_the_bins_of_many_probabilities_are_those_of_sorting(logits, monkeypatch):
  part = predictions(3)
  part = part._replace(logits=logits(part.logits))
  source = calibrated.Calibrated.of(part)
  expected = class_errors._equal_mass_edges(source, 15)
  monkeypatch.setattr(class_errors, "SORTED", part.logits.size - 1)
  monkeypatch.setattr(calibrated, "CHUNK", 100)  # Several chunks, of which the last two share rows.
  ranks = np.array([0, 7, len(part.labels) - 1])
  selected = class_errors._selected(source, ranks)
  if logits is np.zeros_like:
    assert selected is None  # They are sorted in several passes.
  else:
    np.testing.assert_array_equal(selected, np.sort(source.probs(slice(None), source.log_probs()), axis=0)[ranks])
  np.testing.assert_array_equal(class_errors._equal_mass_edges(source, 15), expected)
