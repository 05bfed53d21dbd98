"""The page of experiments/combinations.py: which combinations reach its aim, and what their parts give."""

from collections.abc import Iterator, Mapping, Sequence
import json
from typing import NamedTuple

import numpy as np

from experiments.common import comparison, costs, halving, ranking, rows, settings
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
# How many candidates had been tried after each search, and what was new in it.
SEARCHES = {
  "fashion_mnist_mlp": {
    155: "", 229: "more strengths of RandAugment and AugMix",
    275: "candidates of the cost of one network alone, AugMix of one view, and all neighbours of the best"},
  "fashion_mnist_resnet8": {27: "", 80: "candidates of the cost of one network alone, and AugMix of one view"}}


class _Entry(NamedTuple):
  """A row of the comparison: its name, who chose it, what it sets, its number of networks, and its values by column."""

  name: str
  origin: str
  fields: Mapping[str, object]
  members: int
  values: Mapping[str, Mapping[str, float]]

  @property
  def choice(self) -> dict[str, str]:
    """The choice of each part; only of rows of the search."""
    return choice_of(self.name.removesuffix(f", ensemble of {MEMBERS}"))

  def costs(self) -> tuple[float, float]:
    """Returns how often as much as a plain run it takes to train, and how often to predict."""
    return costs.training(self.fields, page.NUM_EPOCHS, self.members), costs.prediction(self.fields, self.members)

  def loss(self) -> float:
    """Returns its mean log loss; infinity if a seed diverged."""
    return float(np.mean(np.nan_to_num([*self.values["nll"].values()], nan=np.inf)))


def findings(table_rows: Sequence[rows.Row]) -> list[str]:
  """Returns the lines of Markdown that compare the combinations with the best single method of the papers."""
  task = table_rows[0]["task"]
  board = rows.read(RESULTS / f"leaderboard_{task}.csv")
  if not any(row["method"] == page.BASELINE for row in board):
    return ["The comparison needs the rows of the leaderboard on the same images and network."]
  nll, single = ranking.of_methods(board, "nll", LABEL), _papers_best(board)
  beyond = [row for row in board if row["method"] in COMBINED]
  searched = list(_of_search(table_rows))
  whole, less = _whole(searched)
  searched = [x._replace(origin=PART) if x.name in less.values() else x for x in searched]
  entries = sorted([*searched, *_of_leaderboard(beyond)], key=lambda x: (x.members, x.loss()))
  accuracy = ranking.of_methods(board, "accuracy", LABEL)[page.BASELINE]
  return ["## Beyond the best single method", "",
          f"All are calibrated by {LABEL} scaling. The papers' method of the lowest log loss on these test images is "
          f"{single}, {comparison.cell(nll[single], 'nll')}: it is chosen on them, which favours it, and the "
          "combinations and the settings of the leaderboard were chosen on validation images. Rows from the "
          "leaderboard are its own methods beyond the papers"
          + (", and nothing has chosen those with one part less" if less else "")
          + (f". \"{PAPERS}\" stands for that method with the decay and the rate of the best combination, which the "
             "aim is not about" if any(x.origin == PAPERS for x in entries) else "") + ". Differences are paired by "
          f"seed; brackets are 95% intervals {comparison.population([*table_rows, *beyond])}. The aim was a log loss "
          "lower by 5% at the "
          "cost of one network and by 10% at that of five, to train and to predict, at an accuracy that is equal to "
          "that of cross entropy or better, and an ECE at its noise floor. So few seeds cannot show that two "
          "accuracies are equal: the aim asks that the interval of their difference does not lie below 0, and that the "
          "interval of the ECE less its noise floor does not lie above 0. A row that meets all but the cost "
          "\"costs more\".", "",
          *_search(task), "",
          "| trained with | from | times to train | to predict | log loss | difference | relative | accuracy less that "
          "of cross entropy, points | ECE % | noise floor % | ECE less its floor, points | the aim |",
          "|---" * 12 + "|", *(_line(entry, nll[single], accuracy) for entry in entries), "",
          *_against_leaderboard(entries), *_parts(whole, less, entries, nll[single])]


def _papers_best(board: Sequence[rows.Row]) -> str:
  """The method of the papers that has the lowest log loss on the test images of a leaderboard."""
  nll = ranking.of_methods(board, "nll", LABEL)
  return min((name for name in METHODS if name in nll and np.isfinite([*nll[name].values()]).all()),
             key=lambda name: np.mean([*nll[name].values()]))


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
  board = rows.read(RESULTS / f"leaderboard_{task}.csv")
  if not board:
    return None
  single = _papers_best(board)
  added = halving.fields(SPACE, {part: choice[part] for part in OPTIMIZER})
  own = page.chosen_settings(board)[single]
  if not added or any(field in own for field in added):
    return None
  chosen = json.loads(next(row["chosen"] for row in board if row["method"] == single))
  return f"{single}{WITH}{halving.text({part: choice[part] for part in OPTIMIZER})}", single, {**chosen, **added}


