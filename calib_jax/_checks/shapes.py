"""Dtypes, shapes and shardings of arrays that a caller passes; nothing here reads a value."""

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
# Calibrators take a logit 1e4 below its row's largest, or lower, for a class that the row does not have. The
# hundredth is for rounding.
ABSENT = -1e4 + 1e-2


def array(x, name: str) -> Array | np.ndarray | None:
  """What a caller passed, as an array; what holds anything but numbers or bools is a TypeError."""
  if x is None or isinstance(x, jax.Array):
    return x
  try:
    x = np.asarray(x)
  except jax.errors.TracerArrayConversionError:  # A list of traced numbers.
    return jnp.asarray(x)
  if x.dtype.kind in "OSUMm":
    hint = " classes, labels = np.unique(labels, return_inverse=True) numbers them." if name == "labels" else ""
    raise TypeError(f"{name} must be an array of numbers or bools: got dtype {x.dtype}.{hint}")
  return x


def floating(x, name: str) -> Array:
  """``x`` as an array of float32 or wider; a TypeError unless it is floating point."""
  x = x if isinstance(x, jax.Array) else array(x, name)
  if isinstance(x, np.ndarray) and x.dtype == np.float16:
    x = x.astype(np.float32)  # XLA cannot do it on processors without an instruction for it, with SSE4.2 for instance.
  x = jnp.asarray(x)
  if not jnp.issubdtype(x.dtype, jnp.floating):
    raise TypeError(f"{name} must be floating point: got dtype {x.dtype}.")
  return x if x.dtype.itemsize >= 4 else x.astype(jnp.float32)


def over_classes(x, name: str) -> Array:
  """``x`` ``[..., K]`` as ``floating`` returns it; a ValueError unless K is at least 2."""
  x = floating(x, name)
  if x.ndim < 1 or x.shape[-1] < 2:
    raise _too_few_classes(x, name)
  return x


def _too_few_classes(x: Array, name: str) -> ValueError:
  binary = _binary(f"{name}[..., 0]") if x.shape[-1:] == (1,) else ""
  return ValueError(f"{name} must have at least 2 classes on the last axis: got shape {x.shape}.{binary}")


def _binary(name: str) -> str:
  """What to write in place of outputs for binary labels, which have no axis of classes."""
  if name.startswith("probs"):
    return (f" Probabilities of binary labels become [..., 2] by jnp.stack([1 - {name}, {name}], axis=-1), and their "
            "logits by jax.nn.softmax(losses.two_class(logits)).")
  return f" Logits of binary labels become [..., 2] by losses.two_class({name})."


def outputs_and_labels(outputs, labels, *, name: str = "logits", soft: bool = False) -> tuple[Array, Array]:
  """``outputs`` ``[..., K]`` and their ``labels``: ints ``[...]`` or, where ``soft``, also floats ``[..., K]``."""
  outputs, labels = floating(outputs, name), labels if isinstance(labels, jax.Array) else array(labels, "labels")
  if outputs.ndim < 1 or outputs.shape[-1] < 2:
    raise _too_few_classes(outputs, name)
  is_wide = labels.dtype.kind in "iu" and not np.can_cast(labels.dtype, np.int32)
  labels = jnp.asarray(narrowed(labels) if is_wide else labels)
  are_floats = jnp.issubdtype(labels.dtype, jnp.floating)
  soft = soft and are_floats
  binary = _binary(name) if labels.shape == outputs.shape else ""
  if binary and outputs.ndim > 1:
    distributions = " Some losses take distributions over the classes, and say so."
    binary = f" labels.argmax(-1) makes integers of one-hot labels.{distributions if are_floats else binary}"
  if not soft and not jnp.issubdtype(labels.dtype, jnp.integer):
    way = "" if binary else ", which labels.astype(int) makes of whole numbers"
    raise TypeError(f"labels must be integers in [0, {outputs.shape[-1]}){way}: got dtype {labels.dtype}.{binary}")
  if labels.shape != (outputs.shape if soft else outputs.shape[:-1]):
    kind, axes = ("labels", " without its last axis") if not soft else (
      "float labels", ", and labels.astype(int) makes integers of whole numbers" if labels.ndim < outputs.ndim else "")
    raise ValueError(f"{kind} must have the shape of {name}{axes}: "
                     f"got {name} {outputs.shape} and labels {labels.shape}.{binary}")
  return outputs, aligned(labels, outputs).astype(outputs.dtype if soft else jnp.int32)


