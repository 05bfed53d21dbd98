"""The benchmarks: each runs at a tiny scale, stops in time and continues, and its commands are those of the docs."""

import argparse
import json
import pathlib
import re

import numpy as np
import pytest
from scipy import special

from calib_jax import calibrators
from calib_jax.training import config as run_config
from experiments.benchmarks import __main__ as command
from experiments.benchmarks import calibrators as fits
from experiments.benchmarks import gpu
from experiments.common import calibrator_peers, timing
from experiments.common.commands import RESULTS, ROOT
from tests.calibrators.data import synthetic

ROWS = {  # The rows of some words at the tiny scale.
  "as_called": (["nll", "isotonic, b"], ["nll [2000, 10], NumPy, in reads", "nll [2000, 10], JAX, in reads",
                                         "isotonic, batches of 1 to 256 rows, each size for the first time"]),
  "metrics": (["roc", "mass"], ["top-label ECE, equal mass [2000, 10], to a pass",
                                  "classwise ECE, equal_mass [500, 10], to a sort", "auroc N = 2000, to a sort",
                                  "scikit-learn roc_auc_score N = 2000"]),
  "starts": (["demo"], ["the demo's network"])}


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_it_runs_and_continues(name, tmp_path, capsys):
  words, expected = ROWS[name]
  arguments = [name, "--scale=tiny", f"--out={tmp_path}", "--only", *words]
  assert command.main([*arguments, "--minutes=0"]) == 0
  path = tmp_path / f"{name}.json"
  assert not path.exists() and "the same command goes on with: " in capsys.readouterr().out
  assert command.main(arguments) == 0
  rows = json.loads(path.read_text())["rows"]
  assert list(rows) == expected
  for values in rows.values():
    assert all(np.isfinite(x) and x >= 0 for x in values.values() if not isinstance(x, str))
  if name == "starts":
    assert 0 < rows["the demo's network"]["of compiling"] < rows["the demo's network"]["seconds"]
  assert "| row | " in path.with_suffix(".md").read_text(encoding="utf-8")
  before = path.read_bytes()
  assert command.main(arguments) == 0 and path.read_bytes() == before  # Nothing is left to measure.


@pytest.mark.parametrize(("tiny", "network"), [(["--tiny"], "resnet8"), ([], "preresnet56_bottleneck")])
def test_a_card_trains_with_each_loss_until_its_end(tiny, network, tmp_path, monkeypatch):
  commands, signals = [], []

  class Endless:  # A process that trains until it is asked to stop.
    def __init__(self, command, **_):
      commands.append(command)

    def wait(self, timeout=None):
      if timeout is not None:
        raise gpu.subprocess.TimeoutExpired("", timeout)
      return 128 + signals[-1]

    poll = staticmethod(lambda: None)
    send_signal = staticmethod(signals.append)

  monkeypatch.setattr(gpu.subprocess, "Popen", Endless)
  options = argparse.Namespace(data=pathlib.Path("cifar10.npz"), out=tmp_path, tiny=bool(tiny))
  assert gpu.train(options, 0.0) == 0 and len(signals) == 3
  configs = [run_config.load(command[2].removeprefix("--config="), [word for word in command if "--config." in word])
             for command in commands]
  assert [(config.loss.primary.name, config.loss.secondary.name) for config in configs] == [
    ("cross_entropy", ""), ("selective_risk", ""), ("cross_entropy", "soft_avuc")]
  assert {(config.model.name, config.data.name, config.num_seeds) for config in configs} == {(network, "npz", 1)}


def test_the_page_of_timings_has_what_a_lent_card_measured():
  results = json.loads((RESULTS / "lease_h100.json").read_text(encoding="utf-8"))
  assert command.tables(results["rows"]) in (RESULTS / "timings.md").read_text(encoding="utf-8")


def test_the_docs_name_benchmarks_that_there_are():
  pages = [ROOT / "CONTRIBUTING.md", ROOT / "experiments/README.md", *(ROOT / "docs").glob("*.md")]
  named = {name for page in pages
           for name in re.findall(r"-m experiments\.benchmarks (\w+)", page.read_text(encoding="utf-8"))}
  assert named == set(command.BENCHMARKS)


def test_ratios_are_of_pairs_and_a_long_call_is_not_repeated(monkeypatch):
  clock, calls = [0.0], []

  def call(name, seconds):
    return lambda: (calls.append(name), clock.__setitem__(0, clock[0] + seconds))

  monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
  values = timing.compare(call("a", 3.0), call("floor", 2.0), budget=1.0)
  assert values["to floor"] == 1.5 and values["seconds"] == 3.0 and calls[:4] == ["floor", "a", "a", "floor"]
  assert len(calls) == 10
  calls.clear()
  assert timing.compare(call("a", 61.0), call("floor", 2.0))["to floor"] == 30.5 and len(calls) == 2
  calls.clear()
  timing.compare(call("a", 0.5), budget=4.0)
  assert len(calls) == 8


def test_a_line_for_ours_and_for_every_installed_peer(tmp_path, capsys, monkeypatch):
  logits, labels = synthetic(400, 3)
  np.savez(tmp_path / "net.npz", logits=logits, labels=labels)

  def uncalibrated(logits, labels):
    assert logits.shape == (200, 3) and labels.shape == (200,)
    return lambda other: special.softmax(other, axis=1)

  def broken(logits, labels):
    raise ValueError("cannot be fitted")

  monkeypatch.setattr(fits, "PEERS", {"temperature_scaling": {"torch": uncalibrated, "netcal": broken,
                                                              "probmetrics": broken}})
  monkeypatch.setattr(fits, "versions", lambda: {"torch": "1", "netcal": "2"})
  command.main(["calibrators", "--budget=0", "--data", str(tmp_path / "net.npz"), f"--out={tmp_path}"])
  rows = json.loads((tmp_path / "calibrators.json").read_text())["rows"]
  row = "net, temperature_scaling"
  assert list(rows) == [row, f"{row}, torch", f"{row}, netcal"]
  assert rows[f"{row}, netcal"] == {"note": "failed: ValueError"} and rows[f"{row}, torch"]["by processor"] > 0
  order = np.random.default_rng(0).permutation(400)
  fit, test = order[:200], order[200:]
  params = calibrators.temperature_scaling().fit(logits[fit], labels[fit])
  expected = [-np.mean(np.log(special.softmax(z, axis=1)[np.arange(200), labels[test]]))
              for z in (logits[test] / float(params["temperature"]), logits[test])]
  np.testing.assert_allclose([rows[row]["NLL"], rows[f"{row}, torch"]["NLL"]], expected, atol=1e-5)
  assert calibrator_peers.PEERS["temperature_scaling"].keys() >= {"torch", "netcal"}


def test_digits_are_those_of_float64():
  assert gpu.digits(("mmce",), gpu.FITS[:1], 64) == {}
