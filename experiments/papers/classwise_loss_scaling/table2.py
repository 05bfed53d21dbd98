"""Table 2 of Jung et al. 2023, the CIFAR-10-LT half, from its authors' own logits.

Run: python -m experiments.papers.classwise_loss_scaling.table2 [--workdir=experiments/results]

TS, ETS, PTS and CTS are fitted with each objective of the paper, to the optimum by the project's calibrators and by the
steps that the paper took (fits.py), and with a class-balanced NLL, which the paper lacks. The optima come first, and
all take some minutes. The published values are those of page 8 of the paper (ICML 2023, PMLR 202).
"""

import functools
import itertools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from calib_jax import metrics
from calib_jax._system.files import read_npz
from experiments.common import markdown, rows, studies
from experiments.papers.classwise_loss_scaling import fits

DATA = pathlib.Path(__file__).parent / "data"
TITLES = {"densenet40": "DenseNet-40", "wide_resnet28": "WRN-28", "resnet110": "ResNet-110",
          "resnet110_stochastic_depth": "ResNet-110-SD"}
NETWORKS = tuple(TITLES)
PUBLISHED = rows.frame(DATA / "published_table_2.csv").set_index(["network", "calibrator", "objective"])
NAME = "classwise_loss_scaling_table2"
FITS = ("optimum", "steps", "two rates")
NAMED = ("network", "calibrator", "objective", "fit")
RESAMPLES = 300
CLOSE = 0.15  # Points of ECE.
BIAS = metrics.bias_model(metrics.calibration_error)


def ece(confidence, correct):
  """ECE in percent, 15 equal-width bins."""
  return 100 * metrics.calibration_error(confidence, correct)


@jax.jit
def top_of(log_probs, labels):
  """Returns the confidences, at most 1, and whether the top class is the label."""
  return metrics.top_label(jnp.minimum(jnp.exp(log_probs), 1), labels)


def measured(log_probs, labels) -> dict[str, float]:
  """Returns ECE and accuracy in percent, the ECE less its bias with its 95% interval, and the noise floor."""
  confidence, correct = top_of(log_probs, labels)
  key = jax.random.key(0)
  corrected, low, high = metrics.bootstrap(ece, confidence, correct, key=key, num_resamples=RESAMPLES,
                                           method="bias_corrected", bias=BIAS)
  floor, _, floor_high = metrics.consistency_interval(ece, confidence, key=key, num_resamples=RESAMPLES)
  return {"ece": ece(confidence, correct), "accuracy": 100 * jnp.mean(correct), "ece_corrected": corrected,
          "ece_low": low, "ece_high": high, "floor": floor, "floor_high": floor_high}


def jobs(networks=NETWORKS) -> list[tuple[str, str, str, str]]:
  """Returns the network, calibrator, objective and fit of every row."""
  grid = [("none", "base", "optimum")]
  grid += [(*pair, "optimum") for pair in itertools.product(fits.BASES, fits.OBJECTIVES)]
  grid += [(*pair, "steps") for pair in itertools.product(fits.BASES, fits.STEPS)]
  grid += [(calibrator, objective, "two rates") for calibrator in ("TS", "CTS") for objective in ("LS", "FL")]
  return [(network, *rest) for rest in grid for network in networks]


@functools.cache
def split(network: str, part: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns the logits and labels of a network's ``part``, "validation" or "test"."""
  arrays = read_npz(DATA / f"cifar10_lt_{network}_{part}.npz")
  return arrays["logits"], arrays["labels"].astype(np.int32)


def run(network: str, calibrator: str, objective: str, fit: str) -> list[rows.Row]:
  """Fits on the validation split and returns the row of the test split."""
  logits, labels = split(network, "validation")
  if fit == "optimum":
    used, params = fits.converged(calibrator, objective, logits, labels)
  else:
    num_rates = 2 if fit == "two rates" else 3
    used, params = fits.STEPPED[calibrator][0], fits.stepped(calibrator, objective, logits, labels, num_rates)
  test_logits, test_labels = split(network, "test")
  values = measured(used.apply(params, test_logits), test_labels)
  key = network, calibrator, objective
  printed = PUBLISHED.loc[key] if key in PUBLISHED.index else {"ece": "", "accuracy": ""}
  return [{name: f"{float(value):.4f}" for name, value in values.items()} | {
    "converged": str(bool(params["converged"])) if "converged" in params else "",
    "iterations": str(int(params["iterations"])) if "iterations" in params else "",
    "published_ece": str(printed["ece"]), "published_accuracy": str(printed["accuracy"])}]


def difference(results: pd.DataFrame) -> pd.Series:
  """Returns the distance of each ECE from the published one in points, to two digits as the paper's."""
  return (results["ece"].map(lambda x: round(x, 2)) - results["published_ece"]).abs().map(lambda x: round(x, 2))


def balanced_shares(optima: pd.DataFrame) -> dict[str, float]:
  """Returns by calibrator the part of CLS's fall in ECE that the class-balanced NLL has, a mean over networks."""
  ece = optima.pivot(index=["calibrator", "network"], columns="objective", values="ece").drop("none", errors="ignore")
  shares = (ece["base"] - ece["balanced"]) / (ece["base"] - ece["CLS"])
  return shares.dropna().groupby(level="calibrator").mean().reindex(list(fits.BASES)).dropna().to_dict()


def page(results: pd.DataFrame) -> str:
  """Returns the Markdown of the results: the tables, what agrees, and why the rest differs."""
  results = results.assign(difference=difference(results), is_published=results["published_ece"].notna())
  results["close"] = results["difference"] <= CLOSE
  printed = results[results["is_published"] & (results["calibrator"] != "none")]
  close = printed[printed["close"]]
  largest = results.pivot_table(index="calibrator", columns=["objective", "fit"], values="difference", aggfunc="max")
  largest = largest.reindex(index=list(fits.BASES), columns=list(itertools.product(fits.STEPS, ("steps", "optimum"))))
  largest = largest.map(lambda x: "" if np.isnan(x) else f"{x:.2f}")
  return markdown.filled(
    "papers/classwise_loss_scaling/table2.md.jinja", titles=TITLES, resamples=RESAMPLES, limit=CLOSE,
    cells=results.set_index(list(NAMED)).to_dict("index"), pairs=dict.fromkeys(job[1:3] for job in jobs()),
    largest=largest.set_axis(largest.columns.map(", ".join), axis=1),
    number=len(rows.keys(printed, NAMED[:3])), fits=set(results["fit"]),
    close={fit: rows.keys(close[close["fit"] == fit], NAMED[:3]) for fit in FITS},
    balanced=balanced_shares(results[results["fit"] == "optimum"]))


STUDY = studies.Study(NAME, NAMED, tuple(jobs()), run, page)

if __name__ == "__main__":
  studies.main(__spec__.name, __doc__, STUDY)
