"""Files and a run that pytest and ``tests.as_users`` share, and their right numbers, by NumPy and SciPy alone."""

import csv
import json
import pathlib

import numpy as np
from scipy import optimize
from scipy.special import log_softmax

CLASSES, N = ("cat", "dog", "eel"), 400
RUN = ("--config=configs/digits_savuc.py", "--config.num_seeds=1", "--config.compare_with_cross_entropy=False",
       "--config.training.num_steps=120", "--config.checkpoint.every_steps=5", "--config.evaluation.num_resamples=20",
       "--config.evaluation.recommended=False")
# Of the test split after these steps. Pytest and users compile them differently, and processors round differently.
RUN_NUMBERS, RUN_TOLERANCE = {"accuracy": 0.9749, "nll": 0.1513, "ece": 0.0242}, 0.003


def _data(seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Overconfident logits ``[N, 3]`` of three decimals, so that a CSV holds the same numbers, and labels."""
  rng = np.random.default_rng(seed)
  logits = 2 * rng.normal(size=(N, len(CLASSES))) + (0, 0.5, -0.5)
  gumbel = rng.gumbel(size=logits.shape)
  return (2 * logits).round(3), (logits + gumbel).argmax(1)


def write_files(folder: pathlib.Path) -> None:
  """Writes the files of the commands: classes in two orders, as ``.npz`` and CSV, and records as JSON lines."""
  for name, seed in (("fit", 0), ("test", 1)):
    logits, labels = _data(seed)
    np.savez(folder / f"{name}.npz", logits=logits.astype(np.float32), labels=labels, classes=np.array(CLASSES))
    with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
      writer = csv.writer(file)
      writer.writerow([*(f"logit_{name}" for name in CLASSES[::-1]), "label"])
      writer.writerows([*row[::-1], CLASSES[label]] for row, label in zip(logits.tolist(), labels, strict=True))
    p = np.exp(log_softmax(logits, axis=1)).max(1).round(2)
    rows = ({"confidence": c, "correct": bool(right)}
            for c, right in zip(p.tolist(), logits.argmax(1) == labels, strict=True))
    (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def _ece(confidence: np.ndarray, correct: np.ndarray) -> float:
  bins = np.ceil(confidence * 15)
  return sum(abs((confidence - correct)[bins == j].sum()) for j in range(16)) / len(bins)


def numbers() -> dict[str, dict[str, float]]:
  """The right numbers in float64 of the files without a calibrator, and the temperature of ``fit`` with its NLL."""
  logits, labels = _data(1)
  log_p, right = log_softmax(logits, axis=1), logits.argmax(1) == labels
  confidence = np.exp(log_p).max(1)
  stated = confidence.round(2)

  def nll(log_t, z, y):
    return -log_softmax(z / np.exp(log_t), axis=1)[np.arange(len(y)), y].mean()

  found = optimize.minimize_scalar(nll, bounds=(-2, 3), args=_data(0), method="bounded", options={"xatol": 1e-9})
  return {
    "classes": {"accuracy": right.mean(), "nll": -log_p[np.arange(N), labels].mean(), "ece": _ece(confidence, right)},
    "records": {"accuracy": right.mean(), "brier": np.mean((stated - right)**2), "ece": _ece(stated, right)},
    "temperature": {"temperature": np.exp(found.x), "nll": nll(found.x, logits, labels)}}


def calibrated(temperature: float) -> np.ndarray:
  """Probabilities ``[N, 3]`` of the test file at a temperature."""
  return np.exp(log_softmax(_data(1)[0] / temperature, axis=1))
