"""Tables 1 and 3 of Jung et al. 2023: other objectives, and three ways to normalise the class-wise losses.

Run: python -m experiments.papers.classwise_loss_scaling.tables_1_and_3 [NAME=PREDICTIONS.npz …] [--workdir=DIR]

The paper has them for balanced data, whose logits are not included here. The rows are those of the authors' four
long-tailed networks (see table2.py), and of files with `logits` (or `probs`) and `labels`: one half of their rows fits,
the other half tests. All fits are those of fits.py that reach the optimum.
"""

from collections.abc import Iterator, Sequence
import itertools
import pathlib

import jax
import numpy as np
import pandas as pd

from calib_jax import calibrators, metrics
from calib_jax.evaluation.predictions.loading import load
from experiments.common import commands, markdown, rows, studies
from experiments.papers.classwise_loss_scaling import fits, table2
from experiments.papers.classwise_loss_scaling.table2 import NETWORKS, TITLES

NAME = "classwise_loss_scaling_tables_1_and_3"
# By the paper's names, the first its choice; and its choice with the sums of Eq. 3 as printed.
SCALED = {"ND": {}, "CM": {"normalization": "centered"}, "MM": {"normalization": "minmax"},
          "ND, sums": {"class_loss": "sum"}}
METHODS = (*(name for name in fits.OBJECTIVES if name != "CLS"), *SCALED)
RESAMPLES = 1000
Split = tuple[np.ndarray, np.ndarray]


def halves(path: pathlib.Path) -> tuple[Split, Split]:
  """Returns two random halves of the rows of a file: logits and labels to fit, and to test."""
  predictions = load(path)
  order = np.random.default_rng(0).permutation(len(predictions.labels))
  first, second = order[:len(order) // 2], order[len(order) // 2:]
  return tuple((predictions.logits[part], predictions.labels[part]) for part in (first, second))


def compared(base: str, fit: Split, test: Split) -> Iterator[rows.Row]:
  """Yields a row for each method of a base: the test ECE, and what it is above that of the paper's own method."""
  tops = {method: _top(base, method, fit, test) for method in METHODS}
  for method, (top, converged) in tops.items():
    difference, low, high = metrics.paired_difference(table2.ece, top, tops["ND"][0], key=jax.random.key(0),
                                                      num_resamples=RESAMPLES, method="bias_corrected",
                                                      bias=table2.BIAS)
    yield {"method": method, "ece": f"{float(table2.ece(*top)):.4f}", "accuracy": f"{100 * float(top[1].mean()):.4f}",
           "difference": f"{float(difference):.4f}", "low": f"{float(low):.4f}", "high": f"{float(high):.4f}",
           "converged": str(converged)}


def _top(base: str, method: str, fit: Split, test: Split) -> tuple[tuple[jax.Array, jax.Array], bool]:
  """The confidences and correctness of the test rows, and whether the fit converged."""
  if method in SCALED:
    calibrator = calibrators.get("classwise_loss_scaling", base=fits.BASES[base], **SCALED[method])
    params = calibrator.fit(*fit)
  else:
    calibrator, params = fits.converged(base, method, *fit)
  return table2.top_of(calibrator.apply(params, test[0]), test[1]), bool(params["converged"])


def page(results: pd.DataFrame) -> str:
  """Returns the page in Markdown."""
  results = results.assign(cell=results.apply(_cell, axis=1), better=results["low"] > 0, worse=results["high"] < 0)
  tables = {name: part.pivot(index="base", columns="method", values="cell").loc[list(fits.BASES), list(METHODS)]
            for name, part in results.groupby("network", sort=False)}
  others = results[results["method"] != "ND"].groupby("method", sort=False)
  return markdown.filled(
    "papers/classwise_loss_scaling/tables_1_and_3.md.jinja", resamples=RESAMPLES,
    tables={name: markdown.table(["", *METHODS], cells.itertuples()) for name, cells in tables.items()},
    others=others[["better", "worse"]].sum().assign(number=others.size()))


def _cell(row: pd.Series) -> str:
  text = f"{row['ece']:.2f}" + ("" if row["converged"] else "†")
  if row["method"] == "ND":
    return text
  interval = f"{row['difference']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]"
  return f"{text} (**{interval}**)" if row["low"] > 0 or row["high"] < 0 else f"{text} ({interval})"


def main(arguments: Sequence[str] | None = None) -> None:
  """Fits everything, and writes the rows and the page."""
  parser = commands.parser(__spec__.name, __doc__, results=True)
  parser.add_argument("predictions", nargs="*", metavar="NAME=FILE", help="a name for the page, and an .npz file")
  parser.add_argument("--networks", nargs="*", choices=NETWORKS, default=NETWORKS,
                      help="which of the authors' networks; all by default")
  options = parser.parse_args(arguments)
  parts = {f"{TITLES[network]}, CIFAR-10-LT": (table2.split(network, "validation"), table2.split(network, "test"))
           for network in options.networks}
  parts |= {name: halves(path) for name, path in commands.named_files(options.predictions).items()}
  studies.Study(NAME, ("network", "base"), list(itertools.product(parts, fits.BASES)),
                lambda name, base: compared(base, *parts[name]), page, options.workdir).publish()


if __name__ == "__main__":
  main()
