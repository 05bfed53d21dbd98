"""Which calibrator of records has the lowest log loss, where the truth is known.

Run: python -m experiments.records

Each draw of n records is fitted by every calibrator for records. Log losses are expected ones, of 4,000 other
confidences and the probabilities that their answers are right. The rule that draws in the ends was chosen on other
draws of the first six kinds of records; the last two were not looked at. In the end the table of results/records.md is
written. Everything takes about ten minutes on one CPU core.
"""

import functools
import itertools
import zlib

import jax
import numpy as np
import pandas as pd
from scipy import special

from calib_jax import calibrators
from calib_jax.calibrators import records
from experiments.common import commands, markdown, studies

DRAWS, SIZES, NEW = 40, (200, 800, 5000), 4000
# Confidences by a generator and their number, and the probability that the answer is right at each.
KINDS = {
  "overconfident, tenths": (lambda rng, n: np.round(rng.beta(5, 2, n), 1), lambda c: 0.75 * c),
  "underconfident, tenths": (lambda rng, n: np.round(rng.beta(4, 3, n), 1).clip(0.1), lambda c: 0.97 * np.sqrt(c)),
  "two fifths at 1": (lambda rng, n: np.where(rng.random(n) < 0.4, 1, np.round(rng.beta(5, 2, n), 2)),
                      lambda c: np.where(c == 1, 0.85, 0.1 + 0.6 * c)),
  "overconfident": (lambda rng, n: rng.beta(4, 1.2, n), lambda c: c**2),
  "underconfident": (lambda rng, n: rng.beta(4, 4, n), lambda c: special.expit(2.2 * special.logit(c) + 0.3)),
  "U-shaped": (lambda rng, n: np.round(rng.beta(0.4, 0.3, n), 2), lambda c: 0.15 + 0.7 * c),
  "U-shaped, right more often": (lambda rng, n: np.round(rng.beta(0.5, 0.3, n), 2), lambda c: 0.25 + 0.65 * c),
  "five words": (lambda rng, n: rng.choice([0.3, 0.5, 0.7, 0.9, 1.0], n, p=[0.05, 0.1, 0.25, 0.4, 0.2]),
                 lambda c: 0.2 + 0.6 * c**2),
}


@functools.cache
def _fit_and_apply(name: str):
  calibrator = calibrators.record_calibration(name)
  return calibrator.fit, jax.jit(calibrator.apply)


def _logits(confidence: np.ndarray) -> np.ndarray:
  with np.errstate(divide="ignore"):
    return np.log(np.stack([1 - confidence, confidence], axis=1)).astype(np.float32)


def _padded(params: dict, size: int) -> dict:
  """Steps and corners of one shape, so that ``apply`` is compiled once; their last value is repeated."""
  return {name: np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, size + (name in ("p0", "p1")) - x.shape[-1])], mode="edge")
          if name in ("x", "y", "p0", "p1") else x for name, x in params.items()}


def _measured(kind: str, size: int) -> list[dict[str, object]]:
  """How often each calibrator is within 1% of the best, and its mean log loss above that of the best."""
  stated, truth = KINDS[kind]
  rng = np.random.default_rng(zlib.crc32(f"{kind} {size}".encode()))
  new = stated(rng, NEW)
  right, losses = truth(new), np.empty((DRAWS, len(records.BASES)))
  for draw, (i, name) in itertools.product(range(DRAWS), enumerate(records.BASES)):
    if not i:
      confidence = stated(rng, size)
      correct = (rng.random(size) < truth(confidence)).astype(np.int32)
    fit, apply = _fit_and_apply(name)
    wrong, log_right = np.asarray(apply(_padded(fit(_logits(confidence), correct), size + 2), _logits(new)), float).T
    losses[draw, i] = -np.mean(right * log_right + (1 - right) * wrong)
  best = losses.min(axis=1, keepdims=True)
  return [{"calibrator": name, "draws": DRAWS, "within": np.mean(losses[:, i] <= 1.01 * best[:, 0]),
           "excess": np.mean(losses[:, i] - best[:, 0])} for i, name in enumerate(records.BASES)]


def _table(rows: pd.DataFrame) -> str:
  """How many percent of the draws of each size are within 1% of the best, over all kinds and of the worst kind."""
  within = rows.groupby(["calibrator", "size"]).within.agg(["mean", "min"])
  cells = {name: [f"{100 * within.loc[name, size]['mean']:.0f} ({100 * within.loc[name, size]['min']:.0f})"
                  for size in SIZES] for name in records.BASES}
  order = sorted(records.BASES, key=lambda name: -within.loc[name]["mean"].mean())
  return markdown.table(["calibrator", *(f"n = {size:,}" for size in SIZES)],
                        [[f"`{name}`", *cells[name]] for name in order])


STUDY = studies.Study("records", ("kind", "size"), list(itertools.product(KINDS, SIZES)), _measured, _table)


if __name__ == "__main__":
  studies.in_docs("experiments.records", __doc__, commands.RESULTS / "records.md", STUDY)
