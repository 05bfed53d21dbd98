"""What is timed on the device is right: the ECE and the temperature of large predictions, and a roofline."""

import numpy as np
import pytest
from scipy import optimize, special

from experiments.benchmarks import on_device, roofline


def test_the_results_are_those_of_numpy(monkeypatch):
  monkeypatch.setattr(on_device, "_pytorch", lambda logits, labels: None)
  logits, labels = on_device.predictions(2000, 12)
  found = on_device.measured(2000, 12, 0.0)
  probs = special.softmax(logits.astype(np.float64), axis=1)
  confidence, correct = probs.max(1), probs.argmax(1) == labels
  bins = np.minimum((confidence * 15).astype(int), 14)
  ece = sum(abs(np.sum((correct - confidence)[bins == b])) for b in range(15)) / len(labels)
  assert found["ece_result"] == pytest.approx(ece, rel=1e-4)

  def nll(t):
    return -special.log_softmax(logits / t, axis=1)[np.arange(len(labels)), labels].mean()

  best = optimize.minimize_scalar(nll, bounds=(0.5, 5), method="bounded", options={"xatol": 1e-6}).x
  assert found["ts_result"] == pytest.approx(best, rel=1e-4) and 1.7 < best < 2.3
  assert found["ece_seconds"] > 0 and found["ts_seconds"] > 0


def test_pytorch_computes_the_same():
  pytest.importorskip("torch")
  found = on_device.measured(500, 10, 0.0)
  assert found["ece_apart"] < 1e-4 and found["ts_apart"] < 0.02 and found["ts_relative_to_pytorch"] > 0


def test_a_roofline_is_the_larger_of_both_shares():
  most = roofline.Ceilings(1e12, 1e11)
  compute = roofline.beside(0.01, {"flops": 5e9, "bytes accessed": 1e8}, most)
  assert compute["bound"] == "operations" and compute["share_of_roofline"] == pytest.approx(0.5)
  assert compute["share_of_copies"] == pytest.approx(0.1) and compute["tera_operations_per_second"] == 0.5
  measured = roofline.ceilings(np.float32, 64, repeats=2)
  assert measured.operations > 0 and measured.bytes > 0