def cost_of(row: rows.Row) -> tuple[str, str]:
  """Returns how often as much as a plain network the combination of a row takes to train and to predict."""
  entry = _Entry(row["method"], "search", *_set_by(row["method"]), {})
  training, prediction = entry.costs()
  return costs.text(training), costs.text(prediction)


def _set_by(name: str) -> tuple[dict[str, object], int]:
  """The fields and the number of networks of a row of the search."""
  if WITH in name:
    return settings.flat(METHODS[name.partition(WITH)[0]].fields), 1
  alone = name.removesuffix(f", ensemble of {MEMBERS}")
  return fields_of(alone), 1 if alone == name else MEMBERS


def _of_search(table_rows: Sequence[rows.Row]) -> Iterator[_Entry]:
  found = {column: ranking.of_methods(table_rows, column, LABEL) for column in _COMPARED}
  for name in found["nll"]:
    yield _Entry(name, PAPERS if WITH in name else "search", *_set_by(name),
                 {column: by_name[name] for column, by_name in found.items()})


def _of_leaderboard(board: Sequence[rows.Row]) -> Iterator[_Entry]:
  found = {column: ranking.of_methods(board, column, LABEL) for column in _COMPARED}
  fields = page.chosen_settings(board)
  chosen = {row["method"]: comparison.settings(json.loads(row["chosen"])) for row in board}
  for name, by_seed in found["nll"].items():
    if np.isfinite([*by_seed.values()]).all():
      yield _Entry(f"{name} ({chosen[name]})" if chosen[name] else name, "leaderboard", fields[name],
                   COMBINED[name].members, {column: by_name[name] for column, by_name in found.items()})


def _line(entry: _Entry, single: Mapping[str, float], accuracy: Mapping[str, float]) -> str:
  """The row of the table; ``single`` has the log loss of the papers' best, and ``accuracy`` that of cross entropy."""
  values, reference = entry.values, float(np.mean([*single.values()]))
  apart, more = comparison.paired(values["nll"], single), comparison.paired(values["accuracy"], accuracy)
  # Rows do not have the noise of the floor over images, which is far below that of the ECE: here it is constant.
  excess = comparison.paired(values["ece"], dict(values["floor"]))

  def points(found: comparison.Difference) -> str:
    return f"{100 * found.mean:+.2f} [{100 * found.low:+.2f}, {100 * found.high:+.2f}]"

  return " | ".join([
    f"| {entry.name}", entry.origin, *map(costs.text, entry.costs()), comparison.cell(values["nll"], "nll"),
    f"{apart.mean:+.4f} [{apart.low:+.4f}, {apart.high:+.4f}]", f"{100 * apart.mean / reference:+.1f}%", points(more),
    *(comparison.cell(values[column], column) for column in ("ece", "floor")), points(excess),
    ("" if entry.origin == PAPERS else
     judged(apart, more, excess, max(entry.costs()) / entry.members, TARGETS[entry.members] * reference)) + " |"])


def judged(apart: comparison.Difference, more: comparison.Difference, excess: comparison.Difference, cost: float,
           target: float) -> str:
  """Returns whether a row meets the aim: "met", "missed", "cannot tell" or "costs more".

  Few seeds can show that an accuracy is lower, or that an ECE is above its noise floor, but not that two values are
  equal. So "equal or better accuracy" means that the interval does not show a lower one, and "at its noise floor" that
  the interval does not show a higher ECE. The log loss must be shown to be at or below the target.

  Args:
    apart: the log loss less that of the reference.
    more: the accuracy less that of cross entropy.
    excess: the ECE less its noise floor.
    cost: what the row costs to train or to predict, the larger of the two, over what the aim allows.
    target: the difference of log loss that the aim asks for.

  >>> low, none, high = (comparison.Difference(x, x - 0.01, x + 0.01, 0, 0, 0) for x in (-0.05, 0.0, 0.05))
  >>> judged(low, none, none, 1.0, -0.02), judged(low, none, none, 3.0, -0.02), judged(low, none, none, 1.0, -0.045)
  ('met', 'costs more', 'cannot tell')
  >>> judged(none, none, none, 1.0, -0.02), judged(low, low, none, 1.0, -0.02), judged(low, none, high, 1.0, -0.02)
  ('missed', 'missed', 'missed')
  """
  if apart.low > target or more.high < 0 or excess.low > 0:
    return "missed"
  if not apart.high <= target or np.isnan([more.high, excess.low]).any():
    return "cannot tell"
  return "costs more" if cost > 1 else "met"


