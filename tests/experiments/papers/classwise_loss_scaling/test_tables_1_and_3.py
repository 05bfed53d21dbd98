"""Tables 1 and 3, Figures 1, 3 and 4 of Jung et al. 2023: by NumPy in float64, and pages made from their rows."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.special import log_softmax

from experiments.common import rows
from experiments.papers.classwise_loss_scaling import class_losses, correlation, fits, table2, tables_1_and_3
from tests.calibrators.data import synthetic


def test_a_layer_learns_the_classes_of_the_largest_losses():
  logits, labels = synthetic(60, 4)
  log_p = log_softmax(logits.astype(np.float64), axis=1)
  expected = np.array([-log_p[labels == c, c].mean() for c in range(4)])
  np.testing.assert_allclose(fits.class_losses(jnp.asarray(log_p, jnp.float32), labels), expected, rtol=1e-5)
  learns = np.argsort(expected)[-class_losses.TOP:]
  # The gradient of their sum is Σ (p - y) zᵀ / n_c over their examples.
  residual = np.exp(log_p) - np.eye(4)[labels]
  weights = np.isin(labels, learns) / np.bincount(labels)[labels]
  path = class_losses.learned(logits, labels)
  assert path["kernel"].shape == (class_losses.STEPS + 1, 4, 4)
  np.testing.assert_array_equal(path["kernel"][0], np.eye(4))
  np.testing.assert_allclose((path["kernel"][1] - np.eye(4)) / -class_losses.RATE,
                             logits.T @ (residual * weights[:, None]), rtol=1e-2, atol=1e-3)
  np.testing.assert_allclose(path["bias"][1] / -class_losses.RATE, weights @ residual, rtol=1e-4, atol=1e-5)


def test_a_point_of_an_uncalibrated_network_has_the_losses_of_its_logits():
  row, = correlation.point("densenet40", "none", "base")
  logits, labels = table2.split("densenet40", "validation")
  log_p = log_softmax(logits.astype(np.float64), axis=1)
  picked, smoothing = log_p[np.arange(len(labels)), labels], fits.SMOOTHING
  expected = {"nll": -picked.mean(), "smoothed": -((1 - smoothing) * picked + smoothing * log_p.mean(1)).mean(),
              "focal": -((1 - np.exp(picked)) ** 3 * picked).mean(),
              "variance": np.var([picked[labels == c].mean() for c in range(10)], ddof=1)}
  np.testing.assert_allclose([float(row[name]) for name in correlation.LOSSES],
                             [expected[name] for name in correlation.LOSSES], rtol=1e-4)
  assert float(row["ece"]) == pytest.approx(21.08, abs=0.01)
  point = pd.Series(row)[["ece", *correlation.LOSSES]].astype(float)
  others = pd.DataFrame([(-point).rename("others").where(point.index != "ece", 0.0), point])
  assert dict(correlation.correlations(others)) == pytest.approx(dict.fromkeys(correlation.LOSSES, 1.0))


@pytest.mark.slow
def test_a_file_is_halved_and_every_normalisation_compared(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(fits, "BASES", {"TS": fits.BASES["TS"]})
  logits, labels = synthetic(400, 3)
  np.savez(tmp_path / "net.npz", logits=logits, labels=labels)
  fit, test = tables_1_and_3.halves(tmp_path / "net.npz")
  np.testing.assert_array_equal(np.sort(np.concatenate([fit[0], test[0]]), axis=0), np.sort(logits, axis=0))
  tables_1_and_3.main(["--networks", "--workdir", str(tmp_path), "--", f"a net={tmp_path / 'net.npz'}"])
  results = rows.read(tmp_path / f"{tables_1_and_3.NAME}.csv")
  assert len(results) == len(tables_1_and_3.METHODS) and "a net, TS: " in capsys.readouterr().out
  for row in results:
    assert float(row["low"]) <= float(row["high"])
    if row["method"] == "ND":
      assert float(row["difference"]) == float(row["low"]) == float(row["high"]) == 0
  assert "## a net" in (tmp_path / f"{tables_1_and_3.NAME}.md").read_text(encoding="utf-8")
