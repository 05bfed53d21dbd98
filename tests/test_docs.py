"""The Python of the README and of docs/ is run as it stands; commands and files that they name are there."""

import contextlib
import importlib
import inspect
import io
import pathlib
import re
import runpy
import shutil
import types

from flax import nnx
import jax
import matplotlib
from ml_collections import ConfigDict
import numpy as np
import pytest

import calib_jax
from calib_jax import calibrators, evaluation, losses, training
from calib_jax._checks import registry
from calib_jax.cli import apply, compare
from calib_jax.cli import evaluate as command
from calib_jax.evaluation.reports import formats
from calib_jax.training import config as run_config
from calib_jax.training import models, run
from configs import common

ROOT = pathlib.Path(__file__).parent.parent
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
         for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")),
                      *sorted((ROOT / "docs/gallery").glob("*.md")))}
NOTEBOOKS = [page for page in PAGES if "{code-cell}" in PAGES[page]]
GALLERY = [page for page in NOTEBOOKS if page.startswith("docs/gallery/")]
SNIPPETS = [pytest.param(page, code, id=f"{page}-{i}", marks=() if page == "README.md" else pytest.mark.slow)
            for page, text in PAGES.items()
            for i, code in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL))]


@pytest.mark.parametrize(("page", "code"), SNIPPETS)
def test_snippets_run(page, code, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)  # For what they save.
  if "import onnxruntime" in code:
    pytest.importorskip("onnxruntime")
  exec(compile(code, page, "exec"), {})


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in NOTEBOOKS if page not in GALLERY])  # `make docs` runs these.
def test_notebooks_run(page, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  shutil.copytree(ROOT / "docs/gallery", tmp_path / "gallery", ignore=shutil.ignore_patterns("*.md"))
  monkeypatch.setenv("XLA_FLAGS", "")  # One of them adds to it; what it asks for, the tests have anyway.
  cells = re.findall(r"```\{code-cell\}\n(?::tags:[^\n]*\n)?(.*?)```", PAGES[page], re.DOTALL)
  module = types.ModuleType("__main__")
  with matplotlib.rc_context({"backend": "agg"}):
    exec(compile("\n".join(cells), page, "exec"), vars(module))


def test_the_loop_in_nnx_lowers_the_loss_and_a_module_holds_a_fitted_calibrator():
  page = PAGES["docs/training_loop.md"]
  code, = (code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "from flax import nnx" in code)
  names = {}
  exec(compile(code, "docs/training_loop.md", "exec"), names)
  model, x, y, first = (names[name] for name in ("model", "x", "y", "parts"))
  for _ in range(5):
    parts = names["step"](model, names["optimizer"], x, y)
  assert parts["primary"] + 0.3 * parts["secondary"] < first["primary"] + 0.3 * first["secondary"]

  class Calibrated(nnx.Module):
    def __init__(self, model, calibrator):
      self.model, self.calibrator = model, nnx.data(calibrator)

    def __call__(self, x):
      return self.calibrator(self.model(x))

  fitted = calibrators.temperature_scaling().fitted(model(x), y)
  structure, state = nnx.split(Calibrated(model, fitted))
  assert len(jax.tree.leaves(state)) == 2 + len(jax.tree.leaves(fitted.params))
  calibrated = nnx.jit(lambda module, x: module(x))(nnx.merge(structure, state), x)
  np.testing.assert_allclose(calibrated, fitted(model(x)), rtol=1e-5)


def test_there_are_nine_notebooks_and_the_gallery_lists_them():
  index = PAGES["docs/gallery/index.md"]
  names = [pathlib.PurePath(page).name for page in GALLERY]
  assert len(names) == 6 and len(NOTEBOOKS) == 9 and len(re.findall("^:link: ", index, re.MULTILINE)) == 9
  stems = {name.removesuffix(".md") for name in names}
  assert stems == set(re.findall(r"^:link: (\w+)$", index, re.MULTILINE))
  assert stems == set(re.findall(r"^(\w+)$", index, re.MULTILINE))


@pytest.mark.parametrize("page", [page for page in PAGES if page not in ("README.md", "docs/index.md")])
def test_each_guide_opens_with_the_question_that_it_answers(page):
  opening = re.sub(r"^---\n.*?\n---\n", "", PAGES[page], flags=re.DOTALL).strip().split("\n\n")[:2]
  assert opening[0].startswith("# ") and any("?" in part for part in opening), opening


def _public_names(module):
  """The names that a page of the reference shows: ``__all__``, or what the module defines without an underscore."""
  return getattr(module, "__all__", None) or [
    name for name, value in vars(module).items()
    if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__]


REFERENCE = [*calib_jax.__all__, "evaluation.reports", *(f"training.{room}" for room in (
  "config", "data", "last_layer", "models", "run"))]


@pytest.mark.parametrize("name", REFERENCE)
def test_every_public_name_is_documented_and_has_a_place_on_the_site(name):
  module = importlib.import_module(f"calib_jax.{name}")
  page = (ROOT / f"docs/api/{name.split('.')[-1]}.rst").read_text(encoding="utf-8")
  assert f".. automodule:: calib_jax.{name}\n" in page
  listed = re.findall(r"^   (\w+)$", page, re.MULTILINE)  # In its summary tables, from which Sphinx makes the pages.
  constants = set(re.findall(rf"^\.\. py:data:: calib_jax\.{re.escape(name)}\.(\w+)\n\n   \w", page, re.MULTILINE))
  assert constants <= set(dir(module)), "the page describes a constant that the module does not have"
  for public in _public_names(module):
    value = getattr(module, public)
    if inspect.isclass(value) or inspect.isfunction(value):
      assert inspect.getdoc(value), f"calib_jax.{name}.{public} is public and has no docstring"
      assert listed.count(public) == 1, f"docs/api/{name}.rst has {public} in {listed.count(public)} tables"
    else:
      assert public in constants, f"calib_jax.{name}.{public} is public and docs/api/{name}.rst does not describe it"
  assert set(listed) <= set(_public_names(module))


def test_a_displayed_formula_is_one_paragraph():
  """The site shows the paragraphs of one directive as a product on one line: each needs a directive of its own."""
  display = re.compile(r"^( *)\.\. math::.*\n(?:\1 +.*\n)*\n+\1 +\S", re.MULTILINE)
  assert display.search("  .. math::\n    x\n\n    y") and not display.search("  .. math:: x\n\n  .. math:: y\n\n  z")
  several = [path.name for path in sorted((ROOT / "calib_jax").rglob("*.py"))
             if display.search(path.read_text(encoding="utf-8"))]
  assert not several


def _pages_of_the_menu(page):
  """The pages that the menu of the site lists, by the fences of a page that say so."""
  fences = re.findall(r"```\{toctree\}\n(?::[^\n]*\n)*\n(.*?)```", PAGES[page], re.DOTALL)
  return {re.sub(r".* <(.*)>", r"\1", line) for fence in fences for line in fence.splitlines()}


def test_the_index_lists_every_page():
  listed = _pages_of_the_menu("docs/index.md")
  assert {name for name in listed if name.startswith("api/")} == {f"api/{name.split('.')[-1]}" for name in REFERENCE}
  guides = {page[len("docs/"):-len(".md")] for page in PAGES if re.fullmatch(r"docs/\w+\.md", page)} - {"index"}
  assert guides | {"gallery/index"} == {name for name in listed if not name.startswith(("api/", "/"))}


def test_every_page_of_results_is_a_page_of_the_site_with_a_title_of_its_own():
  assert _pages_of_the_menu("docs/results.md") > {"/experiments/README", "/experiments/results/*"}
  titles = {path.name: path.read_text(encoding="utf-8").partition("\n")[0]
            for path in (ROOT / "experiments/results").glob("*.md")}
  assert all(title.startswith("# ") for title in titles.values()) and len(set(titles.values())) == len(titles), titles


def test_the_commands_of_the_first_screen_are_targets():
  targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
  assert set(re.findall(r"^make (\w+)", PAGES["README.md"], re.MULTILINE)) == {"demo", "test"} <= targets


@pytest.mark.parametrize("page", PAGES)
def test_files_it_names_exist(page):
  links = [(ROOT / page).parent / name for name in re.findall(r"\]\(([\w/.]+)\)", PAGES[page])]
  modules = re.findall(r"python -m (experiments[\w.]+)", PAGES[page])
  for name in re.findall(r"\bconfigs/\w+\.py(?::[\w.+]*\w)?", PAGES[page]):
    assert (ROOT / name.partition(":")[0]).is_file() and (":" not in name or run_config.load(name, []))
  for path in links:
    assert path.is_file(), path
  for module in modules:  # A module, or a package that is a command.
    assert any((ROOT / (module.replace(".", "/") + end)).is_file() for end in (".py", "/__main__.py")), module


def test_the_readme_fits_on_a_few_screens():
  assert PAGES["README.md"].count("\n") <= 120


def test_the_table_of_the_demo_is_one_that_a_run_writes_now():
  demo = types.SimpleNamespace(**runpy.run_path(str(ROOT / "docs/demo.py")))
  text = demo.PLACE.search(PAGES["docs/demo.md"])[2]
  rows = demo.cells(text)
  assert evaluation.markdown(rows) == text and len(rows) <= 6
  assert demo.PLACE.search(PAGES["README.md"])[2] == evaluation.markdown(demo.short(rows))
  assert rows[0] == ["trained with", "calibrated by", *(x.heading for x in formats.columns(evaluation.SHORT_TABLE))]
  config = run_config.load("configs/fashion_mnist_small_savuc.py", [])
  assert [row[:2] for row in rows[1:]] == [
    [method, label] for method in ("cross_entropy", run.methods.method_name(config))
    for label in ("none", *config.evaluation.calibrators)]


@pytest.mark.parametrize("page", PAGES)
def test_every_printed_interval_holds_its_estimate(page):
  for estimate, low, high in re.findall(r"([\d.]+) \[([\d.]+), ([\d.]+)\]", PAGES[page]):
    assert float(low) <= float(estimate) <= float(high), f"{estimate} [{low}, {high}]"


PAPERS = re.findall(r"""@misc\{(\w+),
  author = \{(.*?)\},
  title = \{\{.+\}\},
  year = \{(\d{4})\},
  url = \{https://.+\}(?:,
  note = \{(.*)\})?
\}""", (ROOT / "docs/references.bib").read_text(encoding="utf-8"))  # And their methods.


def test_every_paper_that_is_cited_is_in_the_references_with_its_link():
  listed = {f"{author} {year}{key.partition(year)[2]}".replace(" and others", " et al.").replace(" and ", " & ")
            for key, author, year, _ in PAPERS}
  assert len(listed) == (ROOT / "docs/references.bib").read_text(encoding="utf-8").count("@misc{")
  cited = re.compile(r"\b([A-ZŁ][A-Za-zł'-]+(?: et al\.| & [A-Z][A-Za-z'-]+)?),? \(?((?:19|20)\d\d[ab]?)\b")
  sources = [path for folder in ("calib_jax", "configs", "experiments") for path in (ROOT / folder).rglob("*.py")]
  texts = {**{str(path): path.read_text(encoding="utf-8") for path in sources}, **PAGES}
  for place, text in texts.items():
    for author, year in cited.findall(re.sub(r"\s+", " ", text)):
      if " et al." in author or " & " in author:
        assert f"{author} {year}" in listed, f"{place} cites {author} {year}, which docs/references.bib does not list"


def test_every_field_of_a_run_is_explained():
  def fields(section, prefix=""):
    for name, value in section.items():
      if prefix + name == "stage2.optimizer":
        continue  # The fields of ``optimizer``.
      inner = isinstance(value, ConfigDict) and prefix + name not in ("evaluation.calibrators",)
      yield from fields(value, f"{prefix}{name}.") if inner else [prefix + name]

  named = set(re.findall(r"`([\w.]+)`", PAGES["docs/fields.md"]))
  options = {f"schedule.{option}" for schedule in training.SCHEDULES.values() for option in registry.options(schedule)}
  assert options | set(fields(common.get_config())) - {"model.hidden"} <= named


def test_the_options_of_the_evaluation_command_exist():
  named = set(re.findall(r"(--\w+)", PAGES["docs/evaluation.md"]))
  help_text = io.StringIO()
  for program in (command, compare, apply):
    with contextlib.redirect_stdout(help_text), pytest.raises(SystemExit):
      program.main(["--help"])
  assert named and named <= set(re.findall(r"--\w+", help_text.getvalue()))


def test_the_page_of_the_authors_code_names_every_method_that_has_a_reading_of_it():
  page = PAGES["docs/released_code.md"]
  methods = {name: getattr(losses, name) for name in (*losses.PER_EXAMPLE, *losses.PER_BATCH)}
  methods |= models.HEADS | calibrators.CALIBRATORS
  readings = [name for name, method in methods.items() if "variant" in inspect.signature(method).parameters
              or "released" in (inspect.getdoc(method) or "")]
  assert {"mmce", "masked", "classwise_loss_scaling"} < set(readings)
  assert not [name for name in readings if f"`{name}`" not in page]
  assert page.count("\n") <= 120
