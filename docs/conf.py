"""Settings of the site: `make docs` builds it without a network, and a warning is an error.

The pages are those of docs/ and of experiments/, at the paths that they have in the repository, whose root is Sphinx's
source directory. So links between them are the same on the site and in the repository.
"""

import importlib
import inspect
import os
import pathlib
import re
import subprocess
import sys

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from docutils.utils.math.mathml_elements import math as mathml
from sphinx.util import logging

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
os.environ["PYTHONPATH"] = sys.path[0]  # The notebooks run in processes of their own.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the notebooks' time is compilation, of which these flags of the JAX in requirements.txt take two thirds away.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
                      "--xla_cpu_parallel_codegen_split_count=1")

import calib_jax

ROOT = pathlib.Path(__file__).parent.parent


def _repository() -> dict[str, str]:
  """Returns the theme's options that link to the repository of this clone, if it comes from a web address."""
  done = subprocess.run(["git", "remote", "get-url", "origin"], capture_output=True, text=True, check=False, cwd=ROOT)
  address = re.sub(r"^git@([^:]+):", r"https://\1/", done.stdout.strip()).removesuffix(".git")
  if not re.fullmatch(r"https://[\w.-]+/[\w./-]+", address):
    return {}
  return {"source_repository": f"{address}/", "source_branch": "main", "source_directory": ""}


