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
  values: Mapping[str, comparison.BySeed] = {}

  def costs(self) -> tuple[float, float]:
    """Returns how often as much as a plain run it takes to train, and how often to predict."""
    return costs.training(self.fields, page.NUM_EPOCHS, self.members), costs.prediction(self.fields, self.members)


def findings(table_rows: pd.DataFrame, name: str = "") -> list[str]:
  """Returns the lines of Markdown that compare the combinations with the best single method of the papers."""
  del name
  task = table_rows["task"].iloc[0]
  board = rows.texts(RESULTS / f"leaderboard_{task}.csv")
  if board.empty or page.BASELINE not in set(board["method"]):
    return ["The comparison needs the rows of the leaderboard on the same images and network."]
  single, beyond = _papers_best(board), board[board["method"].isin(COMBINED)]
  nll, accuracy = (ranking.of_methods(board, column, LABEL) for column in ("nll", "accuracy"))
  searched = [_Entry(name, PAPERS if WITH in name else "search", *_set_by(name), values)
              for name, values in _values(table_rows).items()]
  whole, less = _whole(searched)
  searched = [x._replace(origin=PART) if x.name in less.values() else x for x in searched]
  fields = page.chosen_settings(board)
  chosen = {name: comparison.settings(values) for name, values in comparison.chosen(board).items()}
  of_board = [_Entry(f"{name} ({chosen[name]})" if chosen[name] else name, "leaderboard", fields[name],
                     COMBINED[name].members, values)
              for name, values in (_values(beyond) if len(beyond) else {}).items() if values["nll"].is_finite]
  entries = sorted([*searched, *of_board], key=lambda x: (x.members, np.nan_to_num(x.values["nll"].mean, nan=np.inf)))
  return markdown.filled(
    "leaderboard/combinations.md.jinja", label=LABEL, single=single, log_loss=comparison.cell(nll[single], "nll"),
    papers=PAPERS, population=comparison.population(pd.concat([table_rows, beyond])), most_lost=MOST_LOST, whole=whole,
    cells=[_cells(entry, nll[single], accuracy[page.BASELINE]) for entry in entries], against=_against(entries),
    less=_parts(whole, less, entries), of_papers=_of_papers(whole, entries, nll[single]), **_search(task)).splitlines()


def _values(table_rows: pd.DataFrame) -> dict[str, dict[str, comparison.BySeed]]:
  """The values that are compared, by method and by column."""
  columns = {column: ranking.of_methods(table_rows, column, LABEL) for column in _COMPARED}
  return {name: {column: by_name[name] for column, by_name in columns.items()} for name in columns["nll"]}


def _papers_best(board: pd.DataFrame) -> str:
  """The method of the papers that has the lowest log loss on the test images of a leaderboard."""
  nll = ranking.of_methods(board, "nll", LABEL)
  return min((name for name in METHODS if name in nll and nll[name].is_finite), key=lambda name: nll[name].mean)


def papers_best_with(task: str, choice: Mapping[str, str]) -> tuple[str, str, dict[str, object]] | None:
  """Returns the papers' best with a combination's decay and rate: row, method and fields; None if they are equal."""
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
  training, prediction = _Entry(row["method"], "search", *_set_by(row["method"])).costs()
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

  A lower accuracy and an ECE above its floor must not be shown, and a log loss at or below the target must be.
  """
  if loss.low > target or accuracy.high < 0 or excess.low > 0:
    return "missed"
  if not loss.high <= target or np.isnan([accuracy.high, excess.low]).any():
    return "cannot tell"
  return "costs more" if cost > 1 else "met"


def _against(entries: Sequence[_Entry]) -> list[tuple]:
  """The lowest rows of the search and of the leaderboard, of one network and of five, and their difference."""
  lowest = {key: x for x in reversed(entries) for key in [(x.origin, x.members)]}
  pairs = [(members, *(lowest.get((origin, members)) for origin in ("search", "leaderboard"))) for members in TARGETS]
  return [(members, own.name, other.name, comparison.paired(own.values["nll"], other.values["nll"]))
          for members, own, other in pairs if own and other]


def _whole(searched: Sequence[_Entry]) -> tuple[str, dict[str, str]]:
  """The combination that was also trained without its parts, and the names of these by the part that they lack."""
  single = [x.name for x in searched if x.members == 1 and x.origin != PAPERS]
  less = {name: {part: halving.text(choice) for part, choice in one_less(choice_of(name)).items()
                 if halving.text(choice) in single} for name in single}
  whole = max(less, key=lambda name: len(less[name]), default="")
  return (whole, less[whole]) if whole and len(less[whole]) > 1 else ("", {})


def _parts(whole: str, less: Mapping[str, str], entries: Sequence[_Entry]) -> list[list[str]]:
  """The cells that compare a combination with the same without each of its parts."""
  values, cells = {x.name: x.values for x in entries}, []
  for part, other in less.items():
    loss, accuracy = (comparison.paired(values[whole][column], values[other][column]) for column in ("nll", "accuracy"))
    cells.append([part, comparison.cell(values[other]["nll"], "nll"), loss.text(4), accuracy.text(2, 100)])
  return cells


def _of_papers(whole: str, entries: Sequence[_Entry], single: comparison.BySeed) -> list[tuple]:
  """The papers' best with the decay of a combination: its name, its gain by that, and how far ``whole`` is below it."""
  values = {x.name: x.values["nll"] for x in entries}
  others = {x.name: x.values["nll"] for x in entries if x.origin == PAPERS}
  changes = {name: comparison.paired(values[whole], nll) for name, nll in others.items()}
  return [(name, comparison.paired(nll, single), tuple(-100 / nll.mean * x for x in (
    changes[name].mean, changes[name].high, changes[name].low))) for name, nll in others.items()]


def _search(task: str) -> dict[str, list]:
  """How many candidates each halving ended with, and what of the space none had, by whether it costs more."""
  trials = rows.texts(RESULTS / f"combinations_{task}_halving.csv").reindex(columns=["choice", "seed"])
  had = {(part, name) for choice in trials["choice"].unique() for part, name in json.loads(choice).items()}
  never = [(name, costs.training(settings.flat(fields), page.NUM_EPOCHS) > 1) for part, names in SPACE.items()
           for name, fields in names.items() if (part, name) not in had]
  # A halving begins with new candidates, on one seed or two; later rungs have further seeds.
  is_new, seeds = ~trials["choice"].duplicated(), trials["seed"].astype(int)
  begins = is_new & (seeds.shift(fill_value=halving.FIRST_SEED) > halving.FIRST_SEED + 1)
  return {"totals": is_new.groupby(begins.cumsum()).sum().cumsum().tolist(),
          "missed": [name for name, costs_more in never if not costs_more],
          "dear": [name for name, costs_more in never if costs_more]}
