"""`--help` of every experiment prints its help and runs nothing."""

import re
import runpy
import sys

import pytest

from experiments.common.commands import ROOT

MODULES = sorted(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
                 for path in (ROOT / "experiments").rglob("*.py")
                 if 'if __name__ == "__main__"' in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", MODULES)
def test_help_is_all_that_it_prints(name, monkeypatch, capsys):
  monkeypatch.setattr("sys.argv", [name, "--help"])
  monkeypatch.delitem(sys.modules, name, raising=False)  # runpy warns of a module that is imported already.
  with pytest.raises(SystemExit) as ended:
    runpy.run_module(name, run_name="__main__")
  printed = capsys.readouterr()
  assert ended.value.code == 0 and printed.out.split()[:4] == ["usage:", "python", "-m", name]
  assert printed.out.split("\n\n")[1].strip() and "--help" in printed.out and not printed.err


def test_the_page_of_experiments_names_modules_that_are_commands():
  page = (ROOT / "experiments" / "README.md").read_text(encoding="utf-8")
  named = set(re.findall(r"python -m (experiments[\w.]*)", page))
  assert named and named <= set(MODULES)
