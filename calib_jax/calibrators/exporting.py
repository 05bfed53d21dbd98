"""Fitted calibrators as files that need neither this package nor JAX."""

from collections.abc import Callable
import os
import pathlib
import re

import jax
from jax import export as symbols
from jax.extend.core import ClosedJaxpr
import jax.numpy as jnp

import calib_jax
from calib_jax import _checks as checks
from calib_jax._system import errors, files
from calib_jax.calibrators import export_numpy, export_onnx
from calib_jax.calibrators.base import Fitted
from calib_jax.calibrators.covariate import names
from calib_jax.calibrators.export_graph import Graph, Value, translate
from calib_jax.calibrators.selection import Selection

WRITERS: dict[str, Callable[..., str | None]] = {"numpy": export_numpy.write, "onnx": export_onnx.write}


def export(fitted: Fitted | Selection, kind: str, path: str | os.PathLike[str] | None = None, *,
           num_classes: int | None = None) -> bytes:
  """A fitted calibrator as one file that needs neither this package nor JAX.

  Use it to serve calibrated probabilities elsewhere.

  Args:
    fitted: what ``calibrator.fitted(logits, labels)``, ``load`` or ``select`` returns.
    kind: "numpy" for a Python file that imports NumPy alone, and whose function ``calibrate(logits)`` returns the
      probabilities of logits ``[..., K]``; "onnx" for a model with the input ``logits`` ``[N, K]`` and the output
      ``probs``, for which the package onnx must be installed. Where the fit has names of classes, the Python file has
      them as ``CLASSES`` and takes columns in another order by ``calibrate(logits, classes=names)``, and the model has
      them as a list of JSON in its metadata ``classes``.
    path: where to write the file, in place of one that is there; None to write none.
    num_classes: K, where the params do not say it.

  Returns:
    The contents of the file. It computes in the dtype of the params, as ``apply`` does, and agrees with it up to
    rounding; logits of other dtypes are converted first. It does not warn of probabilities in place of logits.

  Raises:
    TypeError: for a calibrator that is not fitted.
    ValueError: for another kind, a number of classes that the params do not take or do not say, or an ``apply`` of
      your own with an operation that is not known here.
    ImportError: if "onnx" is asked for, and is not installed.

  >>> fitted = Fitted(calib_jax.calibrators.temperature_scaling(), {"temperature": jnp.array(2.0)})
  >>> module = {}
  >>> exec(export(fitted, "numpy"), module)  # As importing the file does.
  >>> module["calibrate"]([[2.0, 0.0]]).round(2)
  array([[0.73, 0.27]], dtype=float32)
  """
  checks.choice("kind", kind, WRITERS)
  if not isinstance(fitted, Fitted | Selection):
    raise TypeError("fitted must be a fitted calibrator, as calibrator.fitted(logits, labels), load or select returns: "
                    f"got {type(fitted).__name__}.")
  calibrator, leaves = fitted.calibrator, jax.tree_util.tree_leaves_with_path(jax.tree.map(jnp.asarray, fitted.params))
  traced, least = _traced(fitted, jnp.result_type(jnp.float32, *(x.dtype for _, x in leaves if x.dtype.kind == "f")),
                          num_classes)
  graph = Graph({})
  params = [graph.constant(_name(key, graph), leaf) for key, leaf in leaves]
  inputs = traced.in_avals[len(leaves):]
  logits = inputs[0]
  if len(inputs) > 1 and kind != "numpy":
    raise ValueError(f"{calibrator.name} needs covariates beside logits, and is exported as kind \"numpy\" alone.")
  graph.inputs = [Value(name, x.shape, x.dtype) for name, x in zip(("logits", "covariates"), inputs, strict=False)]
  log_probs, = translate(traced, (*params, *graph.inputs), graph)
  graph.outputs = [graph.elementwise("exp", log_probs)]
  shape, refused = (f"[..., K], K of at least {least}", f"< {least}") if least else (
    f"[..., {logits.shape[-1]}]", f"!= {logits.shape[-1]}")
  contents = WRITERS[kind](graph, errors.printable(calibrator), version=calib_jax.__version__, shape=shape,
                           refused=refused, dtype=str(logits.dtype), together=calibrator.together,
                           classes=getattr(fitted, "classes", None),
                           **({"columns": inputs[1].shape[1]} if len(inputs) > 1 else {}))
  if path is not None:
    files.write(pathlib.Path(path), lambda file: file.write(contents))
  return contents


def _name(key, graph: Graph) -> str:
  """A name for a param: what it is called comes from a file, perhaps of somebody else's, so only letters are taken."""
  name = re.sub(r"[^A-Z0-9]+", "_", jax.tree_util.keystr(key).upper()).strip("_")
  return name if name[:1].isalpha() and name not in graph.constants else f"PARAM_{len(graph.constants)}_{name}"


def _traced(fitted: Fitted | Selection, dtype, num_classes: int | None) -> tuple[ClosedJaxpr, int | None]:
  """``apply`` for any number of rows, and for any number of classes from the least on or else, with None, for K."""
  sizes = sorted({size for x in jax.tree.leaves(fitted.params) for size in jnp.shape(x) if size > 1}, reverse=True)
  tries = [("rows, classes", n) for n in (2, *sizes[:1])] + [(f"rows, {n}", None) for n in sizes]
  num_classes = 2 if fitted.calibrator.records else num_classes
  traced, failure = [], None
  for text, least in tries if num_classes is None else [(f"rows, {num_classes}", None)]:
    shape = symbols.symbolic_shape(text, constraints=[f"classes >= {least}"] if least else [])
    try:
      columns = len(names(fitted.calibrator.options.get("columns", "")))
      arrays = [jax.ShapeDtypeStruct(x, dtype) for x in (shape, (shape[0], columns))[:1 + (columns > 0)]]
      traced.append((jax.make_jaxpr(fitted.calibrator.apply)(fitted.params, *arrays), least))
    except Exception as error:  # Whatever an apply raises of params and logits that do not fit.
      failure = error
    if least and traced:
      break
  if len(traced) != 1:
    raise ValueError(f"num_classes must be the number of classes of the fit: {fitted.calibrator!r} could not be "
                     f"applied to logits [..., {num_classes or 'K'}].") from failure
  return traced[0]
