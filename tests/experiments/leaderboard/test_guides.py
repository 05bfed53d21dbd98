"""The table of the guide on what goes beyond the loss: its fields and costs are those of the leaderboard's rows."""

import pytest

from calib_jax.training import config as run_config
from configs import common
from experiments import audit
from experiments.common import comparison, rows, settings
from experiments.common.commands import RESULTS, ROOT
from experiments.leaderboard import page

NAMES = {"average of the weights, EMA": "EMA", "average of the weights, SWA": "SWA", "flat minima, SAM": "SAM",
         "ensemble of 5 networks": "cross entropy, ensemble of 5", "mixup with inference, MIT": "MIT",
         "dropout, 20 samples": "MC dropout",
         "ten heads on one backbone": "shared body", "AugMix with its consistency": "AugMix",
         "Laplace, last layer": "Laplace", "ensemble of 5, RandAugment": "RandAugment, ensemble of 5"}
GUIDE = (ROOT / "docs" / "beyond_the_loss.md").read_text(encoding="utf-8")
MEASURED = [cells for _, header, cells in audit.tables(GUIDE) if header[0] == "what"]
ROWS = rows.texts(RESULTS / "leaderboard_fashion_mnist_mlp.csv")


def test_the_table_has_every_row_that_it_names():
  assert {*NAMES} < {cells[0] for cells in MEASURED} and len(MEASURED) == 15


@pytest.mark.parametrize("cells", MEASURED, ids=[cells[0] for cells in MEASURED])
def test_the_fields_and_costs_of_the_table_are_those_of_the_leaderboard(cells):
  what, fields, train, predict = cells
  name = NAMES.get(what, what)
  if fields.startswith("the same, "):
    fields = fields.replace("the same, ", "num_seeds=5 evaluation.ensemble=True data.split_seed=0 ")
  overrides = [f"--config.{field}" for field in fields.replace("`", "").split()]
  given = run_config.load(str(ROOT / "configs" / "common.py"), overrides)
  base = run_config.complete(common.get_config().unlock()).lock()
  recipe, chosen = page.RECIPES[name], comparison.chosen(ROWS[ROWS["method"] == name])[name]
  of_rows = settings.changed(base, {**recipe.fields, **chosen})
  if recipe.members > 1:
    assert (given.num_seeds, given.evaluation.ensemble, given.data.split_seed) == (recipe.members, True, 0)
    of_rows = settings.changed(of_rows, {"num_seeds": recipe.members, "data.split_seed": 0,
                                         "evaluation.ensemble": True})
  assert given.to_dict() == of_rows.to_dict()
  assert (train.split(" ")[0], predict.split(" ")[0]) == page.cost(name, chosen)
