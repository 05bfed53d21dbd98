"""The calibrators' benchmark fits one half, tests on the other, and marks what failed."""

import numpy as np
from scipy import special

from calib_jax import calibrators
from experiments.benchmarks import calibrators as benchmark
from experiments.common import calibrator_peers
from tests.calibrators.data import synthetic


def test_a_line_for_ours_and_for_every_installed_peer(tmp_path, capsys, monkeypatch):
  logits, labels = synthetic(400, 3)
  np.savez(tmp_path / "net.npz", logits=logits, labels=labels)

  def uncalibrated(logits, labels):
    assert logits.shape == (200, 3) and labels.shape == (200,)
    return lambda other: special.softmax(other, axis=1)

  def broken(logits, labels):
    raise ValueError("cannot be fitted")

  monkeypatch.setitem(calibrator_peers.PEERS, "temperature_scaling",
                      {"torch": uncalibrated, "netcal": broken, "probmetrics": broken})
  monkeypatch.setattr(benchmark, "versions", lambda: {"torch": "1", "netcal": "2"})
  benchmark.main([str(tmp_path / "net.npz"), "--calibrators", "temperature_scaling"])
  lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| net [200 x 3]")]
  assert [line[2] for line in lines] == ["calib_jax", "torch", "netcal"] and lines[2][3] == "failed: ValueError"
  order = np.random.default_rng(0).permutation(400)
  fit, test = order[:200], order[200:]
  params = calibrators.temperature_scaling().fit(logits[fit], labels[fit])
  expected = [-np.mean(np.log(special.softmax(z, axis=1)[np.arange(200), labels[test]]))
              for z in (logits[test] / float(params["temperature"]), logits[test])]
  np.testing.assert_allclose([float(line[7]) for line in lines[:2]], expected, atol=6e-5)
  assert lines[1][8].startswith(f"NLL {expected[1] - expected[0]:+.3f}")
