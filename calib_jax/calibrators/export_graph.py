"""A function of JAX as a graph of a few operations, which NumPy and ONNX both have.

Each primitive of its jaxpr is translated once, here; ``export_numpy.py`` and ``export_onnx.py`` write operations down.
"""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import itertools
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Literal
import numpy as np

PREDICATES = ("lt", "le", "gt", "ge", "eq", "ne", "is_finite")
# What each operation is in NumPy, in braces its operands and attributes, and in ONNX, if it has an operator. These are
# on elements, broadcast and, but for two, are primitives by the same name.
ELEMENTWISE = {
  "add": ("{} + {}", "Add"), "sub": ("{} - {}", "Sub"), "mul": ("{} * {}", "Mul"), "div": ("{} / {}", "Div"),
  "floor_divide": ("{} // {}", "Div"), "pow": ("np.power({}, {})", "Pow"), "max": ("np.maximum({}, {})", "Max"),
  "min": ("np.minimum({}, {})", "Min"), "neg": ("np.negative({})", "Neg"), "abs": ("np.abs({})", "Abs"),
  "sign": ("np.sign({})", "Sign"), "exp": ("np.exp({})", "Exp"), "log": ("np.log({})", "Log"),
  "log1p": ("np.log1p({})", ""), "tanh": ("np.tanh({})", "Tanh"), "sqrt": ("np.sqrt({})", "Sqrt"),
  "logistic": ("np.reciprocal(1 + np.exp(np.negative({})))", ""), "nextafter": ("np.nextafter({}, {})", ""),
  "lt": ("{} < {}", "Less"), "le": ("{} <= {}", "LessOrEqual"), "gt": ("{} > {}", "Greater"),
  "ge": ("{} >= {}", "GreaterOrEqual"), "eq": ("{} == {}", "Equal"), "ne": ("{} != {}", ""),
  "is_finite": ("np.isfinite({})", ""), "and": ("{} & {}", "And"), "or": ("{} | {}", "Or"),
  "not": ("np.logical_not({})", "Not"), "where": ("np.where({}, {}, {})", "Where")}
OPERATIONS = ELEMENTWISE | {
  "cast": ("np.asarray({}, np.{to})", "Cast"), "reshape": ("np.reshape({}, {to})", "Reshape"),
  "expand": ("np.broadcast_to({}, {to})", "Expand"), "size": ("{of}", ""), "arange": ("np.arange({})", "Range"),
  "transpose": ("np.transpose({}, {axes})", "Transpose"), "reduce_sum": ("np.sum({}, axis={axes})", "ReduceSum"),
  "reduce_max": ("np.max({}, axis={axes})", "ReduceMax"), "reduce_min": ("np.min({}, axis={axes})", "ReduceMin"),
  "argmax": ("np.argmax({}, axis={axis})", "ArgMax"), "argmin": ("np.argmin({}, axis={axis})", "ArgMin"),
  "slice": ("{}[{parts}]", "Slice"), "concatenate": ("np.concatenate([{}], axis={axis})", "Concat"),
  "take": ("np.take({}, {}, axis={axis})", "Gather"), "matmul": ("np.matmul({}, {})", "MatMul"),
  "take_along": ("np.take_along_axis({}, {}, axis={axis})", "GatherElements"),
  "top_values": ("np.sort({})[..., ::-1][..., :{k}]", "TopK"),
  "top_indices": ("np.argsort(np.negative({}), kind='stable')[..., :{k}]", "TopK")}
# The total order, by which searchsorted compares, differs from the order of numbers for NaN alone, once -0 is 0.
RENAMED = {"lt_to": "lt", "le_to": "le"}


class Value(NamedTuple):
  """An array of the graph, or a number, which has no name."""

  name: str
  shape: tuple[Any, ...]  # As in the jaxpr, with 1 for sizes to which it is still to be broadcast; or empty.
  dtype: np.dtype
  number: Any = None


class Node(NamedTuple):
  """One operation; ``body`` is what a loop repeats."""

  operation: str
  operands: tuple[Value, ...]
  attributes: dict[str, Any]
  results: tuple[Value, ...]
  body: "Graph | None" = None


