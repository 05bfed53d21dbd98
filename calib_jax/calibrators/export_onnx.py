"""Writes a graph as a model of ONNX."""

from collections.abc import Sequence
import functools
import itertools
import json

import numpy as np

from calib_jax.calibrators.export_graph import OPERATIONS, Graph, Node, Value

OPSET, IR_VERSION = 18, 8  # Of 2022, when axes of all reductions became inputs.
SYMBOLS = {"rows": 0, "classes": 1}  # Axes of the logits.


def write(graph: Graph, described: str, version: str, classes: Sequence[str] | None, **texts: str) -> bytes:
  """The bytes of a model whose input is the graph's, and whose output is ``probs``."""
  try:
    from onnx import helper, numpy_helper
  except ImportError as error:
    raise ImportError("to write a model of ONNX, onnx must be installed: pip install 'calib-jax[onnx]'.") from error
  used, writer = graph.pruned(), _Writer(helper)
  for node in graph.nodes:
    writer.add(node)
  writer.node("Identity", graph.outputs[0].name, result="probs")
  arrays = {name: x for name, x in graph.constants.items() if name in used} | writer.arrays
  made = helper.make_graph(
    writer.nodes, "calibrator", [writer.info("logits", *graph.inputs)], [writer.info("probs", *graph.outputs)],
    [numpy_helper.from_array(x, name) for name, x in arrays.items()], described)
  model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION,
                            producer_name="calib_jax", producer_version=version)
  helper.set_model_props(model, {"classes": json.dumps(classes)} if classes else {})
  return model.SerializeToString()


class _Writer:
  """The nodes and the arrays of a model."""

  def __init__(self, helper):
    self.helper, self.nodes, self.arrays, self.count = helper, [], {}, itertools.count(1)

  def node(self, operator: str, *names: str, result: str = "", **attributes) -> str:
    """Adds an operator, and returns the name of its result."""
    result = result or f"t{next(self.count)}"
    self.nodes.append(self.helper.make_node(operator, names, [result], **attributes))
    return result

  def array(self, array, dtype=np.int64) -> str:
    """Adds an array, and returns its name."""
    self.arrays[name := f"a{next(self.count)}"] = np.asarray(array, dtype)
    return name

  def name(self, x: Value) -> str:
    """The name of a value of the graph, which a number gets here."""
    return x.name if x.number is None else self.array(x.number, x.dtype)

  def info(self, name: str, x: Value):
    """What a model says of an input or an output."""
    return self.helper.make_tensor_value_info(name, self.helper.np_dtype_to_tensor_dtype(x.dtype), [
      n if isinstance(n, int) else str(n) for n in x.shape])

  def sizes(self, shape: Sequence) -> str:
    """The name of an array of sizes."""
    parts = [self.array([n]) if isinstance(n, int) else self.node(
      "Shape", "logits", start=SYMBOLS[str(n)], end=SYMBOLS[str(n)] + 1) for n in shape]
    return self.node("Concat", *parts, axis=0)

  def add(self, node: Node) -> None:  # noqa: C901
    """Adds an operation of the graph."""
    x, attributes, result = [self.name(x) for x in node.operands], node.attributes, node.results[0].name
    add = functools.partial(self.node, OPERATIONS.get(node.operation, ("", ""))[1], *x, result=result)
    dtype, old = (node.operands[0].dtype, node.operands[0].shape) if x else (None, ())
    match node.operation:
      case "loop":
        self.loop(node, x)
      case "log1p":  # By Kahan, who corrects what rounding 1 + x does.
        one = self.array(1, dtype)
        total = self.node("Add", *x, one)
        ratio = self.node("Div", self.node("Mul", self.node("Log", total), *x), self.node("Sub", total, one))
        self.node("Where", self.node("Equal", total, one), *x, ratio, result=result)
      case "logistic":  # Sigmoid of ONNX Runtime is accurate to 1e-7, which is no digit of the smallest probabilities.
        total = self.node("Add", self.node("Exp", self.node("Neg", *x)), self.array(1, dtype))
        self.node("Reciprocal", total, result=result)
      case "nextafter":  # By Rump et al., "Computing predecessor and successor in rounding to nearest", 2009.
        finfo = np.finfo(dtype)
        step = self.node("Mul", self.node("Abs", x[0]), self.array(finfo.eps / 2 * (1 + finfo.eps), dtype))
        step = self.node("Max", step, self.array(finfo.smallest_subnormal, dtype))
        self.node("Add", x[0], self.node("Mul", self.node("Sign", self.node("Sub", x[1], x[0])), step), result=result)
      case "ne":
        self.node("Not", self.node("Equal", *x), result=result)
      case "is_finite":
        self.node("Less", self.node("Abs", *x), self.array(np.inf, dtype), result=result)
      case "cast":
        add(to=self.helper.np_dtype_to_tensor_dtype(attributes["to"]))
      case "reshape":  # 0 leaves a size as it is, and -1 stands for what remains.
        add(self.array([n if isinstance(n, int) else 0 if old[i:i + 1] == (n,) else -1
                        for i, n in enumerate(attributes["to"])]))
      case "expand":  # Its shape has 1 where a size stays.
        add(self.sizes([1 if old and old[i] == n else n for i, n in enumerate(attributes["to"])]))
      case "size":
        self.node("Reshape", self.sizes([attributes["of"]]), self.array([]), result=result)
      case "arange":
        self.node("Range", self.array(0), *x, self.array(1), result=result)
      case "transpose":
        add(perm=attributes["axes"])
      case "slice":
        parts = [(*part, i) for i, part in enumerate(attributes["parts"]) if isinstance(part[1], int)]
        starts, limits, steps, axes = zip(*parts, strict=True)
        add(*map(self.array, (starts, limits, axes, steps)))
      case "top_values" | "top_indices":
        names = [result if node.operation == name else f"t{next(self.count)}" for name in ("top_values", "top_indices")]
        self.nodes.append(self.helper.make_node("TopK", [*x, self.array([attributes["k"]])], names))
      case "reduce_sum" | "reduce_max" | "reduce_min":
        add(self.array(attributes["axes"]), keepdims=0)
      case "argmax" | "argmin":
        add(axis=attributes["axis"], keepdims=0)
      case _:
        add(**attributes)

  def loop(self, node: Node, start: list[str]) -> None:
    """Adds a loop; while its first value is true, if it has no length."""
    outer, self.nodes, body, length = self.nodes, [], node.body, node.attributes["length"]
    step, goes_on = (Value(f"t{next(self.count)}", (), np.dtype(dtype)) for dtype in (np.int64, bool))
    for inner in body.nodes:
      self.add(inner)
    values = [goes_on if length else body.outputs[0], *body.outputs]
    outputs = [self.info(self.node("Identity", self.name(x)), x) for x in values]
    inputs = [self.info(x.name, x) for x in (step, goes_on, *body.inputs)]
    repeated, self.nodes = self.helper.make_graph(self.nodes, "body", inputs, outputs), outer
    ends = [self.array(length), ""] if length else ["", start[0]]
    self.nodes.append(self.helper.make_node("Loop", [*ends, *start], [x.name for x in node.results], body=repeated))
