"""Figures 2, 5, 7, 8 and 9 of Karandikar et al. 2021, from the rows of tables.py and severities.py.

Run: python -m experiments.papers.soft_calibration.figures [--tables=ROWS.csv] [--severities=ROWS.csv] [--out=DIR]

Figure 5 shows the ECE (15 equal-mass bins, norm 2) of every primary and secondary loss, with the accuracy at the foot
of each bar. Figures 2 and 9 show it against the severity of corruptions, as trained and after TS and TS-SB-ECE; Figures
7 and 8 show the secondary losses in the same way. Bars of Figure 5 are one standard error over seeds; those of the
others are over corruptions with the differences between these removed, as the paper says. A page beside the figures has
the numbers, and says what the rows do not hold.
"""

from collections.abc import Mapping, Sequence
import pathlib

from matplotlib.axes import Axes
import numpy as np
import pandas as pd

from calib_jax import metrics
from calib_jax._system.files import write_text
from calib_jax.evaluation.reports import style
from experiments.common import commands, markdown, rows
from experiments.common.figures import png

NAME = "soft_calibration_severities"
COLUMN = "ece_equal_mass_l2"
SECONDARY = {"": "alone", "mmce": "MMCE", "avuc": "AvUC", "avuc_gs": "AvUC, GS", "soft_avuc": "S-AvUC",
             "soft_binned_ece": "SB-ECE"}
PRIMARY = {"cross_entropy": "cross entropy", "focal": "focal", "brier": "Brier"}
LINES = ("", "mmce", "soft_avuc", "soft_binned_ece")  # The secondary losses of Figures 7 and 8.
AFTER = {"none": "as trained", "TS": "TS", "TS-SB-ECE": "TS-SB-ECE"}
Curve = tuple[str, str]  # A method and a calibrator.


def name_of(primary: str, secondary: str) -> str:
  """Returns the name of a method in rows.

  >>> name_of("focal", ""), name_of("focal", "mmce")
  ('focal', 'focal+mmce')
  """
  return "+".join(filter(None, (primary, secondary)))


def bars(results: pd.DataFrame, primary: str) -> pd.DataFrame:
  """Returns the mean ECE, its standard error over seeds and the accuracy, in percent, by secondary loss."""
  names = {name_of(primary, secondary): secondary for secondary in SECONDARY}
  part = results[(results["calibrator"] == "none") & results["method"].isin(names)]
  seeds = (100 * part.set_index("method")[[COLUMN, "accuracy"]].astype(float)).rename(index=names).groupby(level=0)
  means = pd.DataFrame({"ece": seeds[COLUMN].mean(), "error": seeds[COLUMN].sem().fillna(0.0),
                        "accuracy": seeds["accuracy"].mean()})
  return means.loc[[secondary for secondary in SECONDARY if secondary in means.index]]


def by_severity(results: pd.DataFrame) -> dict[Curve, pd.DataFrame]:
  """Returns the ECE in percent, mean over seeds, by method and calibrator: severities × corruptions."""
  means = 100 * results.groupby(["method", "calibrator", "severity", "corruption"], sort=False)[COLUMN].mean()
  return {curve: part.droplevel([0, 1]).unstack(sort=False) for curve, part in means.groupby(level=[0, 1], sort=False)}


def lines(values: Mapping[Curve, pd.DataFrame], curves: Sequence[Curve]) -> tuple[list[int], np.ndarray, np.ndarray]:
  """Returns the severities, the mean ECE over corruptions and the standard error of differences between the curves."""
  severities = sorted(values[curves[0]].index)
  means = np.array([values[curve].mean(axis=1)[severities] for curve in curves])
  errors = []
  for level in severities:
    x = np.array([values[curve].loc[level].dropna() for curve in curves]).T
    errors.append(float(metrics.within_subject_sem(x)) if min(x.shape) > 1 else np.nan)
  return severities, means, np.array(errors)


