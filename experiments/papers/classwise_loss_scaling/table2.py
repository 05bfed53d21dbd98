"""Table 2 of Jung et al. 2023, the CIFAR-10-LT half, from its authors' own logits.

Run: python -m experiments.papers.classwise_loss_scaling.table2 [--workdir=experiments/results] [--fits optimum]

TS, ETS, PTS and CTS are fitted with each objective of the paper, to the optimum by the project's calibrators and by the
steps that the paper took (fits.py), and with a class-balanced NLL, which the paper lacks. The results are appended to
`classwise_loss_scaling_table2.csv`, and what it already holds is skipped; the table is written beside it (`.md`).
The optima take 40 seconds on two cores and come first; the paper's many steps take another minute. `--fits optimum`
leaves these out.
"""

from concurrent import futures
import functools
import itertools
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from calib_jax import calibrators, metrics
from calib_jax._system.files import read_npz, write_text
from experiments.common import commands, markdown, rows
from experiments.papers.classwise_loss_scaling import findings, fits
from experiments.papers.classwise_loss_scaling.published import NETWORKS, TITLES, published

DATA = pathlib.Path(__file__).parent / "data"
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


def run(network: str, calibrator: str, objective: str, fit: str) -> dict[str, str]:
  """Fits on the validation split and returns the row of the test split."""
  logits, labels = split(network, "validation")
  if calibrator == "none":
    used, params = calibrators.get("identity"), {}
  elif fit == "optimum":
    used, params = fits.converged(calibrator, objective, logits, labels)
  else:
    num_rates = 2 if fit == "two rates" else 3
    used, params = fits.STEPPED[calibrator][0], fits.stepped(calibrator, objective, logits, labels, num_rates)
  test_logits, test_labels = split(network, "test")
  values = measured(used.apply(params, test_logits), test_labels)
  printed = published(network, calibrator, objective) or ("", "")
  return dict(zip(NAMED, (network, calibrator, objective, fit), strict=True)) | {
    name: f"{float(value):.4f}" for name, value in values.items()} | {
    "converged": str(bool(params["converged"])) if "converged" in params else "",
    "iterations": str(int(params["iterations"])) if "iterations" in params else "",
    "published_ece": str(printed[0]), "published_accuracy": str(printed[1])}


def page(results: pd.DataFrame) -> str:
  """Returns the Markdown of the results: the tables, what agrees, and why the rest differs."""
  cells = results.set_index(list(NAMED)).to_dict("index")
  lines = ["# Table 2 of Jung et al. 2023, CIFAR-10-LT", "", *markdown.wrapped(INTRODUCTION)]
  for network in NETWORKS:
    table = []
    for calibrator, objective in dict.fromkeys(job[1:3] for job in jobs()):
      if optimum := cells.get((network, calibrator, objective, "optimum")):
        table.append([
          calibrator if objective == "base" else f"{calibrator} + {objective}",
          "{published_ece:.2f} ({published_accuracy:.2f})".format(**optimum) if _is_published(optimum) else "",
          *(_cell(cells.get((network, calibrator, objective, fit))) for fit in ("steps", "two rates", "optimum")),
          "{ece_corrected:.2f} [{ece_low:.2f}, {ece_high:.2f}]".format(**optimum),
          "{floor:.2f}, {floor_high:.2f}".format(**optimum)])
    lines += ["", f"## {TITLES[network]}", "", markdown.table(
      ["", "published", "paper's steps", "first two rates", "optimum", "less bias [95%]", "noise floor"], table)]
  return "\n".join([*lines, "", *_agreement(cells), "", *findings.sentences(cells)]) + "\n"


INTRODUCTION = f"""`python -m experiments.papers.classwise_loss_scaling.table2` writes this page from the authors'
released logits. ECE in percent (15 equal-width bins) and, in parentheses, accuracy, on 10,000 test images. *Paper's
steps*: the L-BFGS steps of fixed length that the paper states, from T = 1; for PTS, one temperature at its optimum (see
below). *First two rates*: without the last 400 of these steps. *Optimum*: the project's calibrators, fitted until
they converge. The last two columns are those of the optimum: the ECE less its bias, with its 95% interval, and the
mean and the 97.5% quantile of the ECE that a perfectly calibrated model would have ({RESAMPLES} resamples). Bold:
within {CLOSE} points of the published ECE. †: the fit ended before its tolerance."""


