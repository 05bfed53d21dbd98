"""Figures 4 to 6 of Ni et al.: means over networks, corrupted images, and networks that mixup trained.

Run: python -m experiments.papers.mac_cal.figures [--tables ROWS.csv …] [--heads ROWS.csv …] [--output=FIGURE.png]

The first files are those of tables.py, whose pages judge what the paper claims; the others are those of
classifier_level.py. Figure 4, in a file of its own that ends in `_means.png`, shows means over all networks of either;
Figure 5 is of the first of the first, and Figure 6 of the first of the others. Corrupted images are those of severity 5
(`scales.SHIFTS`), means over corruptions.
"""

from collections.abc import Mapping, Sequence
import pathlib
import re

from matplotlib.axes import Axes
import numpy as np

from calib_jax._system import files
from calib_jax.reports import style
from experiments.common import commands, comparison, rows
from experiments.papers.mac_cal.tables import OTHERS

RESULTS = pathlib.Path("experiments/results")
SHIFTED = OTHERS | {"masked": "MaC-Cal", "masked_printed": "MaC-Cal, printed"}
LEVELS = tuple(RESULTS / f"classifier_level_{name}.csv" for name in (
  "fashion_mnist_mlp", "cifar10_jpeg_mlp", "cifar10_jpeg_resnet8"))
HEADS = {"": "vanilla", "MaC-Cal": "MaC-Cal", "MaC-Cal, printed": "MaC-Cal, printed", "TST": "TST", "V-TST": "V-TST",
         "TST, Adam": "TST, Adam", "V-TST, Adam": "V-TST, Adam"}
AVERAGED = {"accuracy": "accuracy, %", "mce": "MCE, %", "adaptive": "adaptive ECE, %"}
FAMILIES = {"mixup": r"mixup (\S+)", "MIT": r"MIT (\S+)"}


def shifted(results: Sequence[rows.Row]) -> dict[str, dict[str, tuple[float, float]]]:
  """Returns the mean and the standard error in percent of "ece" and "ece_shifted" by method, the best shifted first."""
  by_method = {}
  for column in ("ece", "ece_shifted"):
    for (_, method, calibrator), by_seed in comparison.values(results, column).items():
      if calibrator == "none" and method in SHIFTED:
        by_method.setdefault(SHIFTED[method], {})[column] = _mean(100 * np.array([*by_seed.values()]))
  return dict(sorted(by_method.items(), key=lambda item: item[1]["ece_shifted"]))


def averages(tables: Sequence[Sequence[rows.Row]]) -> tuple[int, dict[str, dict[str, float]]]:
  """Returns over how many networks Figure 4 has means, and these in percent by method and column, as trained.

  Each network counts once, with the mean over its seeds; methods that a network lacks are left out.

  Args:
    tables: the rows of tables.py, a sequence for each file.
  """
  networks: list[dict[str, dict[str, float]]] = []
  for results in tables:
    by_task: dict[str, dict[str, dict[str, float]]] = {}
    for column in AVERAGED:
      for (task, method, calibrator), by_seed in comparison.values(results, column).items():
        if calibrator == "none" and method in SHIFTED:
          by_method = by_task.setdefault(task, {}).setdefault(SHIFTED[method], {})
          by_method[column] = 100 * float(np.mean([*by_seed.values()]))
    networks += by_task.values()
  return len(networks), _means_of(networks, list(SHIFTED.values()))


def averages_of_heads(networks: Sequence[Sequence[rows.Row]]) -> tuple[int, dict[str, dict[str, float]]]:
  """Returns the same of second stages on the features of a trained network, from the rows of classifier_level.py."""
  columns = {"accuracy": "accuracy", "mce": "mce", "adaptive": "adaptive_ece"}
  by_network = []
  for results in networks:
    parts: dict[str, list[rows.Row]] = {}
    for row in results:
      if (row["first"], row["calibrated"]) == ("vanilla", "none") and row["second"] in HEADS:
        parts.setdefault(HEADS[row["second"]], []).append(row)
    by_network.append({label: {name: float(np.mean([float(row[column]) for row in part]))
                               for name, column in columns.items()} for label, part in parts.items()})
  return len(by_network), _means_of(by_network, list(HEADS.values()))


