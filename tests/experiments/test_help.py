"""`--help` of every experiment prints its help and runs nothing."""

import importlib
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
MODULES = sorted(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (ROOT / "experiments").rglob("*.py")
                 if "__main__" in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", MODULES)
def test_help_is_all_that_it_prints(name, monkeypatch, capsys):
  module = importlib.import_module(name)
  monkeypatch.setattr("sys.argv", [name, "--help"])
  with pytest.raises(SystemExit) as ended:
    module.main()
  printed = capsys.readouterr()
  assert ended.value.code == 0 and printed.out.startswith("usage: ") and "--help" in printed.out
  assert printed.out.split("\n\n")[1].strip() and not printed.err
