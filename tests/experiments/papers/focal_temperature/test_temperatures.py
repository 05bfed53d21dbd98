"""The best temperature for each gamma: by a plain search in NumPy, and the page made from the committed rows."""

import numpy as np
import pandas as pd
import pytest

from calib_jax.calibrators.focal_temperature import GAMMAS, TEMPERATURES
from experiments.common import rows
from experiments.papers.focal_temperature import temperatures


def _ece(logits, labels, temperature, gamma):
  """The ECE of 15 equal-mass bins after temperature scaling and the focal calibration map (Eq. 1), in float64."""
  q = np.exp((logits - logits.max(1, keepdims=True)) / temperature)
  q /= q.sum(1, keepdims=True)
  rest = np.maximum(1 - q, 1e-300)
  weight = q / (rest**gamma * (1 - gamma * q * np.log(np.maximum(q, 1e-300)) / rest))
  p = weight / weight.sum(1, keepdims=True)
  gap = (p.argmax(1) == labels) - p.max(1)
  return sum(abs(part.sum()) for part in np.array_split(gap[np.argsort(p.max(1), kind="stable")], 15)) / len(labels)


def test_temperatures_have_the_lowest_errors_of_the_grid():
  rng = np.random.default_rng(0)
  logits = 2 * rng.normal(size=(150, 3))
  labels = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True)).cumsum(1) > rng.uniform(size=(150, 1))
  logits, labels = (3 * logits).astype(np.float32), labels.argmax(1)
  results = temperatures.best(logits, labels)
  assert [float(row["gamma"]) for row in results] == pytest.approx(list(GAMMAS))
  for row in results[::3]:
    errors = [_ece(logits.astype(np.float64), labels, t, float(row["gamma"])) for t in TEMPERATURES[::5]]
    own = _ece(logits.astype(np.float64), labels, float(row["temperature"]), float(row["gamma"]))
    assert 100 * own == pytest.approx(float(row["ece"]), abs=2e-3) and own <= min(errors) + 2e-5


def test_lines_are_those_of_least_squares():
  results = pd.DataFrame({"gamma": [0, 1, 2, 3], "temperature": [1, 2, 3, 5]})
  slope, intercept, fit = temperatures.line(results)
  assert (slope, intercept) == pytest.approx((1.3, 0.8)) and fit == pytest.approx(1 - 0.3 / 8.75)


def test_files_are_named_and_drawn(tmp_path):
  rng = np.random.default_rng(1)
  np.savez(tmp_path / "val.npz", logits=rng.normal(size=(60, 3)).astype(np.float32), labels=np.arange(60) % 3)
  temperatures.main([f"focal 3={tmp_path / 'val.npz'}", str(tmp_path / "val.npz"), f"--workdir={tmp_path}"])
  results = rows.frame(tmp_path / f"{temperatures.NAME}.csv")
  assert list(results["name"].unique()) == ["focal 3", "val"]
  assert temperatures.page(results) == (tmp_path / f"{temperatures.NAME}.md").read_text(encoding="utf-8")
  assert (tmp_path / f"{temperatures.NAME}.png").exists()
