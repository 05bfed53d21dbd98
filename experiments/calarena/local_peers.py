"""A method by this package and by others: whether the log losses are the same, and whose fit is faster."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.calarena.methods import DIFFERS, OURS
from experiments.common.rows import Row

CLOSE, TIMES, FAST_FROM = 1e-3, 5.0, 2000
TASKS = ("binary", "multiclass")


class Pair(NamedTuple):
  """A method by another package.

  Attributes:
    name: the method.
    package: the other package.
    task: "binary" or "multiclass".
    losses: ``[M]``, the other's log loss less ours, by experiment and split.
    many: ``[M]``, whether there were at least 2,000 calibration examples.
    times: ``[T]``, the other's processor seconds of a fit divided by ours, where n is at least 2,000.
    fewer: the same, where n is smaller.
  """

  name: str
  package: str
  task: str
  losses: np.ndarray
  many: np.ndarray
  times: np.ndarray
  fewer: np.ndarray


def pairs(rows: Sequence[Row]) -> list[Pair]:
  """Returns the pairs of which there are results."""
  key = ("dataset", "model", "split", "method")
  own = {tuple(row[name] for name in key): row for row in rows if row["package"] == OURS}
  found: dict[tuple[str, str, str], list[tuple[Row, Row]]] = {}
  for row in rows:
    ours = own.get(tuple(row[name] for name in key))
    if row["package"] != OURS and row["logloss"] and ours:
      task = TASKS[row["classes"] != "2"]
      found.setdefault((row["method"], row["package"], task), []).append((ours, row))
  return [Pair(*names, np.array([float(b["logloss"]) - float(a["logloss"]) for a, b in both]),
               np.array([int(a["cal_size"]) >= FAST_FROM for a, _ in both]),
               *(np.array([float(b["fit_seconds"]) / float(a["fit_seconds"]) for a, b in both if b["fit_seconds"]
                           and a["fit_seconds"] and (int(a["cal_size"]) >= FAST_FROM) == many])
                 for many in (True, False))) for names, both in found.items()]


def same_method(rows: Sequence[Row]) -> list[str]:
  """Returns the section of the page."""
  found = pairs(rows)
  same = [pair for pair in found if (pair.name, pair.package) not in DIFFERS]
  losses = np.concatenate([pair.losses for pair in same] or [np.zeros(0)])
  enough = losses[np.concatenate([pair.many for pair in same] or [np.zeros(0, bool)])]
  times = np.concatenate([pair.times for pair in same] or [np.zeros(0)])
  slow = [f"{pair.name} ({pair.task}, {pair.package}: {np.median(pair.times):.1f})" for pair in same
          if len(pair.times) and np.median(pair.times) < TIMES]
  lines = ["Log losses are theirs less ours, in thousandths, over experiments and splits: the median, the lowest "
           "and the highest. Times are their processor seconds of a fit divided by ours, medians over experiments of "
           "the first split, with the least in brackets. Both were called in turn, three times each, after a call "
           "that compiles; the medians of the three are compared. The processor seconds are those of all threads, and "
           "each package had one thread for its matrix products.", "",
           f"Where the method is the same, {np.sum(np.abs(losses) <= CLOSE)} of {len(losses)} log losses agree to "
           f"1e-3, {np.sum(losses > CLOSE)} are lower by calib_jax and {np.sum(losses < -CLOSE)} by the other "
           f"package. From {FAST_FROM:,} examples on, {np.sum(np.abs(enough) <= CLOSE)} of {len(enough)} agree, "
           f"{np.sum(enough > CLOSE)} are lower by calib_jax and {np.sum(enough < -CLOSE)} by the other package. Few "
           "examples may be separable, so that the optimum of vector, Platt and quadratic scaling lies at infinity, "
           "and what a fit says of other examples depends on where it ends. "
           f"The aim of {TIMES:.0f} times the speed from {FAST_FROM:,} examples on is met in "
           f"{np.sum(times >= TIMES)} of {len(times)} fits"
           + (f", and by the median it is missed by {', '.join(slow)}." if slow else "."), "",
           "| method | by | task | within 1e-3, n ≥ 2,000 | fewer | theirs less ours | n ≥ 2,000: times | "
           "fewer: times | what differs |", "|---" * 9 + "|"]
  for pair in sorted(found, key=lambda pair: (TASKS.index(pair.task), (pair.name, pair.package) in DIFFERS)):
    low, middle, high = 1000 * np.quantile(pair.losses, [0, 0.5, 1])
    cells = (pair.name, pair.package, pair.task,
             *(f"{np.sum(np.abs(part) <= CLOSE)} of {len(part)}"
               for part in (pair.losses[pair.many], pair.losses[~pair.many])),
             f"{middle:+.2f} [{low:+.1f}, {high:+.1f}]",
             *(f"{np.median(ratio):.1f} [{ratio.min():.1f}]" if len(ratio) else ""
               for ratio in (pair.times, pair.fewer)),
             DIFFERS.get((pair.name, pair.package), ""))
    lines.append(f"| {' | '.join(cells)} |")
  return lines
