"""What the leaderboard says: the ranking of methods and of calibrators, and the claims of the papers."""

from collections.abc import Mapping
import json
import pathlib

import pandas as pd

from calib_jax import evaluation
from calib_jax._system.files import write_text
from calib_jax.intervals.calibration_tests import holm
from experiments.common import claims, comparison, costs, markdown, ranking, scales, settings
from experiments.common.commands import RESULTS, ROOT
from experiments.common.rows import Row
from experiments.leaderboard import conditions
from experiments.leaderboard.claims import CLAIMS
from experiments.leaderboard.methods import COMBINED, METHODS, Recipe

BASELINE = "cross entropy"
EDGE = "†"  # Stands after a setting at the edge of its grid.
CRITERION = "ece_equal_mass_l2"  # By which settings are chosen on the validation split.
RECIPES = {**METHODS, **COMBINED}
SEARCHES = {name: recipe.search for name, recipe in RECIPES.items()}
Costs = Mapping[str, tuple[str, str]]  # The texts of ``cost`` by method.
NUM_EPOCHS = scales.NETWORKS["mlp"]["training.num_epochs"]
MOST_LOST = 0.01  # The accuracy that a method may give up to cross entropy to be called the best of calibration.
PAGE, ROWS = ROOT / "docs" / "results.md", RESULTS / "leaderboard_fashion_mnist_mlp.csv"


def findings(rows: pd.DataFrame, name: str = "") -> list[str]:
  """Returns the lines of Markdown before the table of all results of the page ``name``."""
  if BASELINE not in set(rows["method"]):
    return [f"The rankings need the rows of {BASELINE}, from which differences are counted."]
  costs_of = {method: cost(method, values) for method, values in comparison.chosen(rows).items()}
  tables = {table: f"{table}_{name.removeprefix('leaderboard_')}.md" for table in dict.fromkeys(
    claim.table for claim in CLAIMS if claim.table)}
  elsewhere = {table: page for table, page in tables.items() if (RESULTS / page).exists()}
  return markdown.filled(
    "leaderboard/page.md.jinja", population=comparison.population(rows), edge=EDGE, most_lost=MOST_LOST,
    collapse=ranking.MOST_LOST, collapsed=sorted(method for _, method in ranking.collapsed(rows)),
    **_methods(rows, costs_of), calibrators=_calibrators(ranking.trained(rows[~rows["calibrator"].isin(
      conditions.sizes(rows))])), sizes=conditions.size_table(rows), shifts=conditions.shift_table(rows, costs_of),
    conventions=conditions.convention_table(rows), beyond=_beyond(rows, costs_of),
    lines=claims.table(rows, [x for x in CLAIMS if x.table not in elsewhere], chosen_settings(rows), SEARCHES),
    published=False, elsewhere=[f"[{table.partition('_tables')[0].replace('_', ' ')}]({page})"
                                for table, page in elsewhere.items()]).splitlines()


def chosen_settings(rows: pd.DataFrame) -> dict[str, dict[str, object]]:
  """Returns the fields that each method of the rows sets, with the values that were chosen."""
  return {name: _fields(RECIPES[name]) | values for name, values in comparison.chosen(rows).items() if name in RECIPES}


def cost(name: str, values: Mapping[str, object]) -> tuple[str, str]:
  """Returns how often as much as cross entropy a method takes to train and to predict, with its chosen values."""
  if name not in RECIPES:
    return "", ""
  fields, members = _fields(RECIPES[name]) | dict(values), RECIPES[name].members
  return costs.text(costs.training(fields, NUM_EPOCHS, members)), costs.text(costs.prediction(fields, members))


def cost_of(row: Row) -> tuple[str, str]:
  """Returns ``cost`` of the method of a row."""
  return cost(row["method"], json.loads(row["chosen"]))


def _fields(recipe: Recipe) -> dict[str, object]:
  """The fields that a recipe sets, without those that are tuned; a loss is cross entropy unless it says another."""
  return {"loss.primary.name": "cross_entropy"} | settings.flat(recipe.fields)


def _methods(rows: pd.DataFrame, costs_of: Costs) -> dict[str, object]:
  """The cells of the table of methods, their ranks, and what diverged."""
  nll, by_error = (ranking.of_methods(rows, column, "none") for column in ("nll", CRITERION))
  names, values = ranking.table(nll)
  wins, ranks = ranking.wins(values), ranking.mean_ranks(values)
  by_ece = ranking.mean_ranks(pd.DataFrame(by_error)[[*names]].to_numpy())
  columns = {column: ranking.of_methods(rows, column, "none") for column in ("accuracy", "brier", "ece", "floor")}
  after = ranking.of_methods(rows, "nll", "TS")
  chosen, at_edge = comparison.chosen(rows), claims.methods_at_edge(rows, SEARCHES)
  on_front = dict(zip(names, ranking.pareto(*([columns[column][name].mean for name in names]
                                              for column in ("accuracy", "ece"))), strict=True))
  cells = []
  for i, name in sorted(enumerate(names), key=lambda pair: nll[pair[1]].mean):
    accuracy, ece, floor = (comparison.cell(columns[column][name], column) for column in ("accuracy", "ece", "floor"))
    cells.append([name + ("*" if on_front[name] else ""),
                  comparison.settings(chosen[name]) + (EDGE if name in at_edge else ""), accuracy, _change(nll, name),
                  _change(columns["brier"], name), ece, floor.split(" ")[0], _change(after, name),
                  f"{100 * wins[i]:.0f}", f"{ranks[i]:.1f}", f"{by_ece[i]:.1f}", *costs_of[name]])
  order = sorted(names, key=lambda name: nll[name].mean)
  return {"methods": cells, "lowest": order[0],
          "not_above": sum(not is_worse for is_worse in ranking.worse_than_first(nll, order)) - 1,
          "diverged": [name for name in nll if name not in names]}


