"""The search for a combination that no paper tried: its space, what it compares, and its page."""

import argparse
import itertools
import json
import re

import numpy as np
import pytest

from calib_jax._system.errors import UserError
from experiments import combinations
from experiments.common import comparison, halving, report, rows, scales, settings, sweep
from experiments.common.commands import RESULTS
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
  found = space.fields_of(halving.text(choice))
  assert found == settings.flat(halving.fields(space.SPACE, choice)) and found["optimizer.sharpness"] == 0.1


def test_losses_and_labels_that_do_not_fit_are_no_error(monkeypatch):
  def refuse(config):
    raise UserError("labels are mixed")

  monkeypatch.setattr(combinations.tuning, "validation_predictions", refuse)
  assert combinations.validated(settings.changed(scales.base(argparse.Namespace(scale="tiny")), {"num_seeds": 2})) == [
    (float("inf"), 0.0)] * 2


def _made(method, nll, accuracy, task="board", ece=0.008, **more):
  rng = np.random.default_rng(len(method))
  return [{"task": task, "method": method, "calibrator": space.LABEL, "seed": str(i),
           "nll": str(nll + 0.001 * rng.normal()), "accuracy": str(accuracy + 0.001 * rng.normal()),
           "ece": str(ece + 0.001 * rng.normal()), "floor": "0.008", "chosen": "{}", **more} for i in range(5)]


def _page(monkeypatch, tmp_path, board, found):
  """The cells of each row of the page, and its text."""
  monkeypatch.setattr(combination_page, "RESULTS", tmp_path)
  rows.write(tmp_path / "leaderboard_board.csv", board)
  text = combination_page.findings(found)
  lines = [[x.strip() for x in line.strip("|").split("|")] for line in text]
  return {cell[0]: cell for cell in lines if len(cell) > 5}, text


def test_the_page_compares_with_the_best_single_method_of_the_papers(monkeypatch, tmp_path):
  board = [*_made("cross entropy", 0.5, 0.8), *_made("MIT", 0.4, 0.7)]
  names = {"focal, gamma 1, EMA": 0.3, "focal, gamma 1, SAM": 0.3, "MIT, EMA": 0.395, "MIT, SAM, ensemble of 5": 0.3}
  cells, text = _page(monkeypatch, tmp_path, board,
                      [row for name, nll in names.items() for row in _made(name, nll, 0.81)]
                      + _made("focal, gamma 1, decay 2e-3", 0.3, 0.81, ece=0.02) + _made("SWA", 0.3, 0.7))
  assert "is MIT" in text[2]
  found = {name: [cell[2], cell[3], cell[-1]] for name, cell in cells.items() if cell[1] == "search"}
  assert found == {
    "focal, gamma 1, EMA": ["1", "1", "met"], "focal, gamma 1, SAM": ["2", "1", "costs more"],
    "focal, gamma 1, decay 2e-3": ["1", "1", "missed"],  # An ECE above its noise floor.
    "SWA": ["1", "1", "missed"],  # A lower accuracy.
    "MIT, EMA": ["2", "1", "missed"], "MIT, SAM, ensemble of 5": ["20", "5", "costs more"]}


def test_the_page_has_the_own_rows_of_the_leaderboard_beyond_the_papers(monkeypatch, tmp_path):
  board = [*_made("cross entropy", 0.5, 0.8), *_made("MIT", 0.4, 0.7),
           *_made("AugMix", 0.1, 0.8, chosen='{"augmentation.severity": 3.0}'), *_made("SAM", float("nan"), 0.8),
           *_made("cross entropy, ensemble of 5", 0.35, 0.8)]
  cells, text = _page(monkeypatch, tmp_path, board, _made("MIT, EMA", 0.3, 0.8))
  assert [name for name, cell in cells.items() if cell[1] in ("search", "leaderboard")] == [
    "AugMix (severity 3.0)", "MIT, EMA", "cross entropy, ensemble of 5"]
  assert cells["AugMix (severity 3.0)"][1:4] == ["leaderboard", "3", "1"]
  assert cells["cross entropy, ensemble of 5"][2:4] == ["5", "5"] and "is MIT" in text[2]
  # The combination is told to be worse than a method of the leaderboard itself.
  assert text[-1].startswith("- one network: +0.1996 [")
  assert text[-1].endswith("*MIT, EMA* less *AugMix (severity 3.0)*.")


def _difference(mean, low, high):
  return comparison.Difference(mean, low, high, 0, 1, 0)


_LOW, _EQUAL, _HIGH = (_difference(x, x - 0.01, x + 0.01) for x in (-0.05, 0.0, 0.05))
_UNKNOWN = _difference(0.0, np.nan, np.nan)