@dataclasses.dataclass
class Graph:
  """Operations in their order; ``seen`` has their results by what they do."""

  constants: dict[str, np.ndarray]
  count: Iterator[int] = dataclasses.field(default_factory=lambda: itertools.count(1))
  seen: dict[str, Any] = dataclasses.field(default_factory=dict)
  inputs: list[Value] = dataclasses.field(default_factory=list)
  nodes: list[Node] = dataclasses.field(default_factory=list)
  outputs: list[Value] = dataclasses.field(default_factory=list)

  def value(self, shape: Sequence[Any], dtype: Any) -> Value:
    """A new array."""
    return Value(f"v{next(self.count)}", tuple(shape), plain(dtype))

  def number(self, number: Any, dtype: Any) -> Value:
    """A number."""
    return Value("", (), plain(dtype), plain(dtype).type(number).item())

  def constant(self, name: str, array: Any) -> Value:
    """An array that the file holds."""
    self.constants[name] = array = np.asarray(array).astype(plain(array.dtype))
    return Value(name, array.shape, array.dtype)

  def add(self, operation: str, *operands: Value, shape: Sequence[Any], dtype: Any, **attributes: Any) -> Value:
    """The result of an operation, which is added unless it was before."""
    key = (operation, operands, repr(attributes))
    if key not in self.seen:
      self.seen[key] = self.value(shape, dtype)
      self.nodes.append(Node(operation, operands, attributes, (self.seen[key],)))
    return self.seen[key]

  def elementwise(self, operation: str, *operands: Value) -> Value:
    """The result of an operation on each element of operands that broadcast."""
    shapes = zip(*(operand.shape for operand in operands if operand.shape), strict=True)
    return self.add(operation, *operands, shape=[next((n for n in sizes if n != 1), 1) for sizes in shapes],
                    dtype=np.bool_ if operation in PREDICATES else operands[-1].dtype)

  def cast(self, x: Value, dtype: Any) -> Value:
    """``x`` of another dtype."""
    if x.number is not None or x.dtype == plain(dtype):
      return x if x.dtype == plain(dtype) else self.number(x.number, dtype)
    return self.add("cast", x, shape=x.shape, dtype=dtype, to=plain(dtype))

  def reshaped(self, x: Value, shape: Sequence[Any]) -> Value:
    """``x`` in another shape."""
    return x if x.shape == tuple(shape) else self.add("reshape", x, shape=shape, dtype=x.dtype, to=tuple(shape))

  def full(self, x: Value, shape: Sequence[Any]) -> Value:
    """``x``, broadcast to ``shape``."""
    return x if x.shape == tuple(shape) else self.add("expand", x, shape=shape, dtype=x.dtype, to=tuple(shape))

  def size(self, size: Any) -> Value:
    """A size as an integer."""
    return self.number(size, np.int64) if isinstance(size, int) else self.add(
      "size", shape=(), dtype=np.int64, of=str(size))

  def loop(self, start: Sequence[Value], length: int | None, step: Callable[..., Any]) -> list[Value]:
    """The last of what ``step(body, values)`` makes of values: ``length`` times, or None, while the first is true."""
    body = Graph(self.constants, self.count, dict(self.seen))
    body.inputs = [self.value(x.shape, x.dtype) for x in start]
    body.outputs = step(body, body.inputs)
    results = tuple(self.value(x.shape, x.dtype) for x in start)
    self.nodes.append(Node("loop", tuple(start), {"length": length}, results, body))
    return list(results)

  def pruned(self) -> set[str]:
    """Takes out what no output needs, and returns the names that are needed and not made here."""
    needed, nodes = {value.name for value in self.outputs}, []
    for node in reversed(self.nodes):
      if needed.intersection(value.name for value in node.results):
        needed |= {value.name for value in node.operands} | (node.body.pruned() if node.body else set())
        nodes.append(node)
    self.nodes = nodes[::-1]
    return needed - {value.name for node in nodes for value in node.results} - {value.name for value in self.inputs}


