"""The rooms of the experiments: what they may import, and that a new experiment is one file."""

import ast
import runpy
import sys

import pytest

from experiments.common.commands import ROOT

EXPERIMENTS = ROOT / "experiments"
ROOMS = sorted(path.name for path in EXPERIMENTS.iterdir() if (path / "__init__.py").exists())
NEW = """
import sys
from calib_jax import config as run_config
from experiments.common import settings, sweep
from experiments.common.declaration import Experiment, Method

def config():
  return settings.changed(run_config.load("configs/digits_savuc.py", []), {
    "model.hidden": (4,), "training.num_steps": 2, "num_seeds": 1, "compare_with_cross_entropy": False})

EXPERIMENT = Experiment("mine", "A new experiment", lambda options: [Method("", "plain", config)],
                        {"TS": {"name": "temperature_scaling"}}, ("accuracy", "nll"))
if __name__ == "__main__":
  sys.exit(sweep.main(EXPERIMENT))
"""


ABOVE = {"weekend": ("papers",)}  # It runs the tables of the papers.


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_itself_and_what_is_common(room):
  for path in (EXPERIMENTS / room).rglob("*.py"):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
      if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("experiments"):
        for name in node.names:
          imported = f"{node.module}.{name.name}".split(".")[1]
          assert imported in ("common", room, *ABOVE.get(room, ())), f"{path} imports {imported}"


def test_the_architecture_lists_the_rooms():
  table = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").partition("| room of `experiments/` |")[2]
  assert all(f"| `{room}/` |" in table for room in ROOMS) and table.count("/` |") == len(ROOMS)


@pytest.mark.slow
def test_a_new_experiment_is_one_file(tmp_path):
  (tmp_path / "mine.py").write_text(NEW)
  with pytest.raises(SystemExit) as ended, pytest.MonkeyPatch.context() as patch:
    patch.setattr(sys, "argv", ["mine.py", f"--out={tmp_path}"])
    runpy.run_path(str(tmp_path / "mine.py"), run_name="__main__")
  assert ended.value.code == 0
  assert "| plain | TS |" in (tmp_path / "mine_laptop.md").read_text(encoding="utf-8")