@pytest.mark.parametrize(("apart", "more", "excess", "cost", "target", "expected"), [
  (_LOW, _EQUAL, _EQUAL, 1.0, -0.02, "met"), (_LOW, _HIGH, _LOW, 1.0, -0.02, "met"),
  (_LOW, _EQUAL, _EQUAL, 1.0, -0.04, "met"),  # The upper end is at the target.
  (_LOW, _EQUAL, _EQUAL, 2.0, -0.02, "costs more"), (_LOW, _EQUAL, _EQUAL, 4 / 3, -0.02, "costs more"),
  (_LOW, _LOW, _EQUAL, 2.0, -0.02, "missed"), (_LOW, _LOW, _EQUAL, 1.0, -0.02, "missed"),
  (_LOW, _EQUAL, _HIGH, 1.0, -0.02, "missed"), (_LOW, _EQUAL, _HIGH, 2.0, -0.02, "missed"),
  (_EQUAL, _EQUAL, _EQUAL, 1.0, -0.02, "missed"), (_EQUAL, _EQUAL, _EQUAL, 2.0, -0.02, "missed"),
  (_LOW, _EQUAL, _EQUAL, 1.0, -0.045, "cannot tell"), (_LOW, _EQUAL, _EQUAL, 2.0, -0.045, "cannot tell"),
  (_UNKNOWN, _EQUAL, _EQUAL, 1.0, -0.02, "cannot tell"), (_LOW, _UNKNOWN, _EQUAL, 1.0, -0.02, "cannot tell"),
  (_LOW, _EQUAL, _UNKNOWN, 1.0, -0.02, "cannot tell"), (_UNKNOWN, _LOW, _EQUAL, 1.0, -0.02, "missed")])
def test_every_condition_of_the_aim_is_judged(apart, more, excess, cost, target, expected):
  assert combination_page.judged(apart, more, excess, cost, target) == expected


def test_the_committed_page_is_made_from_the_committed_rows_and_not_trained_for(monkeypatch):
  def train(*arguments, **options):
    raise AssertionError("trains")

  monkeypatch.setattr(combinations.halving, "halve", train)
  options = sweep.parse(combinations.EXPERIMENT, ["--data=fashion_mnist.npz", "--only=nothing"])
  assert combinations.methods(options) == []
  with pytest.raises(AssertionError, match="trains"):
    combinations.methods(sweep.parse(combinations.EXPERIMENT, ["--data=fashion_mnist.npz", "--only", "AugMix"]))
  path = RESULTS / f"{sweep.stem_of(combinations.EXPERIMENT, options).name}.csv"
  text = path.with_suffix(".md").read_text(encoding="utf-8")
  assert report.page(combinations.EXPERIMENT, rows.read(path), path.stem) == text
  assert "of severity 1 unless another strength follows." in text


def test_the_page_says_how_many_candidates_each_search_had_and_what_cost_too_much(monkeypatch, tmp_path):
  for task, searches in combination_page.SEARCHES.items():
    tried = {row["choice"] for row in rows.read(RESULTS / f"combinations_{task}_halving.csv")}
    assert list(searches) == sorted(searches) and len(tried) == max(searches)
  said, = combination_page._search("cifar10_jpeg_resnet8")
  assert "27 have been tried." in said and "Networks with MIT; or AugMix; or" in said and "or SAM take longer" in said
  assert "None had" not in said
  said, = combination_page._search("fashion_mnist_mlp")
  assert "in 3 searches: 155 in the first, 229 after the next (new: more strengths" in said
  monkeypatch.setattr(combination_page, "RESULTS", tmp_path)
  choice = dict.fromkeys(space.SPACE, "none")
  rows.write(tmp_path / "combinations_board_halving.csv", [{"choice": json.dumps(choice)}])
  said, = combination_page._search("board")
  assert "None had mixup; or CutMix;" in said and "1 have been tried" in said


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


@pytest.mark.parametrize("effect", [-0.05, -0.02, 0.0])
def test_an_aim_that_is_just_missed_is_rarely_called_met(effect):
  """At the target itself, the interval lies below it in half of 5% of the cases."""
  rng, target, met = np.random.default_rng(0), -0.05, 0
  for _ in range(400):
    a, b = 1 + effect + 0.02 * rng.normal(size=10), np.ones(10)
    apart = comparison.paired(*({str(i): x for i, x in enumerate(values)} for values in (a, b)))
    met += combination_page.judged(apart, _EQUAL, _EQUAL, 1.0, target) == "met"
  assert met / 400 < (0.05 if effect == target else 0.01)


def test_candidates_take_no_longer_than_the_option_says(monkeypatch):
  drawn = []
  monkeypatch.setattr(combinations.halving, "halve",
                      lambda config, space, candidates, *arguments, **options: drawn.append(candidates) or [])
  for times in ("1", "2"):
    combinations.methods(sweep.parse(combinations.EXPERIMENT, ["--data=fashion_mnist.npz", f"--times={times}",
                                                               "--candidates=200"]))
  alone, twice = ({(choice["augmentation"], choice["weights"]) for choice in found} for found in drawn)
  assert ("AugMix, one view", "EMA") in alone and not {"MIT", "AugMix", "AugMix, severity 3"} & {x for x, _ in alone}
  assert not any(weights == "SAM" for _, weights in alone)
  assert {("MIT", "EMA"), ("none", "SAM")} < twice and ("MIT", "SAM") not in twice


