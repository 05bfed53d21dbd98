"""Figures 5 and 6 of Ni et al.: calibration error on corrupted images, and of networks that mixup trained.

Run: python -m experiments.papers.mac_cal.figures [--tables=ROWS.csv] [--mixup=ROWS.csv] [--output=FIGURE.png]

The first file is that of tables.py, whose page judges what the paper claims; the second that of classifier_level.py.
Corrupted images are those of severity 5 (`scales.SHIFTS`), means over corruptions.
"""

from collections.abc import Sequence
import pathlib
import re

import numpy as np

from calib_jax._system import files
from calib_jax.reports import style
from experiments.common import commands, comparison, rows
from experiments.papers.mac_cal.tables import OTHERS

RESULTS = pathlib.Path("experiments/results")
SHIFTED = OTHERS | {"masked": "MaC-Cal", "masked_printed": "MaC-Cal, printed"}
FAMILIES = {"mixup": r"mixup (\S+)", "MIT": r"MIT (\S+)"}


def shifted(results: Sequence[rows.Row]) -> dict[str, dict[str, tuple[float, float]]]:
  """Returns the mean and the standard error in percent of "ece" and "ece_shifted" by method, the best shifted first."""
  by_method = {}
  for column in ("ece", "ece_shifted"):
    for (_, method, calibrator), by_seed in comparison.values(results, column).items():
      if calibrator == "none" and method in SHIFTED:
        by_method.setdefault(SHIFTED[method], {})[column] = _mean(100 * np.array([*by_seed.values()]))
  return dict(sorted(by_method.items(), key=lambda item: item[1]["ece_shifted"]))


def mixed(results: Sequence[rows.Row]) -> dict[str, dict[float, dict[str, tuple[float, float]]]]:
  """Returns the mean and standard error of "accuracy" and "ece", in percent, by curve and by α of mixup."""
  curves: dict = {}
  for row in results:
    for family, pattern in FAMILIES.items():
      match = re.fullmatch(pattern, row["first"])
      if match and row["calibrated"] == "none" and row["second"] in ("", "MaC-Cal", "MaC-Cal, printed"):
        name = " + ".join(filter(None, (family, row["second"])))
        curves.setdefault(name, {}).setdefault(float(match[1]), []).append(row)
  return {name: {alpha: {column: _mean(np.array([float(row[column]) for row in part]))
                         for column in ("accuracy", "ece")} for alpha, part in sorted(by_alpha.items())}
          for name, by_alpha in curves.items()}


def _mean(values: np.ndarray) -> tuple[float, float]:
  return float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else np.nan


@style.styled
def draw(tables: Sequence[rows.Row], mixup: Sequence[rows.Row], path: pathlib.Path) -> None:
  """Draws both figures in one PNG: bars of Figure 5, and accuracy and ECE against α of Figure 6."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(8.6, 3.2), layout="constrained")
  bars, *panels = figure.subplots(1, 3, width_ratios=(1.6, 1, 1))
  by_method = shifted(tables)
  places = np.arange(len(by_method))
  for i, (column, label) in enumerate((("ece", "test images"), ("ece_shifted", "corrupted"))):
    means, errors = np.array([by_column[column] for by_column in by_method.values()]).T
    bars.barh(places + 0.4 * i - 0.2, means, 0.38, xerr=errors, error_kw={"lw": 0.7}, color=style.COLOURS[i],
              label=label)
  bars.set_yticks(places, list(by_method), fontsize=7)
  bars.invert_yaxis()
  bars.set(xlabel="ECE, % (as trained)", title="Figure 5: distribution shift")
  bars.legend(frameon=False, fontsize=7)
  for axes, column, label in zip(panels, ("accuracy", "ece"), ("accuracy, %", "ECE, %"), strict=True):
    for i, (name, by_alpha) in enumerate(mixed(mixup).items()):
      means, errors = np.array([values[column] for values in by_alpha.values()]).T
      axes.errorbar(list(by_alpha), means, errors, marker=style.MARKERS[i], ms=4, lw=1, color=style.COLOURS[i],
                    label=name)
    alphas = sorted({alpha for by_alpha in mixed(mixup).values() for alpha in by_alpha})
    axes.set_xscale("log")
    axes.set_xticks(alphas, [f"{alpha:g}" for alpha in alphas])
    axes.minorticks_off()
    axes.set(xlabel=r"$\alpha$ of mixup", title=f"Figure 6: {label}")
  panels[1].legend(frameon=False, fontsize=7)
  files.write(path, lambda file: figure.savefig(file, format="png", dpi=160))


def main(arguments: Sequence[str] | None = None) -> None:
  """Draws the figures from the rows of the two experiments."""
  parser = commands.parser(__spec__.name, __doc__)
  parser.add_argument("--tables", type=pathlib.Path, default=RESULTS / "mac_cal_tables_fashion_mnist_mlp.csv")
  parser.add_argument("--mixup", type=pathlib.Path, default=RESULTS / "classifier_level_fashion_mnist_mlp.csv")
  parser.add_argument("--output", type=pathlib.Path, default=RESULTS / "mac_cal_figures.png")
  options = parser.parse_args(arguments)
  results = {path: rows.read(path) for path in (options.tables, options.mixup)}
  for path in results:
    if not results[path]:
      parser.error(f"{path} is not there: give the .csv of an experiment by --tables and --mixup.")
  draw(results[options.tables], results[options.mixup], options.output)
  print(f"{options.output} holds the figure.")


if __name__ == "__main__":
  main()
