"""What an accelerator shows: everything runs on a CPU at a tiny scale, stops in time, and continues."""

import json

import jax
import numpy as np
import pytest

from calib_jax import training
from experiments.benchmarks import accelerator, roofline

RUN = "ResNet-50, focal"


@pytest.fixture
def command(tmp_path):
  """The options of a command on 40 random images."""
  rng, labels = np.random.default_rng(0), np.arange(40) % 10
  images = rng.integers(0, 100, (40, 32, 32, 3), dtype=np.uint8)
  np.savez(tmp_path / "tiny.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
  return [f"--data={tmp_path}/tiny.npz", f"--out={tmp_path}", "--scale=tiny", "--minutes=600"]


@pytest.mark.slow
def test_it_runs_end_to_end_and_continues(command, tmp_path, capsys):
  assert accelerator.main([*command, "--minutes=0"]) == 0
  path = tmp_path / "accelerator.json"
  assert not path.exists() and "the same command goes on with: step" in capsys.readouterr().out
  assert accelerator.main(command) == 0
  found = json.loads(path.read_text())["results"]
  assert list(found) == ["step", "all devices", "CNN, batch 8", "CNN, batch 16", "repeated", "parallel",
                         "metrics and fits", "secondary soft_avuc", f"run {RUN}"]
  assert found["all devices"]["devices"] == len(jax.local_devices()) > 1
  assert all(found["CNN, batch 8"][f"share_of_{name}"] > 0 for name in ("cross_entropy", "focal", "soft_avuc"))
  assert 0 < found["metrics and fits"]["ece_seconds"] < 10 and found["metrics and fits"]["ts_seconds"] > 0
  assert found["step"]["examples_per_second"] > 0 and found["step"]["share_of_matrix_products"] > 0
  assert found["step"]["share_of_roofline"] == max(found["step"]["share_of_matrix_products"],
                                                   found["step"]["share_of_copies"])
  assert found["repeated"] == {"equal_bits": True, "largest_difference": 0.0}
  run = found[f"run {RUN}"]
  assert run["epochs"] == 2 and 0 <= run["none"]["accuracy"] <= 1 and np.isfinite(run["TS"]["nll"])
  assert f"| {RUN} | 2 |" in (tmp_path / "accelerator.md").read_text(encoding="utf-8")
  before = path.read_bytes()
  assert accelerator.main(command) == 0 and path.read_bytes() == before  # Nothing is left to measure.


@pytest.mark.slow
def test_a_run_stops_when_the_time_is_over_and_goes_on_from_there(command):
  options, size = accelerator.parse(command), accelerator.SIZES["tiny"]
  session = accelerator.Session(options, size, None, {"plans": {RUN: 2}}, 0.0, {})
  with pytest.raises(training.Stopped, match="stopped after step 1 of 6"):
    accelerator.run(session, RUN)
  assert accelerator.run(session._replace(deadline=float("inf")), RUN)["steps"] == 5


@pytest.mark.parametrize(("counted", "bound", "share"), [
  ({"flops": 2e9, "bytes accessed": 1e9}, "operations", 0.5), ({"flops": 2e9}, "operations", 0.5),
  ({"bytes accessed": 1e9}, "bytes", 0.25), ({}, "operations", np.nan)])
def test_what_xla_does_not_count_leaves_the_other_bound(counted, bound, share):
  found = roofline.beside(0.004, counted, roofline.Ceilings(1e12, 1e12))
  assert found["bound"] == bound
  np.testing.assert_allclose(found["share_of_roofline"], share)
