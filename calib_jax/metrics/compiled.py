"""Checks the arrays of a metric and runs its formula as one compiled program.

A metric checks its options and hands its arrays and its formula to ``of_pairs`` or ``of_classes``. The formula is a
function of its module, so that ``jax.jit`` compiles it once for each combination of options.
"""

from collections.abc import Callable
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np

from calib_jax import _checks as checks

Array = jax.Array


def of_pairs(formula: Callable[..., Any], scores: ArrayLike, values: ArrayLike, where: ArrayLike | None,
             weights: ArrayLike | None, *arrays: ArrayLike, names: tuple[str, str] = ("confidence", "correct"),
             high: float = 1.0, counts_credits: bool = False, **options: Any):
  """``formula(scores [N], values [N], counts [N], *arrays, **options)`` of checked arrays; ``names`` are for errors.

  Where ``names`` has ``correct``, its values are bools or credits; credits have weights as ``counts``, all 1 without
  any, if the formula ``counts_credits`` in another way than it counts correct examples.
  """
  scores, are_credits = checks.array(scores, names[0]), names[1] == "correct"
  weights, where = checks.weights_and_where(weights, where, scores)
  if are_credits:
    values = checks.credits(scores, values, where, names=names, high=high)
    if counts_credits and weights is None and values.dtype != bool:
      weights = np.ones(np.shape(scores), np.float32)
  else:
    values = checks.array(values, names[1])
    checks.pair_values(scores, values, where, names=names, high=high)
  return _of_pairs(formula, names, _static(options), scores, values, where, weights, *arrays)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _of_pairs(formula, names, options, scores, values, where, weights, *arrays):
  are_credits = names[1] == "correct" and values.dtype != bool
  scores, values, counts = checks.paired(scores, values, where, weights, names=names)
  result = formula(scores, values, counts, *arrays, **dict(options[0]))
  return _nan_where(jnp.any(checks.is_outside(values)), result) if are_credits else result


def _static(options: dict[str, Any]) -> tuple[tuple, tuple]:
  """Options by which a program is found, with their types: 1 and True are equal, and not alike."""
  return tuple(options.items()), tuple(map(type, options.values()))


def _nan_where(wrong: Array, result: Any) -> Any:
  """A result whose floats are NaN if something that could not be checked is ``wrong``."""
  return jax.tree.map(lambda x: jnp.where(wrong, jnp.nan, x) if jnp.issubdtype(x.dtype, jnp.floating) else x, result)


def of_classes(formula: Callable[..., Any], probs: ArrayLike, labels: ArrayLike, where: ArrayLike | None,
               weights: ArrayLike | None, *arrays: ArrayLike, rows: Callable[..., tuple] | None = None, **options: Any):
  """As ``of_pairs``, of what ``checks.classified`` returns; NaN where a traced label that counts is out of range.

  ``rows``, if the formula needs no more of a row than a few numbers, maps ``probs`` and ``labels`` to a tuple of
  ``[N]`` arrays, which the formula gets in their place.
  """
  probs, labels = checks.array(probs, "probs"), checks.array(labels, "labels")
  weights, where = checks.weights_and_where(weights, where, labels)
  if not checks.are_checked(probs, labels, where):
    return _of_classes(formula, rows, _static(options), None, probs, labels, where, weights, *arrays)
  if rows and type(probs) is np.ndarray and probs.size > PIECE and _is_plain(probs, labels):
    values, is_wrong = _in_pieces(rows, probs, np.asarray(labels), where)
    result = _of_values(formula, _static(options), labels.shape, values, where, weights, *arrays)
  else:
    own = probs, labels
    if type(probs) is type(labels) is np.ndarray and _is_plain(probs, labels):
      own = checks.on_device(probs), checks.on_device(_int32(labels))
    converted = checks.outputs_and_labels(*own, name="probs")
    result, is_wrong = _of_classes(formula, rows, _static(options), checks.sum_tolerance(probs), *converted,
                                   where, weights, *arrays)
  if is_wrong:
    checks.class_values(probs, labels, where)
  return result


