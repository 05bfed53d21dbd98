"""The page of experiments/combinations.py: which combinations reach its aim, and what their parts give."""

from collections.abc import Mapping, Sequence
import json
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments.common import comparison, costs, halving, markdown, ranking, rows, settings
from experiments.common.commands import RESULTS
from experiments.leaderboard import page
from experiments.leaderboard.combination_space import (
  LABEL,
  MEMBERS,
  MOST_LOST,
  OPTIMIZER,
  SPACE,
  WITH,
  choice_of,
  fields_of,
  one_less,
)
from experiments.leaderboard.methods import COMBINED, METHODS

PART = "one part less"  # The origin of rows that lack a part of the best combination.
PAPERS = "the papers"  # The origin of the papers' best with the decay and the rate of the best combination.
_COMPARED = ("nll", "accuracy", "ece", "floor")
TARGETS = {1: -0.05, MEMBERS: -0.10}  # The relative difference of log loss that was aimed at, by number of members.


class _Entry(NamedTuple):
  """A row of the comparison: its name, who chose it, its fields and number of networks, and its values by column."""

  name: str
  origin: str
  fields: Mapping[str, object]
  members: int
  values: Mapping[str, comparison.BySeed]

  def costs(self) -> tuple[float, float]:
    """Returns how often as much as a plain run it takes to train, and how often to predict."""
    return costs.training(self.fields, page.NUM_EPOCHS, self.members), costs.prediction(self.fields, self.members)


def findings(table_rows: pd.DataFrame) -> list[str]:
  """Returns the lines of Markdown that compare the combinations with the best single method of the papers."""
  task = table_rows["task"].iloc[0]
  board = rows.texts(RESULTS / f"leaderboard_{task}.csv")
  if board.empty or page.BASELINE not in set(board["method"]):
    return ["The comparison needs the rows of the leaderboard on the same images and network."]
  nll, single = ranking.of_methods(board, "nll", LABEL), _papers_best(board)
  beyond = board[board["method"].isin(COMBINED)]
  searched = [_Entry(name, PAPERS if WITH in name else "search", *_set_by(name), values)
              for name, values in _values(table_rows).items()]
  whole, less = _whole(searched)
  searched = [x._replace(origin=PART) if x.name in less.values() else x for x in searched]
  fields = page.chosen_settings(beyond) if len(beyond) else {}
  chosen = {name: comparison.settings(values) for name, values in comparison.chosen(board).items()}
  named = {name: f"{name} ({chosen[name]})" if chosen[name] else name for name in fields}
  of_board = [_Entry(named[name], "leaderboard", fields[name], COMBINED[name].members, values)
              for name, values in (_values(beyond) if len(beyond) else {}).items() if values["nll"].is_finite]
  entries = sorted([*searched, *of_board], key=lambda x: (x.members, np.nan_to_num(x.values["nll"].mean, nan=np.inf)))
  accuracy = ranking.of_methods(board, "accuracy", LABEL)[page.BASELINE]
  return ["## Beyond the best single method", "",
          f"All are calibrated by {LABEL} scaling. The papers' method of the lowest log loss on these test images is "
          f"{single}, {comparison.cell(nll[single], 'nll')}: it is chosen on them, which favours it, and the "
          "combinations and the settings of the leaderboard were chosen on validation images. Rows from the "
          "leaderboard are its own methods beyond the papers"
          + (", and nothing has chosen those with one part less" if less else "")
          + (f". \"{PAPERS}\" stands for that method with the decay and the rate of the best combination, which the "
             "aim is not about" if any(x.origin == PAPERS for x in entries) else "") + ". Differences are paired by "
          f"seed; brackets are 95% intervals {comparison.population(pd.concat([table_rows, beyond]))}. The aim was a "
          "log loss lower by 5% at the "
          "cost of one network and by 10% at that of five, to train and to predict, at an accuracy that is equal to "
          "that of cross entropy or better, and an ECE at its noise floor. So few seeds cannot show that two "
          "accuracies are equal: the aim asks that the interval of their difference does not lie below 0, and that the "
          "interval of the ECE less its noise floor does not lie above 0. A row that meets all but the cost "
          "\"costs more\".", "", _search(task), "",
          markdown.table(
            ["trained with", "from", "times to train", "to predict", "log loss", "difference", "relative",
             "accuracy less that of cross entropy, points", "ECE %", "noise floor %", "ECE less its floor, points",
             "the aim"], [_cells(entry, nll[single], accuracy) for entry in entries]), "",
          *_against_leaderboard(entries), *_parts(whole, less, entries, nll[single])]


