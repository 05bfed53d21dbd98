"""The replay of a first hour: what it measures, and that its commands are those of the guides."""

import sys

from calib_jax import config as run_config
from experiments.benchmarks import first_hour
from experiments.common.commands import ROOT


def test_a_failed_step_ends_the_replay_and_shows_its_last_lines(monkeypatch, tmp_path, capsys):
  monkeypatch.setenv("JAX_PLATFORMS", "cpu")
  check = "import os; assert 'JAX_PLATFORMS' not in os.environ; print(1)"
  ours = [first_hour.Step("well", [sys.executable, "-c", check]),
          first_hour.Step("not so", [sys.executable, "-c", "print('the reason'); raise SystemExit(3)"]),
          first_hour.Step("never", ["absent"])]
  monkeypatch.setattr(first_hour, "steps", lambda source, python: ours)
  assert first_hour.replay(tmp_path / "hour", "source", "python3") == 1
  printed = capsys.readouterr().out
  assert "| well | `" in printed and "failed: not so" in printed and printed.endswith("the reason\n")
  assert "never" not in printed
  assert (tmp_path / "hour/well.log").read_text() == "1\n"


def test_the_config_of_the_own_loss_is_one(tmp_path, monkeypatch):
  (tmp_path / "my_run.py").write_text(first_hour.LOSS)
  monkeypatch.setattr(sys, "path", [*sys.path])
  config = run_config.load(str(tmp_path / "my_run.py"), [])
  run_config.check(config, 8)
  assert config.loss.primary.power == 1.5 and list(config.evaluation.calibrators) == ["TS", "Vector"]
  sys.modules.pop("my_run", None)


def test_the_targets_are_those_of_the_makefile():
  makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
  for step in first_hour.steps("URL", "python3"):
    if step.command[0] == "make":
      assert f"\n{step.command[1]}:" in makefile
