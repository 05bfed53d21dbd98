"""Writes a graph as a Python file that needs NumPy alone."""

import collections
from collections.abc import Sequence
import textwrap

import numpy as np

from calib_jax.calibrators.export_graph import OPERATIONS, Graph, Node, Value

LONGEST = 50  # Characters of an expression that is written where it is used, rather than in a line of its own.
FILE = '''"""Calibrated probabilities of logits, by NumPy alone."""

# Written by calib_jax {version} of the fitted calibrator
{described}

import numpy as np

{constants}

def calibrate(logits{covariates}{parameter}):
  """Returns the probabilities of logits {shape}, computed in {dtype}{together}{ordered}."""
  logits = np.asarray(logits)
  if not logits.ndim or logits.shape[-1] {refused}:
    raise ValueError(f"logits must have the shape {shape}: got {{logits.shape}}.")
{joining}  rows = logits{chosen}.astype(np.{dtype}).reshape(-1, logits.shape[-1])
  with np.errstate(all="ignore"):
    {result} _probs(rows{passed}).reshape(logits.shape){returned}


def _probs(logits{covariates}):
  rows, classes = logits.shape
{statements}
'''


# What the file has beside, where the classes have names.
NAMED = {"parameter": ", classes=None", "ordered": """.

  ``classes`` are the names of the classes of the last axis; None for the order of CLASSES. The result has the order of
  the logits""", "joining": """  names = list(CLASSES if classes is None else map(str, classes))
  if sorted(names) != sorted(CLASSES):
    raise ValueError(f"classes must have the names {CLASSES}: got {names}.")
  if len(names) != logits.shape[-1]:
    raise ValueError(f"logits must have the {len(names)} classes {names}: got the shape {logits.shape}.")
  order = [names.index(name) for name in CLASSES]
""", "chosen": "[..., order]", "result": "probs =", "returned": "\n  return probs[..., np.argsort(order)]"}
UNNAMED = dict.fromkeys(NAMED, "") | {"result": "return"}


def write(graph: Graph, described: str, together: bool, classes: Sequence[str] | None, columns: int = 0, **texts: str
          ) -> bytes:
  """The file of a graph of logits ``[rows, classes]``, and of so many ``columns`` of covariates beside them.

  ``texts`` are what ``FILE`` names.
  """
  texts |= {"covariates": ", covariates" if columns else "", "passed": (
    f", np.asarray(covariates, np.{texts['dtype']}).reshape(-1, {columns})" if columns else "")}
  texts |= NAMED if classes else UNNAMED
  names = f"CLASSES = ({', '.join(map(ascii, classes))},)\n" if classes else ""
  used, uses = graph.pruned(), collections.Counter()
  _count(graph, uses)
  expressions = {name: name for name in used} | {value.name: value.name for value in graph.inputs}
  lines = [*_lines(graph, expressions, uses), f"return {expressions[graph.outputs[0].name]}"]
  return FILE.format(described=textwrap.fill(described, 110, initial_indent="#   ", subsequent_indent="#   "),
                     constants=names + "".join(_constant(key, x) for key, x in graph.constants.items() if key in used),
                     statements=textwrap.indent("\n".join(lines), "  "),
                     together=" from all rows together" * together, **texts).encode()


def _count(graph: Graph, uses: collections.Counter) -> None:
  """Counts where each value is used; one that a loop uses counts twice, so that it gets a line before the loop."""
  for node in graph.nodes:
    uses.update(value.name for value in node.operands)
    if node.body:
      _count(node.body, uses)
      uses.update(node.body.pruned())
  uses.update(value.name for value in graph.outputs)


def _lines(graph: Graph, expressions: dict[str, str], uses: collections.Counter) -> list[str]:
  """The statements of a graph; adds to ``expressions`` what stands for each value."""
  lines = []
  for node in graph.nodes:
    name = node.results[0].name
    if node.body:
      carried = [value.name for value in node.body.inputs]
      start = [_text(value, expressions) for value in node.operands]
      expressions.update(zip(carried, carried, strict=True))
      body = _lines(node.body, expressions, uses)
      step = ", ".join(_text(value, expressions) for value in node.body.outputs)
      lines += [f"{', '.join(carried)} = {', '.join(start)}", f"for _ in range({node.attributes['length']}):" if (
        node.attributes["length"]) else f"while {carried[0]}:"]
      lines += [f"  {line}" for line in (*body, f"{', '.join(carried)} = {step}")]
      expressions.update(zip((value.name for value in node.results), carried, strict=True))
    elif uses[name] > 1 or len(text := _expression(node, expressions)) > LONGEST:
      lines.append(f"{name} = {_expression(node, expressions)}")
      expressions[name] = name
    else:
      expressions[name] = f"({text})" if OPERATIONS[node.operation][0].startswith("{}") else text
  return lines


def _expression(node: Node, expressions: dict[str, str]) -> str:
  # NumPy takes a Python number for one of the dtype of the arrays beside it; beside none it says its dtype.
  typed = all(x.number is not None or x.dtype == bool for x in node.operands)
  texts = [_text(x, expressions, typed) for x in node.operands]
  template = OPERATIONS[node.operation][0]
  if not template.startswith("{}"):  # A call needs no parentheses around what it is passed.
    texts = [text[1:-1] if text.startswith("(") else text for text in texts]
  if node.operation == "concatenate":
    texts = [", ".join(texts)]
  return template.format(*texts, **{name: _attribute(value) for name, value in node.attributes.items()})


def _attribute(value) -> str:
  if isinstance(value, list):  # Parts of the axes of a slice.
    return ", ".join(":".join(map(str, part)) for part in value)
  if isinstance(value, tuple):  # A size or an axis alone is a number.
    return str(value[0]) if len(value) == 1 else f"({', '.join(map(str, value))})"
  return str(value)


def _text(value: Value, expressions: dict[str, str], typed: bool = False) -> str:
  if value.number is None:
    return expressions[value.name]
  text = str(value.dtype.type(value.number))
  text = f"np.{text}" if text in ("inf", "nan") else "-np.inf" if text == "-inf" else text
  return f"np.{value.dtype}({text})" if typed and value.dtype.kind == "f" else text


def _constant(name: str, array: np.ndarray) -> str:
  """The statement of an array, whose numbers are a text: one line for each row of its last axis."""
  kind, is_bool = ("np.int64", " != 0") if array.dtype == bool else (f"np.{array.dtype}", "")
  array = array.astype(np.int64) if is_bool else array
  lines = [" ".join(map(str, row)) for row in array.reshape(-1, array.shape[-1] if array.ndim else 1)]
  if not np.array_equal(np.array(" ".join(lines).split(), array.dtype), array.ravel(), equal_nan=True):
    lines = [" ".join(map(repr, array.ravel().tolist()))]  # Rounded twice, a few numbers would change.
  if not array.ndim:
    return f"{name} = {kind}('{lines[0]}'){is_bool}\n"
  return f'{name} = np.array("""\n' + "\n".join(lines) + f'\n""".split(), {kind}).reshape({array.shape}){is_bool}\n'