def _means_of(networks: Sequence[dict[str, dict[str, float]]], methods: Sequence[str]) -> dict[str, dict[str, float]]:
  """Returns the means over networks of the methods that all of them have, the lowest adaptive ECE first."""
  found = {method: {column: float(np.mean([network[method][column] for network in networks])) for column in AVERAGED}
           for method in methods if all(method in network for network in networks)}
  return dict(sorted(found.items(), key=lambda item: item[1]["adaptive"]))


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


@style.styled
def draw_means(parts: Mapping[str, tuple[int, dict[str, dict[str, float]]]], path: pathlib.Path) -> None:
  """Draws Figure 4 in one PNG: a panel for each column, and rows of panels for the ``parts`` by their titles."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(8.6, 0.8 * len(parts) + 0.15 * sum(len(by_method) for _, by_method in parts.values())),
                  layout="constrained")
  grid = figure.subplots(len(parts), len(AVERAGED), sharey="row", squeeze=False,
                         height_ratios=[len(by_method) for _, by_method in parts.values()])
  for panels, (title, (number, by_method)) in zip(grid, parts.items(), strict=True):
    for axes, (column, label) in zip(panels, AVERAGED.items(), strict=True):
      _bars(axes, column, np.array([values[column] for values in by_method.values()]), list(by_method))
      axes.set_title(label)
    panels[0].set_title(f"{title}: {AVERAGED['accuracy']}, means over {number} network{'s' * (number > 1)}")
    panels[0].set_yticks(np.arange(len(by_method)), list(by_method), fontsize=7)
    panels[0].invert_yaxis()
  files.write(path, lambda file: figure.savefig(file, format="png", dpi=160))


def _bars(axes: Axes, column: str, means: np.ndarray, names: Sequence[str]) -> None:
  colours = [style.COLOURS[1] if name.startswith("MaC-Cal") else style.COLOURS[0] for name in names]
  places, least = np.arange(len(means)), 0.0
  if column == "accuracy":  # Accuracies differ little beside their size, and bars would have to begin at 0.
    axes.scatter(means, places, 18, color=colours)
    least = 0.97 * means.min()
  else:
    axes.barh(places, means, 0.7, color=colours)
  for place, mean in zip(places, means, strict=True):
    axes.annotate(f"{mean:.1f}", (mean, place), (4, 0), textcoords="offset points", va="center", fontsize=6)
  axes.set_xlim(least, means.max() + 0.12 * (means.max() - least))


def main(arguments: Sequence[str] | None = None) -> None:
  """Draws the figures from the rows of the two experiments."""
  parser = commands.parser(__spec__.name, __doc__)
  parser.add_argument("--tables", type=pathlib.Path, nargs="+", help="one file a network, the first for Figure 5",
                      default=[RESULTS / "mac_cal_tables_fashion_mnist_mlp.csv"])
  parser.add_argument("--heads", type=pathlib.Path, nargs="+", help="one file a network, the first for Figure 6",
                      default=LEVELS)
  parser.add_argument("--output", type=pathlib.Path, default=RESULTS / "mac_cal_figures.png")
  options = parser.parse_args(arguments)
  results = {path: rows.read(path) for path in (*options.tables, *options.heads)}
  for path in results:
    if not results[path]:
      parser.error(f"{path} is not there: give the .csv files of experiments by --tables and --heads.")
  tables, heads = ([results[path] for path in paths] for paths in (options.tables, options.heads))
  means = options.output.with_stem(f"{options.output.stem}_means")
  draw(tables[0], heads[0], options.output)
  draw_means({"training methods": averages(tables), "heads on frozen features": averages_of_heads(heads)}, means)
  print(f"{options.output} and {means} hold the figures.")


if __name__ == "__main__":
  main()
