"""How often the guarantee of a selective threshold is broken, and how far its cut is from the best one.

Run: python -m experiments.thresholds

Each simulation draws confidences and whether the answer was right, chooses a cut, and compares the exact risk above it
with the one that was asked for. Confidences are of a grid, so that risks are exact sums. In the end the table of
docs/thresholds.md is written. Everything takes about ten minutes on one CPU core.
"""

import functools
import itertools
import zlib

import numpy as np
import pandas as pd
from scipy import stats

from calib_jax.thresholds import selective_threshold
from experiments.common import markdown, studies

REPEATS = 2000
SIZES, RISKS = (100, 300, 1000, 10_000), (0.01, 0.05, 0.2)
MODELS = {"two classes": (0.5, 4.0, 1.0), "ten classes": (0.1, 8.0, 1.0)}  # Lowest confidence, and its beta law.
KINDS = ("calibrated", "overconfident", "ties", "groups of five")


@functools.cache
def _grid(model: str, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The confidences, from the largest on, their probabilities, and how often the answer is right at each."""
  low, a, b = MODELS[model]
  grid = np.linspace(0, 1, 2001)
  mass = np.diff(stats.beta(a, b).cdf(grid))
  confidence = low + (1 - low) * (grid[1:] + grid[:-1]) / 2
  right = confidence**1.5 if kind == "overconfident" else confidence
  if kind == "ties":
    confidence = np.ceil(20 * confidence) / 20
  return confidence[::-1], mass[::-1], right[::-1]


def _measured(model: str, kind: str, size: int, risk: float) -> list[dict[str, object]]:
  """How often the risk is above the asked one, the mean coverage, and that of the best cut."""
  confidence, mass, right = _grid(model, kind)
  coverage = np.cumsum(mass)
  risks = np.cumsum(mass * (1 - right)) / coverage
  last = np.append(confidence[1:] != confidence[:-1], True)  # The last of those of equal confidence.
  best = np.max(coverage[(risks <= risk) & last], initial=0.0)
  rng = np.random.default_rng(zlib.crc32(f"{model} {kind} {size} {risk}".encode()))
  broken, covered, reached = 0, [], 0
  for _ in range(REPEATS):
    groups = np.arange(size) // 5 if kind == "groups of five" else None
    index = rng.choice(len(mass), size if groups is None else groups[-1] + 1, p=mass / mass.sum())
    uniform = rng.uniform(size=len(index))
    correct = uniform < right[index]
    if groups is not None:  # The five of a group are copies: they depend as much as they can.
      index, correct = index[groups], correct[groups]
    cut = selective_threshold(confidence[index], correct, risk=risk, groups=groups).cut
    place = int(np.sum(confidence >= cut)) - 1
    reached += place >= 0
    broken += place >= 0 and risks[place] > risk
    covered.append(coverage[place] if place >= 0 else 0.0)
  return [{"repeats": REPEATS, "broken": broken / REPEATS, "reached": reached / REPEATS, "coverage": np.mean(covered),
           "best": best}]


def _table(rows: pd.DataFrame) -> str:
  """Broken guarantees in percent, and the mean coverage beside that of the best cut, by size."""
  cells = {}
  for row in rows.set_index(["model", "kind"]).loc[[*itertools.product(MODELS, KINDS)]].reset_index().itertuples():
    cells.setdefault((row.model, row.kind, f"{100 * row.risk:g}%", f"{100 * row.best:.0f}"), {})[row.size] = (
      f"{100 * row.broken:.1f} ({100 * row.coverage:.0f})")
  return markdown.table(["model", "rows", "risk", "best cut accepts %", *(f"n = {size:,}" for size in SIZES)],
                        [[*names, *(by_size.get(size, "") for size in SIZES)] for names, by_size in cells.items()])


STUDY = studies.Study("thresholds", ("model", "kind", "size", "risk"),
                      [(model, kind, size, risk) for model, kind, risk, size in itertools.product(
                        MODELS, KINDS, RISKS, SIZES)], _measured, _table)


if __name__ == "__main__":
  studies.in_docs("experiments.thresholds", __doc__, "thresholds.md", STUDY)