def draw_bars(results: pd.DataFrame, path: pathlib.Path) -> None:
  """Draws Figure 5 in one PNG: a panel for each primary loss."""
  with png(path, 7.6, 2.7) as figure:
    panels = figure.subplots(1, len(PRIMARY), sharey=True)
    for axes, (primary, title) in zip(panels, PRIMARY.items(), strict=True):
      means = bars(results, primary)
      places = np.arange(len(means))
      own = [style.COLOURS[2 if name.startswith("soft") else 0] if name else style.INK for name in means.index]
      axes.bar(places, means["ece"], 0.8, yerr=means["error"], error_kw={"lw": 0.8}, color=own)
      for place, accuracy in zip(places, means["accuracy"], strict=True):
        axes.annotate(f"{accuracy:.1f}", (place, 0), (0, 3), textcoords="offset points", fontsize=6, color="white",
                      ha="center")
      axes.set_xticks(places, [SECONDARY[name] for name in means.index], rotation=45, ha="right",
                      rotation_mode="anchor", fontsize=7)
      axes.set_title(title)
    panels[0].set_ylabel("ECE, % (accuracy, %, at the foot)")


def draw_severities(results: pd.DataFrame, path: pathlib.Path) -> None:
  """Draws Figures 2 and 9 (upper row) and 7 and 8 (lower row) in one PNG: a column for each primary loss."""
  with png(path, 7.6, 4.6) as figure:
    panels = figure.subplots(2, len(PRIMARY), sharex=True, sharey=True)
    for column, (primary, title) in enumerate(PRIMARY.items()):
      _panel(panels[0, column], results, {(primary, calibrator): label for calibrator, label in AFTER.items()})
      labels = {(name_of(primary, secondary), "none"): SECONDARY[secondary] for secondary in LINES}
      _panel(panels[1, column], results, labels | {(primary, "TS"): "alone, TS"})
      panels[0, column].set_title(title)
      panels[1, column].set(xlabel="severity (0: test images)")
    panels[0, 0].set_ylabel("ECE, %: Figures 2, 9")
    panels[1, 0].set_ylabel("ECE, %: Figures 7, 8")
    for axes in panels[:, 0]:
      axes.legend(frameon=False, fontsize=7, loc="upper left")


def _panel(axes: Axes, results: pd.DataFrame, labels: Mapping[Curve, str]) -> None:
  """Draws the curves of ``labels`` that the rows have."""
  values = by_severity(results)
  curves = [curve for curve in labels if curve in values]
  if curves:
    severities, means, errors = lines(values, curves)
    for i, (curve, mean) in enumerate(zip(curves, means, strict=True)):
      axes.errorbar(severities, mean, np.nan_to_num(errors), marker=style.MARKERS[i], ms=3.5, lw=1.2,
                    color=style.COLOURS[i], label=labels[curve])


def page(results: pd.DataFrame, name: str) -> str:
  """Returns the page in Markdown; ``name`` is that of the files."""
  values = by_severity(results)
  severities, means, _ = lines(values, list(values))
  by_curve = dict(zip(values, means, strict=True))
  methods = list(dict.fromkeys(method for method, _ in values))
  corruptions = sorted(set(results["corruption"]) - {"none"})
  lower = [sum(bool(by_curve[method, "TS-SB-ECE"][i] < by_curve[method, "TS"][i]) for method in methods)
           for i in range(len(severities))]
  best = [min(methods, key=lambda method, i=i: by_curve[method, "none"][i]) for i in (0, len(severities) - 1)]
  return markdown.filled("papers/soft_calibration/severities.md.jinja", name=name, methods=methods, lower=lower,
                         num_seeds=results["seed"].nunique(), corruptions=corruptions, severities=severities,
                         by_curve=by_curve, best=best)


def main(arguments: Sequence[str] | None = None) -> None:
  """Draws the figures, and writes the page."""
  parser = commands.parser(__spec__.name, __doc__)
  for option, name in (("--tables", "soft_calibration_tables"), ("--severities", NAME)):
    parser.add_argument(option, type=pathlib.Path, default=commands.RESULTS / f"{name}_fashion_mnist_mlp.csv")
  parser.add_argument("--out", type=pathlib.Path, default=commands.RESULTS, help="where the figures go")
  options = parser.parse_args(arguments)
  results = {path: rows.frame(path) for path in (options.tables, options.severities)}
  for path in results:
    if results[path].empty:
      parser.error(f"{path} is not there: name rows of tables.py by --tables, and of severities.py by --severities.")
  figure_5 = options.out / f"{options.tables.stem}_figure_5.png"
  draw_bars(results[options.tables], figure_5)
  stem = options.out / options.severities.stem
  draw_severities(results[options.severities], stem.with_suffix(".png"))
  write_text(stem.with_suffix(".md"), page(results[options.severities], stem.name))
  print(f"{figure_5} and {stem.with_suffix('.md')} hold the figures.")


if __name__ == "__main__":
  main()
