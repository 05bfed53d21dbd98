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
  for module in (name, f"{name}.__main__"):  # runpy warns of a module that is imported already.
    monkeypatch.delitem(sys.modules, module, raising=False)
  with pytest.raises(SystemExit) as ended:
    runpy.run_module(name, run_name="__main__")
  printed = capsys.readouterr()
  assert ended.value.code == 0 and printed.out.split()[:4] == ["usage:", "python", "-m", name]
  assert printed.out.split("\n\n")[1].strip() and "--help" in printed.out and not printed.err


def test_the_page_of_experiments_names_modules_that_are_commands():
  page = (ROOT / "experiments" / "README.md").read_text(encoding="utf-8")
  named = set(re.findall(r"python -m (experiments[\w.]*)", page))
  assert named and named <= set(MODULES)


# The numbered tables and figures of each paper. Zhou et al. number those of the appendix from 1, too; these are others.
NUMBERED = {"Karandikar et al. 2021": (6, 10), "Zhou et al. 2025": (4, 6), "Komisarenko & Kull 2024": (1, 8),
            "Jung et al. 2023": (4, 4), "Ni et al., MaC-Cal": (5, 8)}


def _place(number):
  return number.startswith("A"), int(number.removeprefix("A"))


def test_the_page_of_experiments_lists_every_table_and_figure_of_the_papers():
  page = (ROOT / "experiments" / "README.md").read_text(encoding="utf-8")
  section = page.split("| paper | table or figure |")[1].split("\n\n")[0]
  listed, paper = {}, ""
  for line in section.splitlines()[2:]:
    name, kind_and_numbers, made = (cell.strip() for cell in line.strip("|").split("|"))
    paper = name or paper
    kind, numbers = re.fullmatch(r"(Table|Figure)s? (A?\d+(?:, A?\d+)*)", kind_and_numbers).groups()
    listed.setdefault((paper, kind), []).extend(numbers.split(", "))
    assert "`" in made or made.startswith("nothing")
  expected = {(paper, kind): [str(i) for i in range(1, number + 1)] for paper, numbers in NUMBERED.items()
              for kind, number in zip(("Table", "Figure"), numbers, strict=True)}
  # The appendix of Zhou et al. begins again: scores and γ; gradients, the dual focal loss, and gradients over training.
  expected["Zhou et al. 2025", "Table"] += ["A1", "A2"]
  expected["Zhou et al. 2025", "Figure"] += ["A1", "A2", "A3"]
  assert {key: sorted(numbers, key=_place) for key, numbers in listed.items()} == expected
