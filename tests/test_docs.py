"""The Python of the README and of docs/ is run as it stands; commands and files that they name are there."""

import contextlib
import io
import pathlib
import re

from ml_collections import ConfigDict
import pytest

from calib_jax.evaluation import __main__ as command
from configs import common

ROOT = pathlib.Path(__file__).parent.parent
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
         for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
SNIPPETS = [pytest.param(page, code, id=f"{page}-{i}") for page, text in PAGES.items()
            for i, code in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL))]


@pytest.mark.parametrize(("page", "code"), SNIPPETS)
def test_snippets_run(page, code, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)  # For what they save.
  exec(compile(code, page, "exec"), {})


def test_the_commands_of_the_first_screen_are_targets():
  targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
  assert set(re.findall(r"^make (\w+)", PAGES["README.md"], re.MULTILINE)) == {"demo", "test"} <= targets


@pytest.mark.parametrize("page", PAGES)
def test_files_it_names_exist(page):
  links = [(ROOT / page).parent / name for name in re.findall(r"\]\(([\w/.]+)\)", PAGES[page])]
  modules = re.findall(r"python -m (experiments[\w.]+)", PAGES[page])
  named = [ROOT / name for name in re.findall(r"configs/\w+\.py", PAGES[page])]
  for path in (*links, *named, *(ROOT / (m.replace(".", "/") + ".py") for m in modules)):
    assert path.is_file(), path


@pytest.mark.parametrize("page", PAGES)
def test_every_printed_interval_holds_its_estimate(page):
  for estimate, low, high in re.findall(r"([\d.]+) \[([\d.]+), ([\d.]+)\]", PAGES[page]):
    assert float(low) <= float(estimate) <= float(high), f"{estimate} [{low}, {high}]"


def test_every_paper_that_is_cited_is_in_the_references_with_its_link():
  listed = dict(re.findall(r"^\| (.*?) \| .*\((https://[^)]+)\)", PAGES["docs/references.md"], re.MULTILINE))
  cited = re.compile(r"\b([A-ZŁ][A-Za-zł'-]+(?: et al\.| & [A-Z][A-Za-z'-]+)?),? \(?((?:19|20)\d\d[ab]?)\b")
  sources = [path for folder in ("calib_jax", "configs", "experiments") for path in (ROOT / folder).rglob("*.py")]
  texts = {**{str(path): path.read_text(encoding="utf-8") for path in sources}, **PAGES}
  for place, text in texts.items():
    for author, year in cited.findall(re.sub(r"\s+", " ", text)):
      if " et al." in author or " & " in author:
        assert f"{author} {year}" in listed, f"{place} cites {author} {year}, which docs/references.md does not list"


def test_every_field_of_a_run_is_explained():
  def fields(section, prefix=""):
    for name, value in section.items():
      if prefix + name == "stage2.optimizer":
        continue  # The fields of ``optimizer``.
      inner = isinstance(value, ConfigDict) and prefix + name not in ("evaluation.calibrators",)
      yield from fields(value, f"{prefix}{name}.") if inner else [prefix + name]

  named = set(re.findall(r"`([\w.]+)`", PAGES["docs/training.md"]))
  assert set(fields(common.get_config())) - {"model.hidden"} <= named


def test_the_options_of_the_evaluation_command_exist():
  named = set(re.findall(r"(--\w+)", PAGES["docs/evaluation.md"]))
  help_text = io.StringIO()
  with contextlib.redirect_stdout(help_text), pytest.raises(SystemExit):
    command.main(["--help"])
  assert named and named <= set(re.findall(r"--\w+", help_text.getvalue()))
