"""The rooms of the experiments: what they may import, and where they are listed."""

import ast

import pytest

from experiments.common.commands import ROOT

EXPERIMENTS = ROOT / "experiments"
ROOMS = sorted(path.name for path in EXPERIMENTS.iterdir() if (path / "__init__.py").exists())


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_itself_and_what_is_common(room):
  for path in (EXPERIMENTS / room).rglob("*.py"):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
      if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("experiments"):
        for name in node.names:
          imported = f"{node.module}.{name.name}".split(".")[1]
          assert imported in ("common", room), f"{path} imports {imported}"


def test_the_architecture_lists_the_rooms():
  table = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").partition("| room of `experiments/` |")[2]
  assert all(f"| `{room}/` |" in table for room in ROOMS) and table.count("/` |") == len(ROOMS)
