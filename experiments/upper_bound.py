"""How often the upper bound of the calibration error holds, how wide it is, and what hedging does to two errors.

Run: python -m experiments.upper_bound

Predictions are uniform in [0.5, 1], or of a beta law near 1, and right with a probability that is known. The command
simulates what has no row yet in results/upper_bound.csv, and writes the table and the figure of docs/at_most.md. It
takes ten minutes on one CPU core.
"""

import itertools
import zlib

import numpy as np
import pandas as pd

from calib_jax import metrics
from experiments.common import commands, figures, markdown, studies

SIZES, DRAWS = (200, 1000, 10_000, 100_000), {200: 1000, 1000: 1000, 10_000: 300, 100_000: 100}
LAWS = {"even": lambda rng, n: rng.uniform(0.5, 1, n), "sure": lambda rng, n: 0.5 + 0.5 * rng.beta(8, 1, n)}
# The probability that a prediction of confidence c is right; bumps cancel within bins of a fifteenth.
TRUTHS = {"calibrated": lambda c: c, "T = 1.5": lambda c: c ** (1 / 1.5) / (c ** (1 / 1.5) + (1 - c) ** (1 / 1.5)),
          "overconfident by 10 points": lambda c: c - 0.1,
          "bumps": lambda c: np.clip(c + 0.1 * np.sign(np.sin(40 * np.pi * c)), 0, 1)}


def error_of(law: str, truth: str, m: int = 20) -> float:
  """Returns the calibration error of rounded predictions, of four million draws without labels."""
  c = LAWS[law](np.random.default_rng(1), 4_000_000)
  value = np.rint(m * c).astype(int)
  return float(np.abs(np.bincount(value, TRUTHS[truth](c) - value / m)).sum() / len(c))


def _measured(size: int, law: str, truth: str) -> list[dict[str, object]]:
  """How often the bound is below the truth, the truth, and the mean bound and error."""
  rng, error = np.random.default_rng(zlib.crc32(f"{size} {law} {truth}".encode())), error_of(law, truth)
  bounds = []
  for _ in range(DRAWS[size]):
    c = LAWS[law](rng, size)
    bounds.append(metrics.calibration_error_upper(c, rng.uniform(size=size) < TRUTHS[truth](c)))
  upper, distance, observed = np.transpose(bounds)
  return [{"draws": DRAWS[size], "misses": np.mean(upper < error), "error": error, "upper": upper.mean(),
           "distance": distance.mean(), "observed": observed.mean()}]


def _table(rows: pd.DataFrame) -> str:
  """The mean bound in percent, and in brackets in how many percent of draws it is below the truth."""
  cells = (studies.percent(rows.upper) + rows.misses.map(lambda x: f" ({100 * x:.1f})")).tolist()
  table = dict(zip(zip(rows["size"], rows.law, rows.truth, strict=True), cells, strict=True))
  errors = rows.drop_duplicates(["law", "truth"]).set_index(["law", "truth"]).error
  lines = [[truth, law, f"{100 * errors[law, truth]:.1f}", *(table[size, law, truth] for size in SIZES)]
           for law, truth in itertools.product(LAWS, TRUTHS)]
  return markdown.table(["model", "confidences", "true error %", *(f"N = {size:,}" for size in SIZES)], lines)


STUDY = studies.Study("upper_bound", ("size", "law", "truth"), list(itertools.product(SIZES, LAWS, TRUTHS)), _measured,
                      _table)


GROUPS = (1, 2, 3, 5, 8, 15, 40, 100, 500)


def hedging(draws: int = 400, number: int = 500) -> dict[str, np.ndarray]:
  """Returns the mean errors of the mean true probabilities of so many groups, relative to those of the truth."""
  rng, errors = np.random.default_rng(0), {"ECE, 15 bins": metrics.calibration_error,
                                           "two-bin error": metrics.two_bin_calibration_error}
  sums = {name: np.zeros(len(GROUPS)) for name in errors}
  for _ in range(draws):
    truth = np.sort(rng.uniform(size=number))
    happened = rng.uniform(size=number) < truth
    for i, groups in enumerate(GROUPS):
      parts = np.array_split(truth, groups)
      said = np.concatenate([np.full(len(part), part.mean()) for part in parts]).astype(np.float32)
      for name, error in errors.items():
        sums[name][i] += float(error(said, happened))
  return {name: x / x[-1] for name, x in sums.items()}


def draw(measured: dict[str, np.ndarray]) -> None:
  """Draws the figure of the page."""
  with figures.png(commands.ROOT / "docs" / "figures" / "hedging.png", 5, 2.6) as figure:
    axes = figure.subplots()
    for name, marker in zip(measured, "os", strict=True):
      axes.plot(GROUPS, measured[name], f"{marker}-", label=name)
    axes.set(xscale="log", ylim=(0, 1.2), xlabel="different probabilities that are said of 500 examples",
             ylabel="error, relative to the truth's")
    axes.set_xticks(GROUPS, GROUPS)
    axes.minorticks_off()
    axes.legend(loc="lower right")


if __name__ == "__main__":
  studies.in_docs("experiments.upper_bound", __doc__, "at_most.md", STUDY)
  draw(hedging())
