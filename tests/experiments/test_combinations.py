"""The search for a combination that no paper tried: its space, what it compares, and its page."""

import argparse
import itertools

import numpy as np
import pytest

from calib_jax._system.errors import UserError
from experiments import combinations
from experiments.common import comparison, halving, rows, scales, settings


def test_every_choice_is_a_config_and_names_say_which():
  base = scales.base(argparse.Namespace(scale="tiny"))
  for part, choices in combinations.SPACE.items():
    digests = {settings.digest(settings.changed(base, halving.fields(combinations.SPACE, {part: name})))
               for name in choices}
    assert len(digests) == len(choices), part
  names = [name for choices in combinations.SPACE.values() for name in choices if name != "none"]
  assert len(set(names)) == len(names)
  choice = {"augmentation": "MIT", "loss": "none", "weights": "SAM", "decay": "decay 5e-4", "rate": "none"}
  found = combinations._fields(halving.text(choice))
  assert found == settings.flat(halving.fields(combinations.SPACE, choice)) and found["optimizer.sharpness"] == 0.1


def test_losses_and_labels_that_do_not_fit_are_no_error(monkeypatch):
  def refuse(config):
    raise UserError("labels are mixed")

  monkeypatch.setattr(combinations.tuning, "validation_predictions", refuse)
  assert combinations.validated(settings.changed(scales.base(argparse.Namespace(scale="tiny")), {"num_seeds": 2})) == [
    (float("inf"), 0.0)] * 2


def test_the_page_compares_with_the_best_single_method_of_the_papers(monkeypatch, tmp_path):
  def made(method, nll, accuracy, **more):
    rng = np.random.default_rng(len(method))
    return [{"task": "board", "method": method, "calibrator": combinations.LABEL, "seed": str(i),
             "nll": str(nll + 0.001 * rng.normal()), "accuracy": str(accuracy + 0.001 * rng.normal()), "ece": "0.01",
             "floor": "0.008", **more} for i in range(5)]

  board = [*made("cross entropy", 0.5, 0.8), *made("MIT", 0.4, 0.7), *made("SAM", 0.1, 0.8)]
  monkeypatch.setattr(combinations, "RESULTS", tmp_path)
  rows.write(tmp_path / "leaderboard_board.csv", board)
  names = {"focal, gamma 1, SAM": 0.3, "MIT, EMA": 0.395, "MIT, SAM, ensemble of 5": 0.3}
  text = combinations.findings([row for name, nll in names.items() for row in made(name, nll, 0.8)])
  lines = [[x.strip() for x in line.strip("|").split("|")] for line in text]
  cells = {cell[0]: cell for cell in lines if len(cell) > 5}
  assert "is MIT" in text[2]  # SAM, of which no paper's table has a row, is not among the single methods.
  assert cells["focal, gamma 1, SAM"][1:3] == ["2", "1"] and cells["focal, gamma 1, SAM"][-1] == "met"
  assert cells["MIT, EMA"][-1] == "missed" and cells["MIT, SAM, ensemble of 5"][1:3] == ["20", "5"]


@pytest.mark.parametrize("effect", [-0.05, -0.02, 0.0])
def test_an_aim_that_is_just_missed_is_rarely_called_met(effect):
  """At the target itself, the interval lies below it in half of 5% of the cases."""
  rng, target, met = np.random.default_rng(0), -0.05, 0
  for _ in range(400):
    a, b = 1 + effect + 0.02 * rng.normal(size=10), np.ones(10)
    apart = comparison.paired(*({str(i): x for i, x in enumerate(values)} for values in (a, b)))
    equal = comparison.Difference(0, -0.01, 0.01, 0, 1, 0)
    met += combinations.judged(apart, equal, target) == "met"
  assert met / 400 < (0.05 if effect == target else 0.01)


def test_few_of_all_combinations_are_drawn():
  assert len(list(itertools.product(*combinations.SPACE.values()))) > 1000
  drawn = halving.draw(combinations.SPACE, 81)
  assert len({halving.text(choice) for choice in drawn}) == 81
