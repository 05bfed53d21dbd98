"""Table 3 of Jung et al. 2023: three ways to normalise the class-wise losses, with each base calibrator.

Run: python -m experiments.classwise_loss_scaling.table3 [NAME=PREDICTIONS.npz …] [--workdir=experiments/results]

The paper has it for balanced data, whose logits are not included here. The rows are those of the authors' four
long-tailed networks (see table2.py), and of files with `logits` (or `probs`) and `labels`: one half of their rows fits,
the other half tests. The results are written to `classwise_loss_scaling_table3.csv`, and a page beside it.
"""

import argparse
from collections.abc import Iterator, Sequence
import pathlib
import sys

import jax
import numpy as np

from calib_jax import calibrators, metrics
from calib_jax.evaluation.predictions import load
from calib_jax.files import write_text
from experiments import rows
from experiments.classwise_loss_scaling import findings, fits, table2
from experiments.classwise_loss_scaling.published import NETWORKS, TITLES

NAME = "classwise_loss_scaling_table3"
NORMALIZATIONS = {"standard": "ND", "centered": "CM", "minmax": "MM"}  # The paper's names; the first is its choice.
RESAMPLES = 1000
Split = tuple[np.ndarray, np.ndarray]


def halves(path: pathlib.Path) -> tuple[Split, Split]:
  """Returns two random halves of the rows of a file: logits and labels to fit, and to test."""
  found = load(path)
  order = np.random.default_rng(0).permutation(len(found.labels))
  first, second = order[:len(order) // 2], order[len(order) // 2:]
  return tuple((found.logits[part], found.labels[part]) for part in (first, second))


def compared(name: str, fit: Split, test: Split) -> Iterator[rows.Row]:
  """Yields a row for each base and normalisation: the test ECE and what it is above that of the paper's choice.

  Args:
    name: the name of the network.
    fit: logits ``[N, K]`` and labels ``[N]`` to fit.
    test: those to test.
  """
  for base, calibrator in fits.BASES.items():
    methods = {"base": calibrator, **{
      label: calibrators.get("classwise_loss_scaling", base=calibrator, normalization=normalization)
      for normalization, label in NORMALIZATIONS.items()}}
    found = {label: _top(method, fit, test) for label, method in methods.items()}
    for label, (top, converged) in found.items():
      difference, low, high = metrics.paired_difference(table2.ece, top, found["ND"][0], key=jax.random.key(0),
                                                        num_resamples=RESAMPLES)
      yield {"network": name, "base": base, "normalization": label, "ece": f"{float(table2.ece(*top)):.4f}",
             "accuracy": f"{100 * float(top[1].mean()):.4f}", "difference": f"{float(difference):.4f}",
             "low": f"{float(low):.4f}", "high": f"{float(high):.4f}", "converged": str(converged)}


def _top(calibrator: calibrators.Calibrator, fit: Split, test: Split) -> tuple[tuple[jax.Array, jax.Array], bool]:
  """The confidences and correctness of the test rows, and whether the fit converged."""
  params = calibrator.fit(*fit)
  return table2.top_of(calibrator.apply(params, test[0]), test[1]), bool(params["converged"])


def page(found: Sequence[rows.Row]) -> str:
  """Returns the page in Markdown."""
  labels = ("base", *NORMALIZATIONS.values())
  lines = ["# Table 3 of Jung et al. 2023: normalisation of the class-wise losses", "", *findings.wrapped(INTRODUCTION)]
  for name in dict.fromkeys(row["network"] for row in found):
    lines += ["", f"## {name}", "", "| | " + " | ".join(labels) + " |", "|---" * (1 + len(labels)) + "|"]
    for base in fits.BASES:
      cells = {row["normalization"]: row for row in found if (row["network"], row["base"]) == (name, base)}
      lines.append(f"| {base} | " + " | ".join(map(_cell, map(cells.get, labels))) + " |")
  return "\n".join([*lines, "", "## Is ND the best?", "", *_verdicts(found)]) + "\n"


INTRODUCTION = f"""`python -m experiments.classwise_loss_scaling.table3` wrote this page. Test ECE in percent (15
equal-width bins) of each base calibrator alone, and with class-wise losses normalised by their standard deviation (ND,
Eq. 9; the default), by their range from the mean (CM, Eq. 11) or from the least (MM, Eq. 10). In brackets: what it is
above that of ND, with the 95% interval of {RESAMPLES} resamples of the test examples, paired; bold where that excludes
0. The paper says that ND is better than CM and MM in general, on balanced CIFAR and ImageNet. †: the fit ended before
its tolerance."""


def _cell(row: rows.Row) -> str:
  text = f"{float(row['ece']):.2f}" + ("†" if row["converged"] == "False" else "")
  if row["normalization"] == "ND":
    return text
  difference, low, high = (float(row[key]) for key in ("difference", "low", "high"))
  interval = f"{difference:+.2f} [{low:+.2f}, {high:+.2f}]"
  return f"{text} (**{interval}**)" if low > 0 or high < 0 else f"{text} ({interval})"


def _verdicts(found: Sequence[rows.Row]) -> list[str]:
  lines = []
  for label in ("CM", "MM"):
    low, high = np.array([[float(row["low"]), float(row["high"])] for row in found if row["normalization"] == label]).T
    better, worse = np.sum(low > 0), np.sum(high < 0)
    lines.append(f"- Of {len(low)} cells, ND has a lower ECE than {label} in {better}, a higher one in {worse}, and "
                 f"{len(low) - better - worse} cannot tell.")
  return lines


def main(arguments: Sequence[str] | None = None) -> int:
  """Fits everything, and writes the rows and the page."""
  parser = argparse.ArgumentParser(prog="python -m experiments.classwise_loss_scaling.table3",
                                   description=__doc__.splitlines()[0])
  parser.add_argument("predictions", nargs="*", metavar="NAME=FILE", help="a name for the page, and an .npz file")
  parser.add_argument("--networks", nargs="*", choices=NETWORKS, default=NETWORKS,
                      help="which of the authors' networks; all by default")
  parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("experiments/results"))
  options = parser.parse_args(arguments)
  parts = {f"{TITLES[network]}, CIFAR-10-LT": (table2.split(network, "validation"), table2.split(network, "test"))
           for network in options.networks}
  for text in options.predictions:
    name, _, path = text.rpartition("=")
    parts[name or pathlib.Path(path).stem] = halves(pathlib.Path(path))
  found = []
  for name, (fit, test) in parts.items():
    for row in compared(name, fit, test):
      found.append(row)
      print("{network}, {base}, {normalization}: ECE {ece}".format(**row), flush=True)
  options.workdir.mkdir(parents=True, exist_ok=True)
  path = options.workdir / f"{NAME}.csv"
  path.unlink(missing_ok=True)
  rows.append(path, found)
  write_text(path.with_suffix(".md"), page(found))
  return 0


if __name__ == "__main__":
  sys.exit(main())
