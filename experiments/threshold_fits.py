"""How often guarantees of cuts are broken, by what fits the calibrator and what chooses the cut.

A part of ``python -m experiments.thresholds``. Calibrators are a temperature, isotonic regression, and the temperatures
by subgroup of ``calib-jax evaluate --fit_by``, which selects how far they are shrunk.
"""

import itertools
import zlib

import numpy as np
import pandas as pd
from scipy import special, stats
from sklearn.isotonic import IsotonicRegression

from calib_jax import calibrators
from calib_jax.evaluation.predictions import fitting
from calib_jax.evaluation.predictions.predictions import Predictions, Subgroups
from calib_jax.intervals.groups import stratified_folds
from calib_jax.thresholds import selective_threshold
from experiments.common import markdown, studies

REPEATS = 2000

# Of two classes: the log-odds of equally probable examples, of which the predictions have twice as much.
ODDS = stats.norm.ppf((np.arange(8000) + 0.5) / 8000) * 4
CHOSEN = ("the same examples", "out of fold", "examples of its own")


def _temperature(odds: np.ndarray, labels: np.ndarray):
  """Temperature scaling, by Newton's method."""
  inverse = 0.5
  for _ in range(12):
    p = special.expit(inverse * odds)
    slope, curvature = np.mean((p - labels) * odds), np.mean(p * (1 - p) * odds**2)
    inverse = np.clip(inverse - slope / max(curvature, 1e-9), inverse / 2, 2 * inverse)
  return lambda new: special.expit(inverse * new)


def _isotonic(odds: np.ndarray, labels: np.ndarray):
  return IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(odds, labels).predict


FITS = {"temperature": _temperature, "isotonic": _isotonic}


# The share of the second of two subgroups, and how many times the true log-odds the predictions of each have.
SUBGROUPS = {"temperature by subgroup": (0.5, (2.7, 0.8)), "temperature by subgroup, one in ten": (0.1, (0.8, 2.7)),
             "temperature by subgroup, all alike": (0.5, (2.0, 2.0))}


def measured(calibrator: str, size: int) -> list[dict[str, object]]:
  """How often the risk above a calibrated cut is more than 5%, by what the cut is chosen on."""
  return _by_subgroup(*SUBGROUPS[calibrator], size) if calibrator in SUBGROUPS else _of_all(calibrator, size)


def _by_subgroup(share: float, times: tuple[float, float], size: int) -> list[dict[str, object]]:
  """As ``measured``, by the fits of an evaluation to two subgroups; one temperature where these are not selected."""
  rng = np.random.default_rng(zlib.crc32(f"{share} {times} {size}".encode()))
  labelled, truth = {"TS": calibrators.temperature_scaling()}, special.expit(ODDS)
  broken, covered = dict.fromkeys(CHOSEN, 0), dict.fromkeys(CHOSEN, 0.0)

  def draw():
    number = (rng.uniform(size=size) < share).astype(np.int32)
    number[:2] = 0, 1
    odds = 4 * rng.normal(size=size)
    logits = np.stack([np.zeros(size), odds * np.take(times, number)], 1).astype(np.float32)
    labels = (rng.uniform(size=size) < special.expit(odds)).astype(np.int32)
    return Predictions(logits, labels, subgroups={"task": Subgroups(("a", "b"), number)})

  every = [Predictions(np.stack([np.zeros(len(ODDS)), ODDS * scale], 1).astype(np.float32), np.zeros(len(ODDS), int),
                       subgroups={"task": Subgroups(("a", "b"), np.full(len(ODDS), k))})
           for k, scale in enumerate(times)]
  for _ in range(REPEATS):
    part, other = draw(), draw()
    fitted = fitting.fit([part], labelled, lambda note: None, "task")
    label = list(fitted)[-1]
    p = np.stack([_positive(fitting.calibrated(fitted, label, [x])[0]) for x in every])
    risk_of, top = np.where(p > 0.5, 1 - truth, truth), np.maximum(p, 1 - p)
    crossed = fitting.out_of_fold(part, labelled, 5, fitted, "task")[label][0]
    mass = np.array([[1 - share], [share]]) / len(ODDS)
    sources = (fitting.calibrated(fitted, label, [part])[0], crossed, fitting.calibrated(fitted, label, [other])[0])
    for name, source in zip(CHOSEN, sources, strict=True):
      chosen = _positive(source)
      cut = selective_threshold(np.maximum(chosen, 1 - chosen), (chosen > 0.5) == source.part.labels).cut
      accepted = (top >= cut) * mass
      broken[name] += bool(accepted.any()) and np.sum(accepted * risk_of) / accepted.sum() > 0.05
      covered[name] += accepted.sum() / REPEATS
  return _rows(broken, covered)


def _positive(source: fitting.Calibrated) -> np.ndarray:
  """The probabilities of class 1."""
  return np.exp(source.log_probs())[:, 1]


def _rows(broken: dict[str, int], covered: dict[str, float]) -> list[dict[str, object]]:
  return [{"chosen_on": name, "repeats": REPEATS, "broken": broken[name] / REPEATS, "coverage": covered[name]}
          for name in CHOSEN]


def _of_all(calibrator: str, size: int) -> list[dict[str, object]]:
  rng, fit = np.random.default_rng(zlib.crc32(f"{calibrator} {size}".encode())), FITS[calibrator]
  broken, covered = dict.fromkeys(CHOSEN, 0), dict.fromkeys(CHOSEN, 0.0)
  truth = special.expit(ODDS)
  for _ in range(REPEATS):
    odds = 4 * rng.normal(size=(2, size))
    labels = (rng.uniform(size=odds.shape) < special.expit(odds)).astype(int)
    final, fold = fit(2 * odds[0], labels[0]), stratified_folds(labels[0], 5)
    crossed = np.empty(size)
    for k in range(5):
      crossed[fold == k] = fit(2 * odds[0, fold != k], labels[0, fold != k])(2 * odds[0, fold == k])
    p = final(2 * ODDS)
    risk_of = np.where(p > 0.5, 1 - truth, truth)
    for name, chosen, of in zip(CHOSEN, (final(2 * odds[0]), crossed, final(2 * odds[1])), (0, 0, 1), strict=True):
      cut = selective_threshold(np.maximum(chosen, 1 - chosen), (chosen > 0.5) == labels[of]).cut
      accepted = np.maximum(p, 1 - p) >= cut
      broken[name] += bool(accepted.any()) and risk_of[accepted].mean() > 0.05
      covered[name] += accepted.mean() / REPEATS
  return _rows(broken, covered)


def _table(rows: pd.DataFrame) -> str:
  """Broken guarantees and mean coverage in percent, by what the cut is chosen on."""
  cells = (100 * rows.broken).map("{:.1f}".format) + (100 * rows.coverage).map(" ({:.0f})".format)
  table = rows.assign(cell=cells).pivot(index=["calibrator", "size"], columns="chosen_on", values="cell")[[*CHOSEN]]
  return markdown.table(["calibrator", "n", *CHOSEN], [[name, f"{size:,}", *row] for (name, size), row in zip(
    table.index, table.values, strict=True)])


STUDY = studies.Study("thresholds_out_of_fold", ("calibrator", "size"), [
  *itertools.product((*FITS, *SUBGROUPS), (100, 300, 1000))], measured, _table)