def _values(table_rows: pd.DataFrame) -> dict[str, dict[str, comparison.BySeed]]:
  """The values that are compared, by method and by column."""
  columns = {column: ranking.of_methods(table_rows, column, LABEL) for column in _COMPARED}
  return {name: {column: by_name[name] for column, by_name in columns.items()} for name in columns["nll"]}


def _papers_best(board: pd.DataFrame) -> str:
  """The method of the papers that has the lowest log loss on the test images of a leaderboard."""
  nll = ranking.of_methods(board, "nll", LABEL)
  return min((name for name in METHODS if name in nll and nll[name].is_finite), key=lambda name: nll[name].mean)


def papers_best_with(task: str, choice: Mapping[str, str]) -> tuple[str, str, dict[str, object]] | None:
  """Returns the papers' best with the weight decay and the learning rate of a combination.

  Args:
    task: the end of the name of the leaderboard's files.
    choice: the choice of each part of the combination.

  Returns:
    The name of its row, that of the method, and the fields that it sets beside those of its recipe: the values that the
    leaderboard chose, and the decay and the rate. None if the combination changes neither, or only what the recipe
    sets itself.
  """
  board = rows.texts(RESULTS / f"leaderboard_{task}.csv")
  if board.empty:
    return None
  single, optimizer = _papers_best(board), {part: choice[part] for part in OPTIMIZER}
  added = halving.fields(SPACE, optimizer)
  if not added or any(field in page.chosen_settings(board)[single] for field in added):
    return None
  return f"{single}{WITH}{halving.text(optimizer)}", single, {**comparison.chosen(board)[single], **added}


def cost_of(row: rows.Row) -> tuple[str, str]:
  """Returns how often as much as a plain network the combination of a row takes to train and to predict."""
  training, prediction = _Entry(row["method"], "search", *_set_by(row["method"]), {}).costs()
  return costs.text(training), costs.text(prediction)


def _set_by(name: str) -> tuple[dict[str, object], int]:
  """The fields and the number of networks of a row of the search."""
  if WITH in name:
    return settings.flat(METHODS[name.partition(WITH)[0]].fields), 1
  alone = name.removesuffix(f", ensemble of {MEMBERS}")
  return fields_of(alone), 1 if alone == name else MEMBERS


def _cells(entry: _Entry, single: comparison.BySeed, accuracy: comparison.BySeed) -> list[str]:
  """The row of the table; ``single`` has the log loss of the papers' best, and ``accuracy`` that of cross entropy."""
  values = entry.values
  loss, more = comparison.paired(values["nll"], single), comparison.paired(values["accuracy"], accuracy)
  # Rows do not have the noise of the floor over images, which is far below that of the ECE: here it is constant.
  excess = comparison.paired(values["ece"], dict(values["floor"]))
  verdict = judged(loss, more, excess, max(entry.costs()) / entry.members, TARGETS[entry.members] * single.mean)
  return [entry.name, entry.origin, *map(costs.text, entry.costs()), comparison.cell(values["nll"], "nll"),
          loss.text(4), f"{100 * loss.mean / single.mean:+.1f}%", more.text(2, 100),
          *(comparison.cell(values[column], column) for column in ("ece", "floor")), excess.text(2, 100),
          "" if entry.origin == PAPERS else verdict]


def judged(loss: comparison.Difference, accuracy: comparison.Difference, excess: comparison.Difference, cost: float,
           target: float) -> str:
  """Returns whether a row meets the aim: "met", "missed", "cannot tell" or "costs more".

  Few seeds can show that an accuracy is lower, or that an ECE is above its noise floor, but not that two values are
  equal. So "equal or better accuracy" means that the interval does not show a lower one, and "at its noise floor" that
  the interval does not show a higher ECE. The log loss must be shown to be at or below the target.

  Args:
    loss: the log loss less that of the reference.
    accuracy: the accuracy less that of cross entropy.
    excess: the ECE less its noise floor.
    cost: what the row costs to train or to predict, the larger of the two, over what the aim allows.
    target: the difference of log loss that the aim asks for.

  >>> low, none, high = (comparison.Difference(x, x - 0.01, x + 0.01, 0, 0, 0) for x in (-0.05, 0.0, 0.05))
  >>> judged(low, none, none, 1.0, -0.02), judged(low, none, none, 3.0, -0.02), judged(low, none, none, 1.0, -0.045)
  ('met', 'costs more', 'cannot tell')
  >>> judged(none, none, none, 1.0, -0.02), judged(low, low, none, 1.0, -0.02), judged(low, none, high, 1.0, -0.02)
  ('missed', 'missed', 'missed')
  """
  if loss.low > target or accuracy.high < 0 or excess.low > 0:
    return "missed"
  if not loss.high <= target or np.isnan([accuracy.high, excess.low]).any():
    return "cannot tell"
  return "costs more" if cost > 1 else "met"