def test_the_best_is_also_trained_without_each_of_its_parts_and_compared(monkeypatch, tmp_path):
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
  board = [*_made("cross entropy", 0.5, 0.8), *_made("MIT", 0.4, 0.7)]
  _, text = _page(monkeypatch, tmp_path, board, [row for name, nll in ((whole, 0.3), (less[0], 0.35), (less[1], 0.3))
                                                 for row in _made(name, nll, 0.8)])
  start = text.index("## What each part gives")
  lines = [[x.strip() for x in line.split("|")[1:-1]] for line in text[start + 6:]]
  assert "they might give there too." in text[start + 2]
  assert [line[0] for line in lines] == ["SB-ECE", "EMA"] and text[start + 2].startswith(f"*{whole}*, of one network")
  assert float(lines[0][2].split()[0]) == pytest.approx(-0.05, abs=0.003)


def test_the_best_of_the_papers_is_also_trained_with_the_decay_and_the_rate_of_the_best(monkeypatch, tmp_path):
  whole, less, changed = "SB-ECE, EMA, decay 2e-3", "EMA, decay 2e-3", "MIT with decay 2e-3"
  board = [*_made("cross entropy", 0.5, 0.8), *_made("MIT", 0.4, 0.8, chosen='{"augmentation.alpha": 0.25}'),
           *_made("weight decay", 0.45, 0.8, chosen='{"optimizer.l2": 0.003}')]
  found = [row for name, nll in ((whole, 0.3), (less, 0.35), ("SB-ECE, EMA", 0.36), (changed, 0.375))
           for row in _made(name, nll, 0.81)]
  cells, text = _page(monkeypatch, tmp_path, board, found)
  assert cells[changed][1:4] == ["the papers", "2", "1"] and cells[changed][-1] == "" and cells[whole][-1] == "met"
  assert "\"the papers\" stands for that method with the decay" in " ".join(text)
  said = text[text.index("## What each part gives") + 2]
  change, below = re.search(rf"\*{changed}\*, .* by (\S+) \[.* is (\S+)% \[", said).groups()
  assert float(change) == pytest.approx(-0.025, abs=0.002) and float(below) == pytest.approx(20, abs=1)

  choice = space.choice_of(whole)
  name, single, fields = combination_page.papers_best_with("board", choice)
  assert (name, single) == (changed, "MIT") and fields == {"augmentation.alpha": 0.25, "optimizer.l2": 2e-3}
  assert combination_page.papers_best_with("board", choice | {"decay": "none"}) is None
  monkeypatch.setattr(combinations.halving, "halve", lambda *arguments, **options: [
    halving.Standing(choice, 0.3, 0.8, 4)])
  monkeypatch.setattr(combinations.combination_page, "papers_best_with", lambda task, choice: (name, single, fields))
  made = combinations.methods(sweep.parse(combinations.EXPERIMENT, ["--data=fashion_mnist.npz", "--only=MIT with"]))
  config = made[-1].config()
  assert made[-1].name == changed and config.augmentation.name == "mixup_inference"
  assert config.augmentation.alpha == 0.25 and config.optimizer.l2 == 2e-3

  # A method that sets its own decay keeps it.
  rows.write(tmp_path / "leaderboard_board.csv", [row | {"nll": "0.1"} if row["method"] == "weight decay" else row
                                                  for row in board])
  monkeypatch.undo()
  monkeypatch.setattr(combination_page, "RESULTS", tmp_path)
  assert combination_page.papers_best_with("board", choice) is None


def test_a_second_halving_is_among_the_best_and_its_neighbours_of_the_same_cost(monkeypatch):
  plain = dict.fromkeys(space.SPACE, "none")
  best, calls = plain | {"augmentation": "CutMix", "rate": "twice the rate"}, []

  def halve(config, space, candidates, *arguments, num_seeds=1, **options):
    calls.append((num_seeds, candidates))
    return [halving.Standing(x, loss, 0.8, 8) for x, loss in ((best, 0.3), (plain, 0.5))]

  monkeypatch.setattr(combinations.halving, "halve", halve)
  combinations.methods(sweep.parse(combinations.EXPERIMENT, ["--data=fashion_mnist.npz", "--neighbours"]))
  (_, drawn), (seeds, near) = calls
  assert halving.draw(space.SPACE, 81, lambda x: space.times(x) == 1) == drawn[:81]
  assert all(space.times(x) == 1 for x in drawn[81:]) and seeds == 2 and near[:2] == [plain, best]
  assert all(sum(x[part] != best[part] for part in best) == 1 and space.times(x) == 1 for x in near[2:])
  number = sum(map(len, space.SPACE.values())) - len(space.SPACE) - 4  # MIT, two of AugMix and SAM take longer.
  assert len(near) == 2 + number and len({halving.text(x) for x in near}) == len(near)


def test_few_of_all_combinations_are_drawn():
  assert len(list(itertools.product(*space.SPACE.values()))) > 1000
  drawn = halving.draw(space.SPACE, 81)
  assert len({halving.text(choice) for choice in drawn}) == 81