def _change(by_name: Mapping[str, comparison.BySeed], name: str) -> str:
  """Returns the difference from cross entropy, or its own value for cross entropy itself."""
  if name == BASELINE:
    return f"{by_name[name].mean:.4f}"
  change = comparison.paired(by_name[name], by_name[BASELINE])
  return f"{change.mean:+.4f} ± {change.error:.4f}"


def _calibrators(rows: pd.DataFrame) -> list[list[str]]:
  columns = ["nll", "brier", "ece", "accuracy"]
  table = rows.pivot(index=["method", "seed"], columns="calibrator", values=columns).astype(float)
  change = {column: table[column].sub(table[column]["none"], axis=0) for column in columns}
  means, nll = change["nll"].groupby(level="method").mean(), table["nll"].dropna(axis=1)
  wins = pd.Series(ranking.wins(nll.to_numpy()), nll.columns)
  return [[name, f"{change['nll'][name].mean():+.4f}", f"{means[name].min():+.3f} to {means[name].max():+.3f}",
           f"{change['brier'][name].mean():+.4f}", f"{100 * table['ece'][name].mean():.2f}",
           f"{100 * change['accuracy'][name].mean():+.2f}", f"{100 * wins[name]:.0f}"]
          for name in nll.mean().sort_values().index]


def _beyond(rows: pd.DataFrame, costs_of: Costs) -> list[list[str]]:
  """Compares the best combination that no paper tried, at one and at five times the cost, with the papers' best."""
  accuracy = ranking.means(rows, "accuracy", "none")

  def lowest(names, by_name) -> tuple[str, int]:
    allowed = [name for name in names if name in by_name and accuracy[name] > accuracy[BASELINE] - MOST_LOST
               and by_name[name].is_finite]
    return min(allowed, key=lambda name: by_name[name].mean, default=""), len(allowed)

  cells, p_values = [], []
  for column, calibrator in (("ece", "none"), ("nll", "none"), ("nll", "TS"), ("nll", "structured vector"),
                             ("nll", "structured matrix")):
    by_name = ranking.of_methods(rows, column, calibrator)
    paper, num_papers = lowest(METHODS, by_name)
    for ensembles in (False, True):
      combined, num_combined = lowest([name for name in COMBINED if (RECIPES[name].members > 1) == ensembles], by_name)
      if paper and combined:
        change = comparison.paired(by_name[combined], by_name[paper])
        p_values.append(min(change.p_value * num_papers * num_combined, 1.0))
        scale, digits = comparison.unit(column)
        cells.append([comparison.heading(column), calibrator, paper, comparison.cell(by_name[paper], column), combined,
                      comparison.cell(by_name[combined], column), *costs_of[combined], change.text(digits, scale),
                      f"{100 * change.mean / by_name[paper].mean:+.0f}%"])
  for row, p_value in zip(cells, holm(p_values), strict=True):
    row.insert(-1, comparison.p_text(p_value))
  return cells


def top(rows: pd.DataFrame, most: int = 5) -> str:
  """Returns the table of docs/results.md and a sentence on it: the methods of the lowest NLL, then cross entropy.

  Ensembles, which cost several times as much, are not among them. The table has ``most`` rows, that of cross entropy
  included; brackets hold the 95% intervals of the means.
  """
  accuracy, floor = (ranking.means(rows, column, "none") for column in ("accuracy", "floor"))
  nll_after = ranking.means(rows, "nll", "TS")
  ece, ece_after = (ranking.of_methods(rows, "ece", calibrator) for calibrator in ("none", "TS"))

  def with_interval(values: Mapping[str, float]) -> str:
    mean = comparison.paired(values, dict.fromkeys(values, 0.0))
    return f"{100 * mean.mean:.2f} [{100 * mean.low:.2f}, {100 * mean.high:.2f}]"

  nll = {name: by_seed for name, by_seed in ranking.of_methods(rows, "nll", "none").items()
         if name not in RECIPES or RECIPES[name].members == 1}
  names, _ = ranking.table(nll)  # Those that trained on every seed.
  ranked = sorted(names, key=lambda name: nll[name].mean)
  shown = [*[name for name in ranked if name != BASELINE][:most - 1], BASELINE]
  chosen = comparison.chosen(rows)
  return markdown.filled(
    "leaderboard/top.md.jinja", aligned=evaluation.markdown, num_run=len(nll),
    number=sum(recipe.members == 1 for recipe in RECIPES.values()),
    seeds=sorted(map(int, rows["seed"].unique())), floors=[floor[name] for name in shown],
    num_equal=sum(not is_worse for is_worse in ranking.worse_than_first(nll, ranked)) - 1,
    population=comparison.population(rows), cells=[
      [name, *cost(name, chosen[name]), f"{100 * accuracy[name]:.2f}", f"{nll[name].mean:.4f}",
       with_interval(ece[name]), f"{nll_after[name]:.4f}", with_interval(ece_after[name])] for name in shown])


def write_top(rows: pd.DataFrame, stem: pathlib.Path, page: pathlib.Path = PAGE) -> None:
  """Writes ``top`` into docs/results.md, between its two comments, if the files are those that it shows."""
  if stem.resolve() == ROWS.with_suffix(""):
    text = page.read_text(encoding="utf-8")
    write_text(page, markdown.between(text, "<!-- The top of the leaderboard. -->", "<!-- Its end. -->", top(rows)))
