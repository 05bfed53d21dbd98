"""How often intervals hold the truth where few examples are wrong, by the whole of ``evaluation.judge``.

`python -m experiments.coverage` runs this. The model states a confidence for one of K classes, and the others share the
rest evenly. Confidences are nearly constant about the accuracy, or spread from it to 1; both are calibrated. With
noise, 1% of the labels are drawn anew, evenly, so that the surest predictions are overconfident. TS is fitted to as
many other examples. With weights, which are of Pareto's law of exponent 1.2, confidences are spread, and only samples
that are worth ten equal examples or more count. "Use" is wrong where the true gain of the temperature is at most 0; its
promise is 1.25%.
"""

import functools
import itertools

import numpy as np
import pandas as pd
from scipy.special import xlogy

from calib_jax import calibrators, evaluation
from experiments.common import markdown, studies

REPEATS, RESAMPLES, POPULATION = 200, 100, 200_000
KINDS, CLASSES = ("constant", "spread", "noise", "weights"), (2, 10)
ACCURACIES, SIZES = (0.95, 0.97, 0.99, 0.995), (30, 60, 100, 200, 400)
METRICS = ("accuracy", "nll", "brier", "ece", "ece_equal_mass_l2", "aurc", "excess_aurc", "coverage_at_1",
           "coverage_at_5", "classwise")
TS = calibrators.temperature_scaling()


def _stated(rng: np.random.Generator, kind: str, accuracy: float, size: int) -> np.ndarray:
  if kind == "constant":
    return np.minimum(rng.uniform(accuracy - 0.004, accuracy + 0.004, size), 0.9999)
  return 1 - (1 - accuracy) * (2 * rng.beta(0.5, 0.5, size) * 0.999 + 1e-3)


def _chance(kind: str, num_classes: int, confidence: np.ndarray) -> np.ndarray:
  return 0.99 * confidence + 0.01 / num_classes if kind == "noise" else confidence


def _sample(rng: np.random.Generator, kind: str, num_classes: int, accuracy: float, size: int
            ) -> evaluation.Predictions:
  confidence, predicted = _stated(rng, kind, accuracy, size), rng.integers(num_classes, size=size)
  other = (predicted + rng.integers(1, num_classes, size=size)) % num_classes
  labels = np.where(rng.uniform(size=size) < _chance(kind, num_classes, confidence), predicted, other)
  is_predicted = np.arange(num_classes) == predicted[:, None]
  probs = np.where(is_predicted, confidence[:, None], (1 - confidence[:, None]) / (num_classes - 1))
  weights = 1 + rng.pareto(1.2, size) if kind == "weights" else None
  return evaluation.Predictions(np.log(probs).astype(np.float32), labels.astype(np.int32), weights=weights)


@functools.lru_cache(maxsize=1)
def _population(kind: str, num_classes: int, accuracy: float) -> tuple[np.ndarray, np.ndarray]:
  confidence = -np.sort(-_stated(np.random.default_rng(0), kind, accuracy, POPULATION))
  return confidence, _chance(kind, num_classes, confidence)


def _loss(confidence: np.ndarray, chance: np.ndarray, num_classes: int) -> float:
  return float(-np.mean(xlogy(chance, confidence) + xlogy(1 - chance, (1 - confidence) / (num_classes - 1))))


def _true_values(kind: str, num_classes: int, accuracy: float) -> dict[str, float]:
  c, p = _population(kind, num_classes, accuracy)
  other, gap = (1 - c) / (num_classes - 1), np.abs(c - p)
  risks, wrong = np.cumsum(1 - p) / np.arange(1, 1 + len(p)), float(np.mean(1 - p))
  truth = {"accuracy": 1 - wrong, "nll": _loss(c, p, num_classes), "ece": gap.mean(),
           "ece_equal_mass_l2": np.mean(gap**2) ** 0.5, "aurc": risks.mean(),
           "excess_aurc": risks.mean() - wrong - (1 - wrong) * np.log1p(-wrong), "brier": np.mean(
             p * ((1 - c) ** 2 + (num_classes - 1) * other**2)
             + (1 - p) * (c**2 + (1 - other) ** 2 + (num_classes - 2) * other**2)),
           **{f"coverage_at_{most}": np.max(np.flatnonzero(np.append(0, risks) <= most / 100)) / len(p)
              for most in (1, 5)}}
  return {name: float(x) for name, x in truth.items()} | ({} if kind == "noise" else {"classwise": 0.0})