def in_pieces(rows: Callable[..., tuple], probs: ArrayLike, labels: ArrayLike) -> tuple[Array, ...] | None:
  """What ``rows`` of ``of_classes`` returns of a large NumPy array, in the shape of the labels; None of another one."""
  if type(probs) is not np.ndarray or probs.size <= PIECE or not checks.are_checked(probs, labels):
    return None
  if not _is_plain(probs, labels):
    return None
  values, is_wrong = _in_pieces(rows, probs, np.asarray(labels), None)
  if is_wrong:
    checks.class_values(probs, labels)
  return tuple(jnp.asarray(x.reshape(labels.shape)) for x in values)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _of_classes(formula, rows, options, tolerance, probs, labels, where, weights, *arrays):  # noqa: PLR0917
  """The formula and, with a ``tolerance`` of sums, whether a row breaks a rule: one program, which reads once."""
  probs, labels, counts = checks.classified(probs, labels, where, weights)
  outside = jnp.any(checks.out_of_range(labels, probs.shape[1]))
  values = rows(checks.gathered(probs, -1), labels) if rows else (probs, labels)
  result = _nan_where(outside, formula(*values, counts, *arrays, **dict(options[0])))
  return result if tolerance is None else (result, jnp.any(checks.wrong_classes(probs, labels, tolerance)))


PIECE = 2**21  # Numbers of a NumPy array that are read at a time.


def _is_plain(probs: np.ndarray, labels: Any) -> bool:
  """Whether rows can be read in pieces; if not, the other way says why."""
  return (probs.dtype in (np.float32, np.float64) and labels.dtype.kind in "iu" and probs.shape[-1] > 1
          and labels.shape == probs.shape[:-1])


def _int32(labels: np.ndarray) -> np.ndarray:
  return labels.astype(np.int32) if np.can_cast(labels.dtype, np.int32) else checks.narrowed(labels)


def _in_pieces(rows: Callable[..., tuple], probs: np.ndarray, labels: np.ndarray, where: Array | None
               ) -> tuple[list[np.ndarray], bool]:
  """What ``rows`` returns of a NumPy array, and whether a row breaks a rule."""
  # XLA would copy the whole array, at 15 times the time of reading it: new memory is cleared page by page. A piece has
  # a place in the cache.
  tolerance, probs = checks.sum_tolerance(probs), probs.reshape(-1, probs.shape[-1])
  where = None if where is None else np.asarray(checks.mask(where, labels.shape)).reshape(-1)
  labels = _int32(labels.reshape(-1))
  count, step, values, is_wrong = len(probs), max(1, PIECE // probs.shape[1]), [], []
  for start in range(0, count, step):
    first = max(min(start, count - step), 0)  # All pieces have one size: the last begins within the one before.
    piece = slice(first, first + step)
    of_piece, wrong = _of_piece(rows, tolerance, probs[piece], labels[piece], None if where is None else where[piece])
    values.append([np.asarray(x)[start - first:] for x in of_piece])
    is_wrong.append(bool(wrong))
  return [np.concatenate(x) for x in zip(*values, strict=True)], any(is_wrong)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _of_piece(rows, tolerance, probs, labels, where):
  probs, labels, _ = checks.classified(probs, labels, where)
  return rows(probs, labels), jnp.any(checks.wrong_classes(probs, labels, tolerance))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _of_values(formula, options, shape, values, where, weights, *arrays):
  counted, = checks.masked(where, shape)
  counts = counted if weights is None else checks.counts(weights, counted, values[0].dtype)
  return formula(*values, counts, *arrays, **dict(options[0]))


def counted(counts: Array) -> dict[str, Array]:
  """The keyword argument by which a formula hands its ``counts`` on to a metric: ``where`` or ``weights``."""
  return {"where" if counts.dtype == bool else "weights": counts}
