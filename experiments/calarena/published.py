"""Which calibrator a rule should recommend, by the log losses that CalArena publishes.

Run: python -m experiments.calarena.published --results=DIR

`DIR` is the folder `results` of a clone of https://github.com/probkit/CalArena. A row of
experiments/results/calarena_published.csv has, for a data set, how much lower the log loss of each method is than that
of temperature scaling, the mean over the models of the data set. For each range of classes and of calibration examples,
half of the data sets choose the method of the highest mean gain, and the other half judges it; this is repeated for
1,000 random halves. A gain counts as at most 20 thousandths in the choice, because single data sets have thousands. The
table is written into the page beside the rows; without `--results` it is made from the rows that there are.
"""

from collections.abc import Sequence
import pathlib

import numpy as np
import pandas as pd

from calib_jax._system.errors import UserError
from calib_jax._system.files import write_text
from experiments.common import commands, markdown, studies

BASE = "TS"
# Names there, and here. Others need other packages, or probabilities of 0, whose log loss says little.
METHODS = {"ETS": "ensemble_temperature_scaling", "SVS": "structured_vector_scaling",
           "SMS": "structured_matrix_scaling", "VS": "vector_scaling", "Dirichlet": "dirichlet",
           "Platt-logits": "platt", "Beta": "beta_calibration", "Quadratic": "quadratic_scaling",
           "Spline": "spline_calibration", "Venn-Abers": "venn_abers"}
# The least and the most classes, and the least examples of each row.
RANGES = ((2, 2, (0, 500, 2000)), (3, 3, (0, 1000)), (4, 9, (0, 1000)), (10, 100, (0, 1000)))
MOST, DIVISIONS, FEWEST = 20.0, 1000, 6  # Thousandths of a nat; random halves; the fewest data sets that can judge.
ROWS = commands.RESULTS / "calarena_published.csv"


def gains(folder: pathlib.Path) -> pd.DataFrame:
  """Returns the rows, in thousandths of a nat, of published results."""
  parts = []
  for benchmark in sorted(path for path in folder.iterdir() if (path / f"{BASE}.csv").is_file()):
    key = ["dataset", "model", "cal_size"]
    table = pd.read_csv(benchmark / f"{BASE}.csv").assign(benchmark=benchmark.name)
    table = table.assign(classes=table.get("n_classes", 2)).set_index(key)
    for name in METHODS:
      if (path := benchmark / f"{name}.csv").is_file():
        table[name] = 1000 * (table[f"{BASE}_logloss"] - pd.read_csv(path).set_index(key)[f"{name}_logloss"])
    parts.append(table.reset_index())
  if not parts:
    raise UserError(f"{folder} must hold folders with a {BASE}.csv, as the folder results of CalArena does.")
  by_set = pd.concat(parts).groupby(["benchmark", "dataset", "classes", "cal_size"])
  return by_set[[name for name in METHODS if any(name in part for part in parts)]].mean().round(3).reset_index()


def table(rows: pd.DataFrame) -> str:
  """Returns the Markdown table of what halves of the data sets choose, and what it gains on the others."""
  cells = []
  for fewest, most, sizes in RANGES:
    for low, high in zip(sizes, (*sizes[1:], np.inf), strict=True):
      within = rows.classes.between(fewest, most) & (rows.cal_size >= low) & (rows.cal_size < high)
      by_set = rows[within].groupby(["benchmark", "dataset"])[list(METHODS)].mean().dropna(axis=1)
      if len(by_set) < FEWEST:
        continue
      chosen, judged = _divided(by_set.assign(**{BASE: 0.0}))
      names = pd.Series(chosen).value_counts(normalize=True)
      most_often = names.index[0]
      gain = by_set.assign(**{BASE: 0.0})[most_often]
      cells.append([f"{fewest}" if fewest == most else f"{fewest} to {most}",
                    f"{low:,} or more" if np.isinf(high) else f"fewer than {high:,}" if not low else
                    f"{low:,} to {high - 1:,}", str(len(by_set)),
                    ", ".join(f"`{METHODS.get(name, 'temperature_scaling')}` {100 * share:.0f}%"
                              for name, share in names.head(2).items()),
                    f"{100 * judged.mean():.0f}%", f"{gain.median():+.1f}",
                    f"{100 * (gain > 0).mean():.0f}%"])
  return markdown.table(["classes", "calibration examples", "data sets", "chosen by halves",
                         "better than a temperature on the other half", "median gain of the first", "better on all"],
                        cells)


def _divided(by_set: pd.DataFrame) -> tuple[list[str], np.ndarray]:
  """What each random half chooses, and on which share of the other half it has a lower log loss."""
  rng, chosen, judged = np.random.default_rng(0), [], []
  clipped = by_set.clip(-MOST, MOST)
  for _ in range(DIVISIONS):
    order = rng.permutation(len(by_set))
    choosing, judging = order[:len(by_set) // 2], order[len(by_set) // 2:]
    chosen.append(clipped.iloc[choosing].mean().idxmax())
    judged.append((by_set[chosen[-1]].iloc[judging] > 0).mean())
  return chosen, np.array(judged)


def main(arguments: Sequence[str] | None = None) -> None:
  """Writes the rows, if there are results to read, and the table."""
  parser = commands.parser(__spec__.name, __doc__)
  parser.add_argument("--results", type=pathlib.Path, help="the folder results of a clone of CalArena")
  options = parser.parse_args(arguments)
  if options.results:
    write_text(ROWS, gains(options.results).to_csv(index=False))
  studies.write(ROWS.with_suffix(".md"), "experiments.calarena.published", table(pd.read_csv(ROWS)))


if __name__ == "__main__":
  main()
