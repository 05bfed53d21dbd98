"""Settings of the site: `make docs` builds it without a network, and a warning is an error."""

import os
import pathlib
import re
import sys

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from docutils.utils.math.mathml_elements import math as mathml
from sphinx.util import logging

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
os.environ["PYTHONPATH"] = sys.path[0]  # The notebooks run in processes of their own.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import calib_jax

project = "calib_jax"
version = release = calib_jax.__version__
copyright = "the calib_jax authors"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
nitpicky = False
smartquotes = False  # It would change the two dashes of an option.
html_theme = "furo"
html_title = f"calib_jax {version}"
html_show_sourcelink = False
html_copy_source = False
python_maximum_signature_line_length = 100
add_module_names = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "none"  # Docstrings give the shapes, which say more.
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # A field is described once, in the docstring of its class.

myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_timeout = 30  # Seconds for one cell.
nb_execution_raise_on_error = True
nb_merge_streams = True
html_math_renderer = "mathml"


def _show_math(writer, node) -> None:
  """Writes a formula as MathML, which browsers draw without a script and without a network."""
  is_block = isinstance(node, nodes.math_block)
  formula = mathml(display="block") if is_block else mathml()
  # docutils knows the large brackets of LaTeX only by the names that also say their side.
  text = re.sub(r"\\([bB]ig)(?=[^a-z])", r"\\\1l", node.astext())
  try:
    latex2mathml.parse_latex_math(formula, text)
  except MathError as error:
    logging.getLogger(__name__).warning("a formula cannot be shown: %s", error, location=node)
  writer.body.append("".join(formula.toxml()))
  raise nodes.SkipNode


def _link_files(app, docname: str, source: list[str]) -> None:
  """Makes links to files outside docs/ into downloads."""
  up = r"\.\./" * (docname.count("/") + 1)
  source[0] = re.sub(rf"\[([^\]]+)\]\(({up}[^)#]+)\)", r"{download}`\1 <\2>`", source[0])


def _skip_fields(app, what: str, name: str, member: object, skip: bool, options) -> bool | None:
  """Leaves out the fields of a NamedTuple, which the docstring of its class describes."""
  return True if (getattr(member, "__doc__", None) or "").startswith("Alias for field") else None


def setup(app) -> None:
  """Registers how formulas, links and members are shown."""
  app.connect("autodoc-skip-member", _skip_fields)
  app.add_html_math_renderer("mathml", (_show_math, None), (_show_math, None))
  app.connect("source-read", _link_files)