def on_device(x: np.ndarray) -> Array:
  """A NumPy array as a JAX array of its own, outside of a trace; its shape is compiled nowhere."""
  # ``jnp.asarray`` compiles a program for each shape, and takes twice the time. But where memory is aligned as XLA's,
  # ``jax.device_put`` shares it, and what the caller writes there later would be in the JAX array too.
  return jax.device_put(x.copy() if x.__array_interface__["data"][0] % 64 == 0 else x)


def narrowed(labels: Array | np.ndarray) -> Array | np.ndarray:
  """Wider integers as int32, which become -1 where it does not hold them: their lowest 32 bits might be a class."""
  bounds = jnp.iinfo(jnp.int32)
  low, high = (0 if labels.dtype.kind == "u" else bounds.min), bounds.max
  where = jnp.where if isinstance(labels, jax.Array) else np.where
  return where((labels < low) | (labels > high), np.int32(-1), labels.astype(np.int32))


def out_of_range(labels: Array, num_classes: int) -> Array:
  """Which of the integer ``labels`` are no class: bools ``[...]``."""
  return (labels < 0) | (labels >= num_classes)


def is_traced(*arrays) -> bool:
  """Whether any of the arrays is traced, so that its values cannot be read."""
  traced = False
  for x in arrays:
    traced |= isinstance(x, jax.core.Tracer)
  return traced


def is_readable(*arrays) -> bool:
  """Whether the values of all arrays can be read: none is traced, nor spread over several processes."""
  for x in arrays:
    if isinstance(x, jax.core.Tracer) or (isinstance(x, jax.Array) and not x.is_fully_addressable):
      return False
  return True


def rank(x: Array, ndim: int, name: str, layout: str) -> None:
  """Raises a ValueError unless ``x`` has ``ndim`` axes; ``layout`` says which, as in ``"[N, K]"``."""
  if x.ndim != ndim:
    raise ValueError(f"{name} must have shape {layout}: got shape {x.shape}.")


def mask(where, shape: tuple[int, ...]) -> Array | np.ndarray | None:
  """``where`` as a bool array of ``shape``, or None; one of NumPy stays so, as JAX compiles for each new shape."""
  where = array(where, "where")
  if where is None:
    return None
  if where.dtype != jnp.bool_:
    raise TypeError(f"where must be boolean: got dtype {where.dtype}.")
  if where.shape != shape:
    raise ValueError(f"where must have shape {shape}, one value per example: got shape {where.shape}.")
  return where


def same_shape(a: Array, b: Array, names: tuple[str, str]) -> None:
  """Raises a ValueError unless ``b`` has the shape of ``a``; the message names the arguments by ``names``."""
  if b.shape != a.shape:
    raise ValueError(f"{names[1]} must have the shape of {names[0]}: got {names[0]} {a.shape} and {names[1]} "
                     f"{b.shape}.")


def gathered(x: Array, first: int = 0) -> Array:
  """``x``, whose axes from ``first`` on are copied to all devices if they are sharded over Explicit axes."""
  # Sorts and bins need all rows, and with Explicit axes JAX does not gather them by itself.
  sharding = jax.typeof(x).sharding
  return _resharded(x, sharding.mesh, sharding.spec[:first]) if any(sharding.spec[first:]) else x


def aligned(x: Array, like: Array) -> Array:
  """``x`` ``[...]``, sharded as ``like`` ``[..., K]`` is, because JAX selects only among arrays sharded alike."""
  sharding, target = jax.typeof(x).sharding, jax.typeof(like).sharding
  spec = tuple(target.spec)[:x.ndim]
  if tuple(sharding.spec) == spec or (sharding.mesh.empty and jax.sharding.get_abstract_mesh().empty):
    return x
  return _resharded(x, sharding.mesh if target.mesh.empty else target.mesh, spec)


def _resharded(x: Array, mesh, spec) -> Array:
  # The array's own mesh is named, because a PartitionSpec alone belongs to no mesh outside ``jax.set_mesh``.
  return jax.sharding.reshard(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec)))


def mapped_axis(axis_name) -> None:
  """Raises a ValueError unless ``axis_name`` is a mapped axis of the program that is traced."""
  try:
    jax.lax.axis_size(axis_name)
  except NameError:
    raise ValueError(f"axis_name={axis_name!r} is no mapped axis here: call the loss within jax.pmap, jax.shard_map or "
                     "jax.vmap over an axis of that name, or leave axis_name out.") from None


def one_value_each(name: str, values: Array, count: int) -> Array:
  """The ``values`` that a function returned; a ValueError unless they are one per example, ``[N]``."""
  if values.shape != (count,):
    raise ValueError(f"{name} must return one value per example, shape ({count},): it returned shape {values.shape}.")
  return values
