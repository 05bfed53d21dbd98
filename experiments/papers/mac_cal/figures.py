"""Figures 4 to 6 of Ni et al.: means over networks, corrupted images, and networks that mixup trained.

Run: python -m experiments.papers.mac_cal.figures [--tables ROWS.csv …] [--heads ROWS.csv …] [--output=FIGURE.png]

The first files are those of tables.py, whose pages judge what the paper claims; the others are those of
classifier_level.py. Figure 4, in a file of its own that ends in `_means.png`, shows means over all networks of either;
Figure 5 is of the first of the first, and Figure 6 of the first of the others. Corrupted images are those of severity 5
(`scales.SHIFTS`), means over corruptions.
"""

from collections.abc import Mapping, Sequence
import pathlib

from matplotlib.axes import Axes
import numpy as np
import pandas as pd

from calib_jax.evaluation.reports import style
from experiments.common import commands, rows
from experiments.common.figures import png
from experiments.papers.mac_cal.tables import OTHERS

RESULTS = pathlib.Path("experiments/results")
SHIFTED = OTHERS | {"masked": "MaC-Cal", "masked_printed": "MaC-Cal, printed"}
LEVELS = tuple(RESULTS / f"classifier_level_{name}.csv" for name in (
  "fashion_mnist_mlp", "cifar10_jpeg_mlp", "cifar10_jpeg_resnet8"))
HEADS = {"": "vanilla", "MaC-Cal": "MaC-Cal", "MaC-Cal, printed": "MaC-Cal, printed", "TST": "TST", "V-TST": "V-TST",
         "TST, Adam": "TST, Adam", "V-TST, Adam": "V-TST, Adam"}
AVERAGED = {"accuracy": "accuracy, %", "mce": "MCE, %", "adaptive": "adaptive ECE, %"}
FAMILIES = ("mixup", "MIT")


def shifted(results: pd.DataFrame) -> pd.DataFrame:
  """Returns the means and the standard errors in percent of "ece" and "ece_shifted" by method, best shifted first."""
  columns = ["ece", "ece_shifted"]
  return 100 * _as_trained(results).groupby("method", sort=False)[columns].agg(["mean", "sem"]).sort_values(
    ("ece_shifted", "mean"))


def _as_trained(results: pd.DataFrame) -> pd.DataFrame:
  """The rows of methods without a calibrator, by what they are called."""
  part = results[(results["calibrator"] == "none") & results["method"].isin(SHIFTED)]
  return part.assign(method=part["method"].map(SHIFTED))


def averages(tables: Sequence[pd.DataFrame]) -> tuple[int, pd.DataFrame]:
  """Returns over how many networks Figure 4 has means, and these in percent by method and column, as trained."""
  by_network = [100 * part.groupby("method", sort=False)[list(AVERAGED)].mean()
                for results in tables for _, part in _as_trained(results).groupby("task", sort=False)]
  return _means_of(by_network, list(dict.fromkeys(SHIFTED.values())))


def averages_of_heads(networks: Sequence[pd.DataFrame]) -> tuple[int, pd.DataFrame]:
  """Returns the same of second stages on the features of a trained network, from the rows of classifier_level.py."""
  by_network = []
  for results in networks:
    part = results[(results["first"] == "vanilla") & (results["calibrated"] == "none")]
    part = part.assign(adaptive=part["adaptive_ece"], method=part["second"].map(HEADS))
    by_network.append(part.groupby("method")[list(AVERAGED)].mean())
  return _means_of(by_network, list(HEADS.values()))


def _means_of(networks: Sequence[pd.DataFrame], methods: Sequence[str]) -> tuple[int, pd.DataFrame]:
  """Returns the number of networks, and means of the methods that all of them have, the lowest adaptive ECE first."""
  common = [method for method in methods if all(method in network.index for network in networks)]
  means = pd.concat([network.loc[common] for network in networks]).groupby(level=0, sort=False).mean()
  return len(networks), means.sort_values("adaptive", kind="stable")


