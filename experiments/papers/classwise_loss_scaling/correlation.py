"""Figure 1 of Jung et al. 2023: the calibration error against three losses and the variance of class-wise losses.

Run: python -m experiments.papers.classwise_loss_scaling.correlation [--workdir=experiments/results]

A point is one of the authors' four networks of CIFAR-10-LT, as it is or calibrated by TS, ETS, PTS or CTS with one of
the objectives of fits.py, to the optimum. Losses are those of the validation images, which are fitted, and the ECE (15
equal-width bins) is that of the test images, as in class_losses.py. The text of the paper names the variance; the
other losses are those that it compares in its tables. The points are written to
`classwise_loss_scaling_correlation.csv`, and a page and the figure beside it. It takes a minute.
"""

from collections.abc import Sequence
import itertools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from calib_jax import calibrators, losses
from calib_jax._system import files
from calib_jax.reports import style
from experiments.common import commands, markdown, rows
from experiments.papers.classwise_loss_scaling import class_losses, fits, table2
from experiments.papers.classwise_loss_scaling.published import NETWORKS, TITLES

NAME = "classwise_loss_scaling_correlation"
LOSSES = {"nll": "NLL", "smoothed": "NLL, smoothed labels", "focal": "focal loss",
          "variance": "variance of class losses"}
POINTS = (("none", "base"), *itertools.product(fits.BASES, fits.OBJECTIVES))


@jax.jit
def measured(log_probs: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
  """Returns the losses by their names in ``LOSSES``, in nats; the variance, of Eq. 3 as released, in nats².

  >>> log_probs = jnp.log(jnp.array([[0.5, 0.5], [0.25, 0.75]]))
  >>> {name: round(float(value), 4) for name, value in measured(log_probs, jnp.array([0, 1])).items()}
  {'focal': 0.0456, 'nll': 0.4904, 'smoothed': 0.5041, 'variance': 0.0822}
  """
  return {"nll": jnp.mean(losses.cross_entropy(log_probs, labels)),
          "smoothed": jnp.mean(losses.cross_entropy(log_probs, labels, label_smoothing=fits.SMOOTHING)),
          "focal": jnp.mean(losses.focal(log_probs, labels, gamma=fits.GAMMA)),
          "variance": jnp.var(class_losses.class_losses(log_probs, labels), ddof=1)}


def point(network: str, calibrator: str, objective: str) -> rows.Row:
  """Returns the row of a network and a calibrator."""
  validation, test = (table2.split(network, part) for part in ("validation", "test"))
  used, params = calibrators.get("identity"), {}
  if calibrator != "none":
    used, params = fits.converged(calibrator, objective, *validation)
  values = measured(used.apply(params, validation[0]), validation[1])
  error = table2.ece(*table2.top_of(used.apply(params, test[0]), test[1]))
  return {"network": network, "calibrator": calibrator, "objective": objective, "ece": f"{float(error):.4f}",
          **{name: f"{float(values[name]):.5f}" for name in LOSSES}}


def correlations(results: pd.DataFrame) -> dict[str, float]:
  """Returns Pearson's correlation of the ECE with each loss."""
  return {name: float(np.corrcoef(results[name], results["ece"])[0, 1]) for name in LOSSES}


def page(results: pd.DataFrame) -> str:
  """Returns the page in Markdown."""
  calibrated = results[results["calibrator"] != "none"]
  by_network = {title: correlations(calibrated[calibrated["network"] == network]) for network, title in TITLES.items()}
  highest = sum(max(values, key=values.get) == "variance" for values in by_network.values())
  points = {"all": correlations(results), "all that are calibrated": correlations(calibrated),
            **{f"{title}, calibrated": values for title, values in by_network.items()}}
  return "\n".join([
    "# Calibration error and losses, after Figure 1 of Jung et al. 2023", "", *markdown.wrapped(INTRODUCTION), "",
    f"![ECE of test images against losses of validation images]({NAME}.png)", "",
    markdown.table(["points", *LOSSES.values()], ([title, *(f"{values[name]:.2f}" for name in LOSSES)]
                                                  for title, values in points.items())), "",
    *markdown.wrapped(
      "The paper says that the variance of class-wise losses has the highest correlation with the calibration error. "
      f"Among the calibrators of one network it has in {highest} of the {len(NETWORKS)}. Over all points it depends on "
      "the uncalibrated networks: the first row of the table has them, and the second has not.")]) + "\n"


INTRODUCTION = """`python -m experiments.papers.classwise_loss_scaling.correlation` wrote this page from the authors'
logits of CIFAR-10-LT: four networks, as they are and calibrated by TS, ETS, PTS and CTS with five objectives, each
fitted to its optimum. Losses are those of validation images, which are fitted, and the ECE is that of test images in
percent. The table has Pearson's correlation of both, for points as they are, without an interval: points of one
network share its images."""


@style.styled
def draw(results: pd.DataFrame, path: pathlib.Path) -> None:
  """Draws a panel for each loss, with the correlation in its title."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(8.6, 2.6), layout="constrained")
  panels = figure.subplots(1, len(LOSSES), sharey=True)
  values = correlations(results)
  for axes, (name, title) in zip(panels, LOSSES.items(), strict=True):
    for i, network in enumerate(NETWORKS):
      part, colour = results[results["network"] == network], style.COLOURS[i]
      plain, calibrated = (part[(part["calibrator"] == "none") == is_plain] for is_plain in (True, False))
      axes.plot(calibrated[name], calibrated["ece"], style.MARKERS[i], color=colour, ms=3.5, alpha=0.7, mew=0,
                label=TITLES[network])
      axes.plot(plain[name], plain["ece"], style.MARKERS[i], color=colour, ms=5, mfc="none")
    axes.set(title=f"{title} ({values[name]:.2f})", xlabel="nats²" if name == "variance" else "nats")
  panels[0].set_ylabel("ECE, % (hollow: uncalibrated)")
  panels[-1].legend(frameon=False, fontsize=7, loc="center right", handletextpad=0.2)
  files.write(path, lambda file: figure.savefig(file, format="png", dpi=160))


def main(arguments: Sequence[str] | None = None) -> None:
  """Fits everything, and writes the points, the page and the figure."""
  parser = commands.parser(__spec__.name, __doc__, results=True)
  options = parser.parse_args(arguments)
  results = []
  for calibrator, objective in POINTS:  # All networks by the same compiled program.
    results += [point(network, calibrator, objective) for network in NETWORKS]
    print(f"{calibrator}, {objective}: ECE " + ", ".join(row["ece"] for row in results[-len(NETWORKS):]), flush=True)
  path = options.workdir / f"{NAME}.csv"
  rows.write(path, results)
  table = rows.frame(path)
  files.write_text(path.with_suffix(".md"), page(table))
  draw(table, path.with_suffix(".png"))


if __name__ == "__main__":
  main()