def plain(dtype: Any) -> np.dtype:
  """The dtype of the graph: bool, int64 of all integers, or the dtype of floating-point numbers."""
  return np.dtype(np.int64) if np.dtype(dtype).kind in "iu" else np.dtype(dtype)


def translate(closed: ClosedJaxpr, operands: Sequence[Value], graph: Graph) -> list[Value]:
  """Adds a jaxpr to the graph, and returns its outputs; a ValueError names a primitive that is not translated."""
  jaxpr = closed.jaxpr
  consts = [graph.constant(f"CONSTANT_{next(graph.count)}", x) for x in closed.consts]
  values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *operands), strict=True))

  def read(atom) -> Value:
    return graph.number(atom.val, atom.aval.dtype) if isinstance(atom, Literal) else values[atom]

  for eqn in jaxpr.eqns:
    results = _lazily(graph, eqn, *map(read, eqn.invars))
    if results is None:
      results = _in_full(graph, eqn, *(graph.full(read(atom), atom.aval.shape) for atom in eqn.invars))
    values.update(zip(eqn.outvars, results if isinstance(results, list) else [results], strict=True))
  return [graph.full(read(atom), atom.aval.shape) for atom in jaxpr.outvars]


def _lazily(graph: Graph, eqn, *arrays: Value) -> Value | list[Value] | None:
  """The translation of a primitive whose operands may still have to be broadcast; None for others."""
  name, params = RENAMED.get(eqn.primitive.name, eqn.primitive.name), eqn.params
  if name == "div" and eqn.outvars[0].aval.dtype.kind == "u":  # Of negative integers, JAX's quotient is no floor.
    name = "floor_divide"
  if name in ELEMENTWISE and not (name == "div" and arrays[0].dtype.kind == "i"):
    return graph.elementwise(name, *arrays)
  match name:
    case "jit" | "pjit" | "closed_call" | "custom_jvp_call" | "custom_vjp_call":
      return translate(params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"], arrays, graph)
    case "call_hi_primitive":  # In JAX 0.12, searchsorted is one operation, which says what others it is made of.
      avals = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in eqn.invars]
      return translate(jax.make_jaxpr(params["_prim"].expand)(*avals), arrays, graph)
    case "stop_gradient" | "copy" | "copy_p" | "optimization_barrier":
      return list(arrays)
    case "convert_element_type":
      return graph.cast(arrays[0], params["new_dtype"])
    case "broadcast_in_dim":
      sizes = dict(zip(map(int, params["broadcast_dimensions"]), arrays[0].shape, strict=False))
      return graph.reshaped(arrays[0], [sizes.get(i, 1) for i in range(len(params["shape"]))] if sizes else ())
    case "select_n" if len(arrays) == 3:
      return graph.elementwise("where", arrays[0], arrays[2], arrays[1])
    case "integer_pow" if params["y"] > 0:
      return graph.elementwise("pow", arrays[0], graph.number(params["y"], arrays[0].dtype))
    case "iota":
      shape, axis = params["shape"], params["dimension"]
      numbers = graph.add("arange", graph.size(shape[axis]), shape=(shape[axis],), dtype=np.int64)
      return graph.cast(graph.reshaped(numbers, [n if i == axis else 1 for i, n in enumerate(shape)]), params["dtype"])
    case "dim_as_value":
      return graph.size(params["dim"])
  return None