def _true_gain(kind: str, num_classes: int, accuracy: float, temperature: float) -> float:
  c, p = _population(kind, num_classes, accuracy)
  own, other = c ** (1 / temperature), ((1 - c) / (num_classes - 1)) ** (1 / temperature)
  return _loss(c, p, num_classes) - _loss(own / (own + (num_classes - 1) * other), p, num_classes)


def measured(kind: str, num_classes: int, accuracy: float, size: int, repeats: int = REPEATS
             ) -> list[dict[str, object]]:
  """Returns the shares of intervals of a cell that hold the truth, and how often its sentences are wrong."""
  truth, held = _true_values(kind, num_classes, accuracy), {name: [] for name in (*METRICS, "gain")}
  contradictions, used, wrongly, accused = 0, 0, 0, 0
  for i in range(repeats):
    rng = np.random.default_rng([i, size, num_classes, round(1000 * accuracy), KINDS.index(kind)])
    fit, test = (_sample(rng, kind, num_classes, accuracy, size) for _ in range(2))
    fitted = evaluation.fit([fit], {"TS": TS})
    judged = evaluation.judge({"a": evaluation.Model({"test": [test]}, fitted)}, num_resamples=RESAMPLES)
    evaluated = judged.sets["test"]
    if evaluated.has_few_units:
      continue
    row = evaluated.rows["a", "none"].estimates
    for name, value in truth.items():
      if name in row:
        held[name].append(row[name].low - 1e-6 <= value <= row[name].high + 1e-6)
    gain = _true_gain(kind, num_classes, accuracy, float(fitted["TS"][1][0]["temperature"]))
    change = evaluated.differences[("a", "TS"), ("a", "none")]["nll"]
    held["gain"].append(change.low <= -gain <= change.high)
    kinds = [x.kind for x in judged.verdict.recommendations]
    contradictions += row["ece"].low > 0 and row["ece"].p_value > 0.05
    used, wrongly = used + ("use" in kinds), wrongly + ("use" in kinds and gain <= 0)
    accused += not {"keep", "undecided"}.issuperset(kinds)
  return [{"repeats": len(held["gain"]), **{name: f"{np.mean(x):.3f}" if x else "" for name, x in held.items()},
           "contradictions": contradictions, "use": used, "use_wrongly": wrongly, "accused": accused}]


def table(rows: pd.DataFrame) -> str:
  """The Markdown table: for each kind and size the lowest share of the accuracies and numbers of classes."""
  lines = []
  for (kind, size), cells in rows.groupby(["kind", "size"], sort=False):
    texts = []
    for name in (*METRICS, "gain"):
      if cells[name].isna().all():
        texts.append("")
        continue
      low = cells[name].idxmin()
      lowest = pd.DataFrame({"covered": cells[name], "repeats": cells.repeats, "width": 0.0}).loc[[low]]
      mean = 100 * (cells[name] * cells.repeats).sum() / cells.repeats.sum()
      texts.append(f"{mean:.1f} ({studies.covered(lowest).iloc[0].partition(' (')[0]})")
    total = cells.repeats.sum()
    counts = (f"{100 * cells[name].sum() / total:.1f}" for name in ("use", "use_wrongly", "accused"))
    lines.append((kind, size, *texts, cells.contradictions.sum(), *counts))
  return markdown.table([
    "few errors: coverage in %, the mean and the lowest of 8 cells", "N", *METRICS, "gain of TS",
    "ECE above 0 beside p > 0.05", "\"use\" in %", "of a true gain ≤ 0 in %", "neither keep nor undecided in %"],
    lines) + "\n"


CELLS = tuple(itertools.product(KINDS, CLASSES, ACCURACIES, SIZES))
STUDY = studies.Study("coverage_of_few_errors", ("kind", "classes", "stated", "size"), CELLS, measured, table)
