"""The tables of the guides on what goes beyond the loss: their fields, numbers and costs are those of the rows."""

import functools

import pytest

from calib_jax import config as run_config
from configs import common
from experiments import audit
from experiments.common import comparison, ranking, rows, settings
from experiments.common.commands import RESULTS, ROOT
from experiments.leaderboard import page

BOARDS = {"Fashion-MNIST, MLP, 10 seeds": "fashion_mnist_mlp", "Fashion-MNIST, ResNet-8, 5 seeds":
          "fashion_mnist_resnet8", "CIFAR-10, ResNet-8, 3 seeds": "cifar10_jpeg_resnet8"}
NAMES = {"average of the weights, EMA": "EMA", "average of the weights, SWA": "SWA", "flat minima, SAM": "SAM",
         "ensemble of 5 networks": "cross entropy, ensemble of 5", "ensemble of 5, focal loss": "focal, ensemble of 5",
         "mixup": "mixup", "mixup with inference, MIT": "MIT", "dropout": "dropout",
         "dropout, 20 samples": "MC dropout", "ten heads on one backbone": "shared body",
         "RandAugment": "RandAugment", "AugMix with its consistency": "AugMix", "CutMix": "CutMix",
         "random erasing": "random erasing", "Laplace, last layer": "Laplace",
         "ensemble of 5, RandAugment": "RandAugment, ensemble of 5"}


@functools.cache
def _rows(board):
  return rows.texts(RESULTS / f"leaderboard_{board}.csv")


def _measured():
  """``(leaderboard, method, cells)`` of each row of the table of docs/training.md that a leaderboard has."""
  board, measured = "", []
  for _, header, cells in audit.tables((ROOT / "docs" / "training.md").read_text(encoding="utf-8")):
    if header[0] != "what":
      continue
    if cells[0].startswith("**"):
      board = next((name for heading, name in BOARDS.items() if cells[0] == f"**cross entropy**, {heading}"), "")
    if board:
      measured.append((board, NAMES.get(cells[0], page.BASELINE), cells))
  return measured


MEASURED = _measured()


def test_the_table_has_rows_of_each_leaderboard():
  assert {board for board, *_ in MEASURED} == set(BOARDS.values())
  assert {name for board, name, _ in MEASURED if board == "fashion_mnist_mlp"} == {page.BASELINE, *NAMES.values()}


@pytest.mark.parametrize(("board", "name", "cells"), MEASURED, ids=[f"{board}, {name}" for board, name, _ in MEASURED])
def test_the_fields_of_the_table_are_those_of_its_rows(board, name, cells):
  _, fields, train, predict, *numbers = cells
  if fields.startswith("the same, "):
    fields = fields.replace("the same, ", "num_seeds=5 evaluation.ensemble=True data.split_seed=0 ")
  overrides = [f"--config.{field}" for field in fields.replace("`", "").split()]
  given = run_config.load(str(ROOT / "configs" / "common.py"), overrides)
  part = _rows(board)[_rows(board)["method"] == name]
  base = run_config.complete(common.get_config().unlock()).lock()
  recipe, chosen = page.RECIPES[name], comparison.chosen(part)[name]
  of_rows = settings.changed(base, {**recipe.fields, **chosen})
  if recipe.members > 1:
    assert (given.num_seeds, given.evaluation.ensemble, given.data.split_seed) == (recipe.members, True, 0)
    of_rows = settings.changed(of_rows, {"num_seeds": recipe.members, "data.split_seed": 0,
                                         "evaluation.ensemble": True})
  assert given.to_dict() == of_rows.to_dict()
  values = [ranking.means(part, column, calibrator)[name]
            for column, calibrator in (("nll", "none"), ("nll", "TS"), ("ece", "none"))]
  assert numbers == [f"{values[0]:.4f}", f"{values[1]:.4f}", f"{100 * values[2]:.2f}"]
  assert (train.split(" ")[0], predict.split(" ")[0]) == page.cost(name, chosen)