def _against_leaderboard(entries: Sequence[_Entry]) -> list[str]:
  """Compares the lowest rows of the search with the lowest ones of the leaderboard, of one network and of five."""
  lines = []
  for members in TARGETS:
    lowest = [next((x for x in entries if (x.origin, x.members) == (origin, members)), None)
              for origin in ("search", "leaderboard")]
    if all(lowest):
      change = comparison.paired(*(x.values["nll"] for x in lowest))
      lines.append(f"- {'one network' if members == 1 else f'ensembles of {members}'}: {change.text(4)}, "
                   f"*{lowest[0].name}* less *{lowest[1].name}*.")
  return ["The lowest log loss of the search less the lowest of the leaderboard's own methods beyond the papers, each "
          "the lowest of its kind on these test images:", "", *lines] if lines else []


def _whole(searched: Sequence[_Entry]) -> tuple[str, dict[str, str]]:
  """The combination that was also trained without its parts, and the names of these by the part that they lack."""
  single = [x.name for x in searched if x.members == 1 and x.origin != PAPERS]
  less = {name: {part: halving.text(choice) for part, choice in one_less(choice_of(name)).items()
                 if halving.text(choice) in single} for name in single}
  whole = max(less, key=lambda name: len(less[name]), default="")
  return (whole, less[whole]) if whole and len(less[whole]) > 1 else ("", {})


def _parts(whole: str, less: Mapping[str, str], entries: Sequence[_Entry], single: comparison.BySeed) -> list[str]:
  """Compares a combination with the same without each of its parts, and with the papers' best that has its decay."""
  if not less:
    return []
  values, cells, optimizer = {x.name: x.values for x in entries}, [], ""
  for part, other in less.items():
    loss, accuracy = (comparison.paired(values[whole][column], values[other][column]) for column in ("nll", "accuracy"))
    cells.append([part, comparison.cell(values[other]["nll"], "nll"), loss.text(4), accuracy.text(2, 100)])
  for other in (x for x in entries if x.origin == PAPERS):
    change = comparison.paired(values[whole]["nll"], other.values["nll"])
    mean, high, low = (f"{-100 / other.values['nll'].mean * x:.1f}" for x in (change.mean, change.high, change.low))
    optimizer += (f" *{other.name}*, with the setting that the leaderboard chose, changes its log loss by "
                  f"{comparison.paired(other.values['nll'], single).text(4)}; that of the combination is "
                  f"{mean}% [{high}, {low}] below this.")
  return ["", "## What each part gives", "",
          f"*{whole}*, of one network, less the same without one part, paired by seed. The leaderboard trains nearly "
          "all methods of the papers at a learning rate of 0.05 and without weight decay: what another rate and a "
          f"decay give here, they might give there too.{optimizer}", "",
          markdown.table(["without", "its log loss", "change of the log loss", "of the accuracy, points"], cells)]


def _search(task: str) -> str:
  """Says how candidates were chosen, how many each halving ended with, and what of the space none of them had."""
  trials = rows.texts(RESULTS / f"combinations_{task}_halving.csv")
  tried = list(trials["choice"].unique()) if len(trials) else []
  text = ("Candidates were ordered by their log loss out of fold, after calibration, on validation images of seeds "
          f"that no row has, among those that lost less than {100 * MOST_LOST:g} points of validation accuracy to "
          f"cross entropy. {len(tried)} have been tried")
  if len(totals := halving.totals(trials)) > 1:
    text += (f", in {len(totals)} halvings: {', '.join(map(str, totals[:-1]))} and {totals[-1]} by the end of each. "
             "The test images had been seen before some of the later ones")
  text += (". Each row is judged by itself, at 95%, without a correction for the number of rows. In names of "
           "combinations, RandAugment is of magnitude 3 and AugMix of severity 1 unless another strength follows.")
  had = {(part, name) for choice in tried for part, name in json.loads(choice).items()}
  never = [(name, costs.training(settings.flat(fields), page.NUM_EPOCHS) > 1)
           for part, names in SPACE.items() for name, fields in names.items() if (part, name) not in had]
  if missed := [name for name, costs_more in never if not costs_more]:
    text += f" None had {'; or '.join(missed)}."
  if dear := [name for name, costs_more in never if costs_more]:
    text += f" Networks with {'; or '.join(dear)} take longer to train than the aim allows, and were no candidates."
  return text