def _in_full(graph: Graph, eqn, *arrays: Value) -> Value | list[Value]:  # noqa: C901
  """The translation of a primitive whose operands have the shapes that the jaxpr says."""
  name, params, avals = eqn.primitive.name, eqn.params, [var.aval for var in eqn.outvars]

  def add(operation, *operands, result=0, **attributes):
    return graph.add(operation, *operands, shape=avals[result].shape, dtype=avals[result].dtype, **attributes)

  match name:
    case "reduce_sum" | "reduce_max" | "reduce_min":
      return add(name, *arrays, axes=tuple(map(int, params["axes"])))
    case "argmax" | "argmin":
      return add(name, *arrays, axis=params["axes"][0])
    case "transpose":
      return add(name, *arrays, axes=tuple(map(int, params["permutation"])))
    case "squeeze" | "reshape":
      return graph.reshaped(arrays[0], avals[0].shape)
    case "slice":
      steps = params["strides"] or [1] * len(arrays[0].shape)
      return add(name, *arrays, parts=list(zip(params["start_indices"], params["limit_indices"], steps, strict=True)))
    case "stack" | "concatenate":
      axis = params["axis"] if name == "stack" else params["dimension"]
      if name == "stack":
        arrays = [graph.reshaped(x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in arrays]
      return add("concatenate", *arrays, axis=axis)
    case "pad" if not any(map(any, params["padding_config"])):
      return arrays[0]
    case "top_k" if params.get("axis", len(avals[0].shape) - 1) == len(avals[0].shape) - 1:
      return [add("top_values", *arrays, k=params["k"]), add("top_indices", *arrays, result=1, k=params["k"])]
    case "dot_general" if params["dimension_numbers"] == (((1,), (0,)), ((), ())):
      return add("matmul", *arrays)
    case "gather":
      return _gather(graph, eqn, *arrays)
    # A scan whose steps read and write nothing but what they carry, so that no shape changes, is a loop.
    case "scan" if [x.shape for x in (*arrays, *avals)] == [
        aval.shape for aval in (*params["jaxpr"].in_avals, *params["jaxpr"].out_avals)]:
      consts = arrays[:len(arrays) - len(avals)]
      return graph.loop(arrays[len(consts):], params["length"], lambda body, carry: translate(
        params["jaxpr"], (*consts, *carry), body))
    case "while":
      ends = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]

      def goes_on(graph, carry):
        return [*translate(params["cond_jaxpr"], (*arrays[:ends[0]], *carry), graph), *carry]

      return graph.loop(goes_on(graph, arrays[ends[1]:]), None, lambda body, carry: goes_on(body, translate(
        params["body_jaxpr"], (*arrays[ends[0]:ends[1]], *carry[1:]), body)))[1:]
  raise _unsupported(eqn)


def _unsupported(eqn) -> ValueError:
  return ValueError(f"the calibrator uses JAX's operation {eqn.primitive.name} in a way that cannot be exported: "
                    "jax.export can serialize it.")


def _gather(graph: Graph, eqn, x: Value, indices: Value) -> Value:
  """What follows one index of an axis, or an element at an index of the last axis for each place of the others."""
  numbers, mode, shape = eqn.params["dimension_numbers"], eqn.params["mode"].name, x.shape
  axis, others = int(numbers.start_index_map[0]), tuple(range(len(shape) - 1))
  batch = {tuple(map(int, axes)) for axes in (numbers.operand_batching_dims, numbers.start_indices_batching_dims)}
  along = batch == {others} and axis == len(others) and len(indices.shape) == len(shape) + 1
  count = eqn.params["slice_sizes"][axis]
  sizes = tuple(count if i == axis else 1 if along else n for i, n in enumerate(shape))
  if mode not in ("CLIP", "PROMISE_IN_BOUNDS") or eqn.params["slice_sizes"] != sizes or not (
      indices.shape[-1] == count == 1 if along else batch == {()} and indices.shape == (1,)):
    raise _unsupported(eqn)
  indices = graph.reshaped(indices, indices.shape[:-1])
  if mode == "CLIP":
    indices = graph.elementwise("min", indices, graph.size(shape[axis] - count))
    indices = graph.elementwise("max", indices, graph.size(0))
  if count != 1:
    following = graph.add("arange", graph.size(count), shape=(count,), dtype=np.int64)
    indices = graph.elementwise("add", indices, following)
  taken = graph.add("take_along" if along else "take", x, indices, dtype=x.dtype, axis=axis,
                    shape=indices.shape if along else (*shape[:axis], *indices.shape, *shape[axis + 1:]))
  return graph.reshaped(taken, eqn.outvars[0].aval.shape)
