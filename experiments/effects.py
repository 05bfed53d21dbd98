"""What each loss and each other way to train does to ECE, accuracy and log loss on the three leaderboards, by one rule.

Run: python -m experiments.effects   (seconds; it writes the tables of docs/losses.md and docs/beyond_the_loss.md)

A difference from cross entropy is of the same seeds (``comparison.paired``). It is "shown" where its p-value is below
5% after Holm's correction for all methods of a leaderboard, column by column. A leaderboard of fewer than five seeds
shows nothing: its columns are means.
"""

from collections.abc import Sequence

import pandas as pd

from calib_jax.intervals.calibration_tests import holm
from experiments.common import commands, comparison, markdown, ranking, rows, studies
from experiments.leaderboard.methods import COMBINED, METHODS
from experiments.recommendations import BASELINE, DECIDING, SETS

COLUMNS = {"ECE": ("ece", "none", 100), "acc.": ("accuracy", "none", 100), "NLL": ("nll", "none", 1000),
           "NLL after TS": ("nll", "TS", 1000), "shifted": ("nll_shifted", "TS", 1000)}
SHORT = {"Fashion-MNIST, MLP": "MLP", "Fashion-MNIST, ResNet-8": "ResNet-8", "CIFAR-10, ResNet-8": "CIFAR-10"}
# Methods that are a loss; the others change the optimiser, the images, the head, the schedule or the prediction.
LOSSES = [name for name, recipe in {**METHODS, **COMBINED}.items()
          if recipe.members == 1 and "loss.primary" in recipe.fields and "training.select" not in recipe.fields]


def differences(table_rows: pd.DataFrame, column: str, calibrator: str) -> pd.DataFrame:
  """Returns the mean difference of each method from cross entropy, and whether it is shown, by method."""
  values = ranking.of_methods(table_rows, column, calibrator)
  changes = {name: comparison.paired(x, values[BASELINE]) for name, x in values.items() if name != BASELINE}
  p_values = holm([change.p_value for change in changes.values()])
  level = 1 - comparison.LEVEL if table_rows["seed"].nunique() >= DECIDING else 0
  return pd.DataFrame({"mean": [change.mean for change in changes.values()], "shown": [p < level for p in p_values]},
                      index=[*changes])


def every() -> dict[tuple[str, str], pd.DataFrame]:
  """Returns the differences by the heading of a column and the name of a set."""
  tables = {name: rows.texts(commands.RESULTS / f"{stem}.csv") for name, stem in SETS.items()}
  return {(heading, name): differences(table_rows, column, calibrator)
          for heading, (column, calibrator, _) in COLUMNS.items() for name, table_rows in tables.items()}


def pages() -> dict[str, list[str]]:
  """Returns the methods that each guide's table has."""
  others = [name for name in {**METHODS, **COMBINED} if name not in (*LOSSES, BASELINE)]
  return {"losses.md": LOSSES, "beyond_the_loss.md": others}


def table(found: dict[tuple[str, str], pd.DataFrame], names: Sequence[str]) -> str:
  """Returns the Markdown of the table of some methods, and of what is shown on both deciding sets."""
  def cell(name: str, heading: str, of_set: str) -> str:
    mean, shown = found[heading, of_set].loc[name]
    scale = COLUMNS[heading][2]
    text = f"{round(scale * mean, 0 if scale == 1000 else 1) + 0.0:+.{0 if scale == 1000 else 1}f}"
    return f"**{text}**" if shown else text

  cells = [[name, *(cell(name, *key) for key in found)] for name in names]
  return markdown.filled("effects.md.jinja", headings=[f"{heading}, {SHORT[of_set]}" for heading, of_set in found],
                         cells=cells, shown={heading: _shown(found, heading, names) for heading in COLUMNS})


def _shown(found: dict[tuple[str, str], pd.DataFrame], heading: str, names: Sequence[str]) -> dict[str, list[str]]:
  """The methods that are shown to be lower, and higher, on both networks of Fashion-MNIST."""
  both = [table for (of_column, of_set), table in found.items() if of_column == heading and "Fashion" in of_set]
  return {word: [name for name in names if all(table["shown"][name] and sign * table["mean"][name] > 0
                                               for table in both)] for word, sign in (("lower", -1), ("higher", 1))}


def main(arguments: list[str] | None = None) -> None:
  """Writes both tables."""
  commands.parser(__spec__.name, __doc__).parse_args(arguments)
  found = every()
  for guide, names in pages().items():
    studies.write(guide, "experiments.effects", table(found, names))


if __name__ == "__main__":
  main()