project = "calib_jax"
version = release = calib_jax.__version__
copyright = "the calib_jax authors"
extensions = ["myst_nb", "sphinx_design", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
root_doc = "docs/index"
include_patterns = ["docs/**", "experiments/README.md", "experiments/results/**", "CONTRIBUTING.md", "CHANGELOG.md",
                    "calib_jax/training/data/embedded/README.md", "configs/README.md"]
exclude_patterns = ["docs/_build", "docs/_templates", ".*", "runs", "build", "dist"]
templates_path = [str(ROOT / "docs" / "_templates")]
smartquotes = False  # It would change the two dashes of an option.
html_theme = "furo"
html_title = f"calib_jax {version}"
html_static_path = ["site/site.css", "site/stix_two_math.woff2"]
html_css_files = ["site.css"]
html_extra_path = ["site/index.html"]  # It leads from the root of the site to the first page.
html_theme_options = _repository()
html_copy_source = False
python_maximum_signature_line_length = 100
add_module_names = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # A field is described once, in the docstring of its class.

myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_timeout = 600  # Seconds for one cell, on a busy machine.
nb_merge_streams = False  # Notes stand where they were printed, before the result.
html_math_renderer = "mathml"
# What docutils misreads: large brackets that do not say their side, two digits of a fraction, indices of an accent.
FORMULAS = ((r"\\([bB]ig)(?=[)\]])", r"\\\1r"), (r"\\([bB]ig)(?=[^a-z])", r"\\\1l"), (r"(frac)(\d)(\w)", r"\1{\2}{\3}"),
            (r"(\\(?:hat|bar) ?(?:\\?[A-Za-z]+|\{\w\}))(?=[_^])", r"\1{}"))
ARRAY_LIKE = r"~?[\w.]*\bArray \| ~?[\w.]*ndarray \| ~?[\w.]*bool \| ~?[\w.]*number \| bool \| int \| float \| complex"


def _show_math(writer, node) -> None:
  """Writes a formula as MathML, which browsers draw without a script and a network, in parts that a phone can stack."""
  is_block, text, shown = isinstance(node, nodes.math_block), node.astext(), ""
  for misread, clear in FORMULAS:
    text = re.sub(misread, clear, text)
  for part in re.split(r"\\q?quad", text):
    formula = mathml(display="block") if is_block else mathml()
    try:
      latex2mathml.parse_latex_math(formula, part)
    except MathError as error:
      logging.getLogger(__name__).warning("a formula cannot be shown: %s", error, location=node)
    shown += formula.toxml().replace(">‖", ' stretchy="false">‖')
  # A thin space parts the name of a function from an argument without brackets; the bars of a norm are as high as text.
  shown = re.sub(r"<mo>&ApplyFunction;</mo>(?!<mo \S+>\()", '<mspace width=".17em"></mspace>', shown)
  writer.body.append(f'<div class="formula">{shown}</div>' if is_block else shown)
  raise nodes.SkipNode


def _skip_fields(app, what: str, name: str, member: object, skip: bool, options) -> bool | None:
  """Leaves out the fields of a NamedTuple, which the docstring of its class describes."""
  return True if (getattr(member, "__doc__", None) or "").startswith("Alias for field") else None


def _seen_from_docs(app, path: pathlib.Path, docname: str, content: list[str]) -> None:
  """Makes the links of README.md, which docs/index.md includes, relative to docs/."""
  content[0] = re.sub(r"\]\((?=docs/|experiments/|[A-Z]+\.md)", "](../", content[0])


def _named_types(app, what: str, name: str, obj: object, options, signature: str | None, returned: str | None):
  """Shows the type alias ArrayLike by its name, rather than as the union that it stands for."""
  if signature and "<factory>" in signature:  # Sphinx cannot read it. Other packages have no pages here.
    signature = re.sub(r"~(?!calib_jax)(?:\w+\.)+", "", signature).replace("<factory>", "...")
  return tuple(text and re.sub(ARRAY_LIKE, "ArrayLike", text) for text in (signature, returned))


def _unbroken(app, docname: str, source: list[str]) -> None:
  """Keeps a number and its error, its interval or its bound on one line."""
  source[0] = re.sub(r"(?<=\d) ± (?=\d)|(?<=\d) \[[-+\d.]+, [-+\d.]+\](?=[ |;,.)])|(?<=\| <) (?=0)",
                     lambda number: number[0].replace(" ", "\u00a0"), source[0])


def _papers(app, docname: str, source: list[str]) -> None:
  """Adds the papers of references.bib to their page, with their links and the methods that come from them."""
  if docname != "docs/references":
    return
  entry = (r"@misc\{[a-z]+\d{4}(\w?),\s+author = \{(.*?)\},\s+title = \{\{(.*?)\}\},\s+year = \{(\d+)\},"
           r"\s+url = \{(.*?)\}(?:,\s+note = \{(.*?)\})?")
  for letter, author, title, year, url, note in re.findall(entry, (ROOT / "docs/references.bib").read_text("utf-8")):
    name = author.replace(" and others", " et al.").replace(" and ", " & ")
    source[0] += f"\n- {name} {year}{letter}: [{title}]({url})" + (f", {note}" if note else "")


def _versions(app, what: str, name: str, _object, _options, lines: list[str]) -> None:
  """Says since which version a public name is there: the first, unless its docstring names a later one."""
  if what in ("function", "class") and not any("versionadded::" in line for line in lines):
    lines += ["", ".. versionadded:: 0.1"]


GUIDES = {"losses": "losses", "metrics": "metrics", "calibrators": "calibrators", "thresholds": "thresholds",
          "evaluation": "evaluation", "training": "training", "sklearn": "scikit_learn"}


def _links(app, what: str, name: str, made, _options, lines: list[str]) -> None:
  """Links a function to the guide of its package, and to the functions that stand beside it in the code."""
  package, _, own = name.rpartition(".")
  guide = GUIDES.get(package.removeprefix("calib_jax."))
  if what != "function" or not guide:
    return
  public = importlib.import_module(package)
  beside = [other for other in sorted(getattr(public, "__all__", dir(public))) if other != own and not (
    other.startswith("_")) and inspect.isfunction(getattr(public, other)) and (
      getattr(public, other).__module__ == made.__module__)]
  related = ", ".join(f":func:`~{package}.{other}`" for other in beside[:8])
  lines += ["", f"Guide: :doc:`/docs/{guide}`." + (f" Beside it: {related}." if related else "")]


def _printed_tables(app, doctree) -> None:
  """Shows tables that a cell printed as Markdown as tables, which scroll by themselves where a screen is narrow."""
  for block in list(doctree.findall(nodes.literal_block)):
    parts = re.split(r"((?:^\|.*\n?)+)", block.rawsource or block.astext(), flags=re.MULTILINE)
    if "stream" not in block["classes"] or len(parts) == 1:
      continue
    shown = []
    for part in filter(str.strip, parts):
      if part.startswith("|"):
        header, _, *rows = ([cell.strip() for cell in line.strip()[1:-1].split("|")] for line in part.splitlines())
        shown.append(_table(header, rows))
      else:
        shown.append(block.copy())
        shown[-1] += nodes.Text(part.strip("\n"))
    block.replace_self(shown)


def _table(header: list[str], rows: list[list[str]]) -> nodes.table:
  group = nodes.tgroup(cols=len(header))
  group += [nodes.colspec(colwidth=1) for _ in header]
  for kind, lines in ((nodes.thead, [header]), (nodes.tbody, rows)):
    part = kind()
    part += [nodes.row("", *(nodes.entry("", nodes.paragraph(text=cell)) for cell in line)) for line in lines]
    group += part
  return nodes.table("", group)


def _near(app, pagename: str, templatename: str, context: dict, doctree) -> None:
  """Shows what is near a page in its sidebar: all 500 pages, in each of them, took half of the build."""
  if whole := context.get("toctree"):
    context["toctree"] = lambda **options: whole(**{**options, "collapse": True})


def setup(app) -> None:
  """Registers how formulas, links and members are shown."""
  app.connect("include-read", _seen_from_docs)
  app.connect("source-read", _unbroken)
  app.connect("source-read", _papers)
  app.connect("doctree-read", _printed_tables)
  app.connect("autodoc-process-signature", _named_types)
  app.connect("autodoc-skip-member", _skip_fields)
  app.connect("autodoc-process-docstring", _versions)
  app.connect("autodoc-process-docstring", _links)
  app.connect("html-page-context", _near, priority=400)  # Before the theme's, at 500.
  app.add_html_math_renderer("mathml", (_show_math, None), (_show_math, None))