def mixed(results: pd.DataFrame) -> dict[str, pd.DataFrame]:
  """Returns the means and the standard errors of "accuracy" and "ece", in percent, by curve and by α of mixup."""
  curves = {}
  part = results[(results["calibrated"] == "none") & results["second"].isin(["", "MaC-Cal", "MaC-Cal, printed"])]
  for family in FAMILIES:
    alphas = part["first"].str.extract(rf"^{family} (\S+)$")[0].astype(float)
    for second, rows_of_curve in part.assign(alpha=alphas).dropna(subset="alpha").groupby("second", sort=False):
      curves[" + ".join(filter(None, (family, second)))] = rows_of_curve.groupby("alpha")[["accuracy", "ece"]].agg(
        ["mean", "sem"])
  return curves


def draw(tables: pd.DataFrame, mixup: pd.DataFrame, path: pathlib.Path) -> None:
  """Draws both figures in one PNG: bars of Figure 5, and accuracy and ECE against α of Figure 6."""
  with png(path, 8.6, 3.2) as figure:
    bars, *panels = figure.subplots(1, 3, width_ratios=(1.6, 1, 1))
    by_method = shifted(tables)
    places = np.arange(len(by_method))
    for i, (column, label) in enumerate((("ece", "test images"), ("ece_shifted", "corrupted"))):
      bars.barh(places + 0.4 * i - 0.2, by_method[column, "mean"], 0.38, xerr=by_method[column, "sem"],
                error_kw={"lw": 0.7}, color=style.COLOURS[i], label=label)
    bars.set_yticks(places, by_method.index, fontsize=7)
    bars.invert_yaxis()
    bars.set(xlabel="ECE, % (as trained)", title="Figure 5: distribution shift")
    bars.legend(frameon=False, fontsize=7)
    for axes, column, label in zip(panels, ("accuracy", "ece"), ("accuracy, %", "ECE, %"), strict=True):
      for i, (name, by_alpha) in enumerate(mixed(mixup).items()):
        axes.errorbar(by_alpha.index, by_alpha[column, "mean"], by_alpha[column, "sem"],
                      marker=style.MARKERS[i], ms=4, lw=1, color=style.COLOURS[i], label=name)
      alphas = sorted({alpha for by_alpha in mixed(mixup).values() for alpha in by_alpha.index})
      axes.set_xscale("log")
      axes.set_xticks(alphas, [f"{alpha:g}" for alpha in alphas])
      axes.minorticks_off()
      axes.set(xlabel=r"$\alpha$ of mixup", title=f"Figure 6: {label}")
    panels[1].legend(frameon=False, fontsize=7)


def draw_means(parts: Mapping[str, tuple[int, pd.DataFrame]], path: pathlib.Path) -> None:
  """Draws Figure 4 in one PNG: a panel for each column, and rows of panels for the ``parts`` by their titles."""
  with png(path, 8.6, 0.8 * len(parts) + 0.15 * sum(len(means) for _, means in parts.values())) as figure:
    grid = figure.subplots(len(parts), len(AVERAGED), sharey="row", squeeze=False,
                           height_ratios=[len(means) for _, means in parts.values()])
    for panels, (title, (number, means)) in zip(grid, parts.items(), strict=True):
      for axes, (column, label) in zip(panels, AVERAGED.items(), strict=True):
        _bars(axes, column, means[column].to_numpy(), means.index)
        axes.set_title(label)
      panels[0].set_title(f"{title}: {AVERAGED['accuracy']}, means over {number} network{'s' * (number > 1)}")
      panels[0].set_yticks(np.arange(len(means)), means.index, fontsize=7)
      panels[0].invert_yaxis()


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
  tables = [rows.frame(path, text=["task"]) for path in options.tables]
  heads = [rows.frame(path, text=["second"]) for path in options.heads]
  for path, table in zip([*options.tables, *options.heads], [*tables, *heads], strict=True):
    if table.empty:
      parser.error(f"{path} is not there: give the .csv files of experiments by --tables and --heads.")
  tables, heads = ([x.fillna({name: ""}) for x in of_kind] for name, of_kind in (("task", tables), ("second", heads)))
  means = options.output.with_stem(f"{options.output.stem}_means")
  draw(tables[0], heads[0], options.output)
  draw_means({"training methods": averages(tables), "heads on frozen features": averages_of_heads(heads)}, means)
  print(f"{options.output} and {means} hold the figures.")


if __name__ == "__main__":
  main()