def _against_leaderboard(entries: Sequence[_Entry]) -> list[str]:
  """Compares the lowest rows of the search with the lowest ones of the leaderboard, of one network and of five."""
  lines = []
  for members in TARGETS:
    lowest = [next((x for x in entries if (x.origin, x.members) == (origin, members)), None)
              for origin in ("search", "leaderboard")]
    if all(lowest):
      apart = comparison.paired(*(x.values["nll"] for x in lowest))
      lines.append(f"- {'one network' if members == 1 else f'ensembles of {members}'}: {apart.mean:+.4f} "
                   f"[{apart.low:+.4f}, {apart.high:+.4f}], *{lowest[0].name}* less *{lowest[1].name}*.")
  return ["The lowest log loss of the search less the lowest of the leaderboard's own methods beyond the papers, each "
          "the lowest of its kind on these test images:", "", *lines] if lines else []


def _whole(searched: Sequence[_Entry]) -> tuple[str, dict[str, str]]:
  """The combination that was also trained without its parts, and the names of these by the part that they lack."""
  single = {x.name: x for x in searched if x.members == 1 and x.origin != PAPERS}
  less = {name: {lacks: other for lacks, choice in one_less(entry.choice).items()
                 if (other := halving.text(choice)) in single} for name, entry in single.items()}
  whole = max(less, key=lambda name: len(less[name]), default="")
  return (whole, less[whole]) if whole and len(less[whole]) > 1 else ("", {})


def _parts(whole: str, less: Mapping[str, str], entries: Sequence[_Entry], single: Mapping[str, float]) -> list[str]:
  """Compares a combination with the same without each of its parts, and with the papers' best that has its decay."""
  if not less:
    return []
  found, lines = {x.name: x for x in entries}, []
  for lacks, other in ((lacks, found[name]) for lacks, name in less.items()):
    loss, more = (comparison.paired(found[whole].values[column], other.values[column])
                  for column in ("nll", "accuracy"))
    lines.append(f"| {lacks} | {comparison.cell(other.values['nll'], 'nll')} | {loss.mean:+.4f} [{loss.low:+.4f}, "
                 f"{loss.high:+.4f}] | {100 * more.mean:+.2f} [{100 * more.low:+.2f}, {100 * more.high:+.2f}] |")
  return ["", "## What each part gives", "",
          f"*{whole}*, of one network, less the same without one part, paired by seed. The leaderboard trains nearly "
          "all methods of the papers at a learning rate of 0.05 and without weight decay: what another rate and a "
          f"decay give here, they might give there too.{_with_same_optimizer(found[whole], entries, single)}", "",
          "| without | its log loss | change of the log loss | of the accuracy, points |", "|---|---|---|---|", *lines]


def _with_same_optimizer(whole: _Entry, entries: Sequence[_Entry], single: Mapping[str, float]) -> str:
  """Says what the decay and the rate of a combination give to the papers' best, and how far it lies below that."""
  said = ""
  for other in (x for x in entries if x.origin == PAPERS):
    change = comparison.paired(other.values["nll"], single)
    apart = comparison.paired(whole.values["nll"], other.values["nll"])
    relative = 100 / np.mean([*other.values["nll"].values()])
    said += (f" *{other.name}*, with the setting that the leaderboard chose, changes its log loss by "
             f"{change.mean:+.4f} [{change.low:+.4f}, {change.high:+.4f}]; that of the combination is "
             f"{-relative * apart.mean:.1f}% [{-relative * apart.high:.1f}, {-relative * apart.low:.1f}] below this.")
  return said


def _search(task: str) -> list[str]:
  """Says how candidates were chosen, how often test images were seen, and what of the space no candidate has had."""
  tried = {row["choice"] for row in rows.read(RESULTS / f"combinations_{task}_halving.csv")}
  said = ("Candidates were ordered by their log loss out of fold, after calibration, on validation images of seeds "
          f"that no row has, among those that lost less than {100 * MOST_LOST:g} points of validation accuracy to "
          f"cross entropy. {len(tried)} have been tried")
  if task in SEARCHES:
    (first, _), *later = SEARCHES[task].items()
    said += (f", in {len(later) + 1} searches: {first} in the first, "
             + ", ".join(f"{number} after the next (new: {what})" for number, what in later)
             + ". The test images had been seen before each but the first")
  said += (". Each row is judged by itself, at 95%, without a correction for the number of rows. In names of "
           "combinations, RandAugment is of magnitude 3 and AugMix of severity 1 unless another strength follows.")
  had = {(part, name) for choice in tried for part, name in json.loads(choice).items()}
  never = [(name, costs.training(settings.flat(fields), page.NUM_EPOCHS) > 1)
           for part, names in SPACE.items() for name, fields in names.items() if (part, name) not in had]
  if missed := [name for name, costs_more in never if not costs_more]:
    said += f" None had {'; or '.join(missed)}."
  if dear := [name for name, costs_more in never if costs_more]:
    said += f" Networks with {'; or '.join(dear)} take longer to train than the aim allows, and were no candidates."
  return [said]