def _is_published(row: dict) -> bool:
  return not np.isnan(row["published_ece"])


def _cell(row: dict | None) -> str:
  if row is None:
    return ""
  text = f"{row['ece']:.2f} ({row['accuracy']:.2f})" + ("†" if row["converged"] is False else "")
  return f"**{text}**" if _is_published(row) and difference(row) <= CLOSE else text


def difference(row: dict) -> float:
  """The distance of the ECE from the published one in points, to two digits as the paper's."""
  return round(abs(float(f"{row['ece']:.2f}") - row["published_ece"]), 2)


def _agreement(cells: dict) -> list[str]:
  columns = list(itertools.product(fits.STEPS, ("steps", "optimum")))
  largest = []
  for calibrator in fits.BASES:
    differences = [[difference(cells[network, calibrator, *column]) for network in NETWORKS
                    if (network, calibrator, *column) in cells] for column in columns]
    largest.append([calibrator, *(f"{max(x):.2f}" if x else "" for x in differences)])
  printed = {key: row for key, row in cells.items() if key[1] != "none" and _is_published(row)}
  close = {fit: {key[:3] for key, row in printed.items() if key[3] == fit and difference(row) <= CLOSE} for fit in FITS}
  stepped = (f"by the paper's steps, {len(close['two rates'] - close['steps'])} more without the last rate, and "
             f"{len(close['optimum'])} ")
  is_stepped = any(key[3] == "steps" for key in cells)
  return ["## Largest difference from the published ECE over the networks, in points", "",
          markdown.table(["", *(f"{objective}, {fit}" for objective, fit in columns)], largest), "",
          *markdown.wrapped(f"Of the {len({key[:3] for key in printed})} published cells, "
                            f"{len(close['steps' if is_stepped else 'optimum'])} are within {CLOSE} points "
                            f"{stepped if is_stepped else ''}at the optimum.")]


def summary(results: pd.DataFrame) -> str:
  """Returns the row of experiments/README.md: mean ECE over the networks, published and at our optimum."""
  optima = results[results["fit"] == "optimum"].groupby(["calibrator", "objective"])[["published_ece", "ece"]].mean()
  theirs, ours = ("TS {:.2f}, TS + CLS {:.2f}, CTS + CLS {:.2f}".format(*optima.loc[
    [("TS", "base"), ("TS", "CLS"), ("CTS", "CLS")], column]) for column in optima)
  return ("| Jung et al. 2023, Table 2, CIFAR-10-LT: mean ECE in percent over four networks | "
          f"`python -m experiments.papers.classwise_loss_scaling.table2` | {theirs} | "
          f"{ours}; [all cells](results/classwise_loss_scaling_table2.md) |")


def main(arguments=None) -> None:
  """Fits what has no row yet, prints the table and writes it."""
  parser = commands.parser(__spec__.name, __doc__, results=True)
  parser.add_argument("--fits", nargs="+", choices=FITS, default=FITS, help="which fits to make; all by default")
  options = parser.parse_args(arguments)
  path = options.workdir / "classwise_loss_scaling_table2.csv"
  done = rows.keys(rows.texts(path), NAMED)
  missing = [job for job in jobs() if job not in done and job[3] in options.fits]
  # A thread fits all networks by the same compiled program, while another compiles.
  groups = [list(group) for _, group in itertools.groupby(missing, key=lambda job: job[1:])]
  number = itertools.count(1)
  with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    for new in pool.map(lambda group: [run(*job) for job in group], groups):
      rows.append(path, new)
      for row in new:
        print(f"{next(number)}/{len(missing)} {' '.join(row[name] for name in NAMED)}: ECE {float(row['ece']):.2f}, "
              f"published {row['published_ece'] or '-'}", flush=True)
  text = page(rows.frame(path))
  write_text(path.with_suffix(".md"), text)
  print(text)


if __name__ == "__main__":
  main()
