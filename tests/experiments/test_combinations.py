"""The search for a combination that no paper tried: its space, what it compares, and its page."""

import argparse

import numpy as np
import pytest

from calib_jax._system.errors import UserError
from experiments import combinations
from experiments.common import comparison, halving, rows, scales, settings, sweep
from experiments.leaderboard import combination_page
from experiments.leaderboard import combination_space as space
from experiments.leaderboard.methods import COMBINED


def test_every_choice_is_a_config_and_names_say_which():
  base = scales.base(argparse.Namespace(scale="tiny"))
  for part, choices in space.SPACE.items():
    digests = {settings.digest(settings.changed(base, halving.fields(space.SPACE, {part: name})))
               for name in choices}
    assert len(digests) == len(choices), part
  names = [name for choices in space.SPACE.values() for name in choices if name != "none"]
  assert len(set(names)) == len(names)
  choice = {"augmentation": "MIT", "loss": "none", "weights": "SAM", "decay": "decay 5e-4", "rate": "none"}
  fields = space.fields_of(halving.text(choice))
  assert fields == settings.flat(halving.fields(space.SPACE, choice)) and fields["optimizer.sharpness"] == 0.1


def test_losses_and_labels_that_do_not_fit_are_no_error(monkeypatch):
  def refuse(config):
    raise UserError("labels are mixed")

  monkeypatch.setattr(combinations.tuning, "validation_predictions", refuse)
  assert combinations.validated(settings.changed(scales.base(argparse.Namespace(scale="tiny")), {"num_seeds": 2})) == [
    (float("inf"), 0.0)] * 2


def _difference(mean, low, high):
  return comparison.Difference(mean, low, high, 0, 1, 0)


_LOW, _EQUAL, _HIGH = (_difference(x, x - 0.01, x + 0.01) for x in (-0.05, 0.0, 0.05))
_UNKNOWN = _difference(0.0, np.nan, np.nan)


@pytest.mark.parametrize(("loss", "accuracy", "excess", "cost", "target", "expected"), [
  (_LOW, _EQUAL, _EQUAL, 1.0, -0.02, "met"), (_LOW, _HIGH, _LOW, 1.0, -0.02, "met"),
  (_LOW, _EQUAL, _EQUAL, 1.0, -0.04, "met"),  # The upper end is at the target.
  (_LOW, _EQUAL, _EQUAL, 2.0, -0.02, "costs more"), (_LOW, _EQUAL, _EQUAL, 4 / 3, -0.02, "costs more"),
  (_LOW, _LOW, _EQUAL, 2.0, -0.02, "missed"), (_LOW, _LOW, _EQUAL, 1.0, -0.02, "missed"),
  (_LOW, _EQUAL, _HIGH, 1.0, -0.02, "missed"), (_LOW, _EQUAL, _HIGH, 2.0, -0.02, "missed"),
  (_EQUAL, _EQUAL, _EQUAL, 1.0, -0.02, "missed"), (_EQUAL, _EQUAL, _EQUAL, 2.0, -0.02, "missed"),
  (_LOW, _EQUAL, _EQUAL, 1.0, -0.045, "cannot tell"), (_LOW, _EQUAL, _EQUAL, 2.0, -0.045, "cannot tell"),
  (_UNKNOWN, _EQUAL, _EQUAL, 1.0, -0.02, "cannot tell"), (_LOW, _UNKNOWN, _EQUAL, 1.0, -0.02, "cannot tell"),
  (_LOW, _EQUAL, _UNKNOWN, 1.0, -0.02, "cannot tell"), (_UNKNOWN, _LOW, _EQUAL, 1.0, -0.02, "missed")])
def test_every_condition_of_the_aim_is_judged(loss, accuracy, excess, cost, target, expected):
  assert combination_page.judged(loss, accuracy, excess, cost, target) == expected


def test_a_page_is_made_anew_without_a_search(monkeypatch):
  def train(*arguments, **options):
    raise AssertionError("trains")

  monkeypatch.setattr(combinations.halving, "halve", train)
  options = sweep.parse(combinations.EXPERIMENT, ["--data=fashion_mnist.npz", "--only=nothing"])
  assert combinations.methods(options) == []
  with pytest.raises(AssertionError, match="trains"):
    combinations.methods(sweep.parse(combinations.EXPERIMENT, ["--data=fashion_mnist.npz", "--only", "AugMix"]))


def test_costs_stand_beside_each_row():
  row = {"method": "AugMix, SAM, ensemble of 5", "chosen": "{}"}
  assert combination_page.cost_of(row) == ("30", "5")  # Three views, each step twice, five networks.


