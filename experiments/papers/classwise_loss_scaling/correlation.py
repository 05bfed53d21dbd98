"""Figure 1 of Jung et al. 2023: the calibration error against three losses and the variance of class-wise losses.

Run: python -m experiments.papers.classwise_loss_scaling.correlation [--workdir=experiments/results]

A point is one of the authors' four networks of CIFAR-10-LT, as it is or calibrated by TS, ETS, PTS or CTS with one of
the objectives of fits.py, to the optimum. Losses are those of the validation images, which are fitted, and the ECE (15
equal-width bins) is that of the test images, as in class_losses.py. The text of the paper names the variance; the other
losses are those that it compares in its tables. It takes a minute.
"""

import itertools
import pathlib

import jax
import jax.numpy as jnp
import pandas as pd

from calib_jax import losses
from calib_jax.evaluation.reports import style
from experiments.common import markdown, rows, studies
from experiments.common.figures import png
from experiments.papers.classwise_loss_scaling import fits, table2
from experiments.papers.classwise_loss_scaling.table2 import NETWORKS, TITLES

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
          "variance": jnp.var(fits.class_losses(log_probs, labels), ddof=1)}


def point(network: str, calibrator: str, objective: str) -> list[rows.Row]:
  """Returns the row of a network and a calibrator."""
  validation, test = (table2.split(network, part) for part in ("validation", "test"))
  used, params = fits.converged(calibrator, objective, *validation)
  values = measured(used.apply(params, validation[0]), validation[1])
  error = table2.ece(*table2.top_of(used.apply(params, test[0]), test[1]))
  return [{"ece": f"{float(error):.4f}", **{name: f"{float(values[name]):.5f}" for name in LOSSES}}]


def correlations(results: pd.DataFrame) -> pd.Series:
  """Returns Pearson's correlation of the ECE with each loss."""
  return results[list(LOSSES)].corrwith(results["ece"])


def page(results: pd.DataFrame) -> str:
  """Returns the page in Markdown."""
  calibrated = results[results["calibrator"] != "none"]
  by_network = {f"{title}, calibrated": correlations(calibrated[calibrated["network"] == network])
                for network, title in TITLES.items()}
  return markdown.filled(
    "papers/classwise_loss_scaling/correlation.md.jinja", losses=LOSSES, number=len(NETWORKS),
    highest=sum(values.idxmax() == "variance" for values in by_network.values()),
    points={"all": correlations(results), "all that are calibrated": correlations(calibrated), **by_network})


def draw(results: pd.DataFrame, path: pathlib.Path) -> None:
  """Draws a panel for each loss, with the correlation in its title."""
  with png(path, 8.6, 2.6) as figure:
    panels = figure.subplots(1, len(LOSSES), sharey=True)
    values = correlations(results)
    for axes, (name, title) in zip(panels, LOSSES.items(), strict=True):
      for (network, label), marker, colour in zip(TITLES.items(), style.MARKERS, style.COLOURS, strict=False):
        part = results[results["network"] == network]
        plain, calibrated = (part[(part["calibrator"] == "none") == is_plain] for is_plain in (True, False))
        axes.plot(calibrated[name], calibrated["ece"], marker, color=colour, ms=3.5, alpha=0.7, mew=0, label=label)
        axes.plot(plain[name], plain["ece"], marker, color=colour, ms=5, mfc="none")
      axes.set(title=f"{title} ({values[name]:.2f})", xlabel="nats²" if name == "variance" else "nats")
    panels[0].set_ylabel("ECE, % (hollow: uncalibrated)")
    panels[-1].legend(frameon=False, fontsize=7, loc="center right", handletextpad=0.2)


# All networks by the same compiled program.
STUDY = studies.Study(NAME, ("network", "calibrator", "objective"),
                      tuple((network, *pair) for pair in POINTS for network in NETWORKS), point, page, draw=draw)

if __name__ == "__main__":
  studies.main(__spec__.name, __doc__, STUDY)