def test_the_space_has_the_strengths_that_leaderboards_choose_under_names_that_committed_rows_keep():
  assert space.fields_of("RandAugment, EMA")["augmentation.magnitude"] == 3
  assert space.fields_of("AugMix, EMA")["augmentation.severity"] == 1
  chosen = {"RandAugment": "magnitude", "AugMix": "severity"}
  for name, field in chosen.items():
    strongest = COMBINED[name].search[f"augmentation.{field}"][-1]
    assert space.fields_of(f"{name}, {field} {strongest:g}, EMA")[f"augmentation.{field}"] == strongest


def test_candidates_take_no_longer_than_a_plain_network(monkeypatch):
  drawn = []
  monkeypatch.setattr(combinations.halving, "halve",
                      lambda config, space, candidates, *arguments, **options: drawn.extend(candidates) or [])
  combinations.methods(sweep.parse(combinations.EXPERIMENT, ["--data=fashion_mnist.npz", "--candidates=200"]))
  of_parts = {(choice["augmentation"], choice["weights"]) for choice in drawn}
  assert ("AugMix, one view", "EMA") in of_parts and not {"MIT", "AugMix", "AugMix, severity 3"} & {
    augmentation for augmentation, _ in of_parts}
  assert not any(weights == "SAM" for _, weights in of_parts)


def test_the_best_is_also_trained_without_each_of_its_parts(monkeypatch):
  choice = dict.fromkeys(space.SPACE, "none") | {"loss": "SB-ECE", "weights": "EMA", "decay": "decay 2e-3"}
  other = dict.fromkeys(space.SPACE, "none") | {"loss": "SB-ECE", "weights": "EMA"}
  plain = dict.fromkeys(space.SPACE, "none")
  monkeypatch.setattr(combinations.halving, "halve", lambda *arguments, **options: [
    halving.Standing(x, loss, 0.8, 4) for x, loss in ((choice, 0.3), (other, 0.4), (plain, 0.5))])
  made = combinations.methods(sweep.parse(combinations.EXPERIMENT, ["--data=fashion_mnist.npz"]))
  whole, less = "SB-ECE, EMA, decay 2e-3", ["EMA, decay 2e-3", "SB-ECE, decay 2e-3"]
  assert [(x.name, x.members) for x in made] == [
    (whole, 1), ("SB-ECE, EMA", 1), (f"{whole}, ensemble of 5", 5), ("SB-ECE, EMA, ensemble of 5", 5),
    *((name, 1) for name in less)]
  assert made[-1].config().optimizer.l2 == 2e-3 and not made[-1].config().training.average
  assert space.one_less(plain | {"loss": "SB-ECE"}) == {}  # Without it, it is cross entropy.


def test_the_best_of_the_papers_is_also_trained_with_the_decay_and_the_rate_of_the_best(monkeypatch, tmp_path):
  monkeypatch.setattr(combination_page, "RESULTS", tmp_path)
  methods = {"cross entropy": (0.5, "{}"), "MIT": (0.4, '{"augmentation.alpha": 0.25}'),
             "weight decay": (0.45, '{"optimizer.l2": 0.003}')}

  def board(**nll):
    rows.write(tmp_path / "leaderboard_board.csv", [
      {"task": "", "method": name, "calibrator": space.LABEL, "seed": seed, "nll": nll.get(name, mean),
       "chosen": chosen} for name, (mean, chosen) in methods.items() for seed in range(2)])

  board()
  choice = space.choice_of("SB-ECE, EMA, decay 2e-3")
  name, single, fields = combination_page.papers_best_with("board", choice)
  assert (name, single) == ("MIT with decay 2e-3", "MIT")
  assert fields == {"augmentation.alpha": 0.25, "optimizer.l2": 2e-3}
  assert combination_page.papers_best_with("board", choice | {"decay": "none"}) is None
  board(**{"weight decay": 0.1})  # A method that sets its own decay keeps it.
  assert combination_page.papers_best_with("board", choice) is None

  monkeypatch.setattr(combinations.halving, "halve", lambda *arguments, **options: [
    halving.Standing(choice, 0.3, 0.8, 4)])
  monkeypatch.setattr(combinations.combination_page, "papers_best_with", lambda task, choice: (name, single, fields))
  made = combinations.methods(sweep.parse(combinations.EXPERIMENT, ["--data=fashion_mnist.npz", "--only=MIT with"]))
  config = made[-1].config()
  assert made[-1].name == name and config.augmentation.name == "mixup_inference"
  assert config.augmentation.alpha == 0.25 and config.optimizer.l2 == 2e-3
