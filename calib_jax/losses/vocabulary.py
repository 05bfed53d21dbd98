"""Losses from features and a last layer, for so many classes that the logits would not fit in memory."""

from collections.abc import Callable
import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax._checks.arguments import real_weights
from calib_jax._numerics import vocabulary
from calib_jax._numerics.softmax import map_chunks
from calib_jax._numerics.vocabulary import ENTROPY, SQUARES, Rows
from calib_jax.losses import soft_binned, uncertainty
from calib_jax.losses.adaptive_focal import adaptive_focal
from calib_jax.losses.catalogue import get, options
from calib_jax.losses.focal import focal, inverse_focal, sample_dependent_focal
from calib_jax.losses.proper import brier, cross_entropy

Array = jax.Array
Loss = str | Callable[..., Array]


def from_features(loss: Loss | tuple[Loss, ...], features: ArrayLike, kernel: ArrayLike, labels: ArrayLike, *,
                  bias: ArrayLike | None = None, chunk: int = 4096, where: ArrayLike | None = None,
                  weights: ArrayLike | None = None, axis_name: str | None = None) -> Array | tuple[Array, ...]:
  """A loss of the logits ``features @ kernel + bias``, of which only ``N * chunk`` are in memory at a time.

  The value and the gradients in features, kernel and bias are those of the loss of the dense logits. Cross entropy, the
  focal losses of the label's probability, the Brier score, SB-ECE, AvUC and S-AvUC are computed from sums over the
  classes, for ``chunk`` of them at a time, and the gradient computes the logits a second time. All other losses per
  example, also those of your own, are computed for ``N * chunk / K`` rows at a time and all classes: as many logits, of
  which they may need several copies, in about twice the time.

  Args:
    loss: a loss by name or as a function of logits and labels; ``losses.get("focal", gamma=3.0)`` has options. A tuple
      of losses computes their values in one pass over the classes.
    features: ``[..., D]`` floats; N is the product of the leading axes.
    kernel: ``[D, K]`` floats, the last layer. Where both are of 16 bits, logits are float32 all the same. Products have
      JAX's default precision, as those of a network's layers: tf32 on GPUs, with relative errors of 1e-3, unless
      ``jax.default_matmul_precision("highest")`` is set.
    labels: ``[...]`` integers in ``[0, K)``.
    bias: optional ``[K]`` floats.
    chunk: the number of classes, at least 2.
    where: optional ``[...]`` bools; rows that are False are ignored and may hold NaN.
    weights: optional ``[...]`` example weights of losses per batch, at least 0; an integer weight w equals w copies
      of the row.
    axis_name: optional mapped axis of losses per batch, for the value of the global batch across it.

  Returns:
    ``[...]`` values of a loss per example, 0 where ``where`` is False, or the scalar of a loss per batch; a tuple of
    them for a tuple of losses. O(NDK) time: 4/3 of the products that dense logits and their gradient take.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range, and for losses per batch other than
      these three, which need the dense logits.

  >>> features, kernel, labels = jnp.ones((2, 3)), jnp.arange(15.0).reshape(3, 5), jnp.array([4, 0])
  >>> from_features("focal", features, kernel, labels, chunk=2).round(2)
  Array([ 0.  , 12.05], dtype=float32)
  >>> bool(jnp.allclose(focal(features @ kernel, labels), from_features("focal", features, kernel, labels, chunk=2)))
  True
  """
  shape, passed = jnp.shape(labels), where
  features, kernel, bias, labels, where, outside = checks.layer(features, kernel, bias, labels, where, chunk)
  parts = [_parts(each) for each in (loss if isinstance(loss, tuple) else (loss,))]
  if any(is_batch for *_, is_batch in parts):
    features = jnp.where(outside[:, None], jnp.nan, features)  # One row makes the value of the batch NaN.
    weights = None if weights is None else real_weights(weights, passed, shape)
    if axis_name is not None:
      checks.mapped_axis(axis_name)
  elif weights is not None or axis_name is not None:
    raise ValueError("weights and axis_name are for losses per batch: the values of a loss per example need neither.")
  sums = tuple(sorted({name for needed, *_ in parts for name in needed or ()}))
  rows = None
  if any(needed is not None for needed, *_ in parts):
    rows = vocabulary.row_sums(features, kernel, bias, labels, chunk, sums)

  def value(needed, function, is_batch):
    if is_batch:
      return function(rows, labels, checks.counts(weights, where, rows.top_logit.dtype), axis_name)
    if needed is None:
      values = _in_blocks(function, features, kernel, bias, labels, max(1, len(labels) * chunk // kernel.shape[1]))
    else:
      values = function(rows, labels)
    return jnp.where(where, jnp.where(outside, jnp.nan, values), 0).reshape(shape)

  values = tuple(value(*each) for each in parts)
  return values if isinstance(loss, tuple) else values[0]


def _parts(loss: Loss) -> tuple[tuple[str, ...] | None, Callable[..., Array], bool]:
  """The sums over classes that a loss needs, None for all logits; how it follows; whether it is of a batch."""
  function, bound = get(loss) if isinstance(loss, str) else loss, {}
  while isinstance(function, functools.partial) and not function.args:
    function, bound = function.func, {**function.keywords, **bound}
  if function in OF_LABEL and "label_smoothing" not in bound:
    return (), lambda rows, labels: _of_two_classes(function, rows, labels, bound), False
  if function is brier:
    return SQUARES, _brier, False
  if function in OF_BATCH:
    needed, of_rows = OF_BATCH[function]
    return needed, functools.partial(of_rows, **{**options(function.__name__), **bound}), True
  if "axis_name" in inspect.signature(function).parameters:
    name, known = getattr(function, "__name__", "this loss"), ", ".join(batch.__name__ for batch in OF_BATCH)
    raise ValueError(f"{name} needs the logits of all rows and classes: call it with features @ kernel + bias. Of "
                     f"losses per batch, {known} can be computed from features; the two of a composite are a tuple.")
  return None, functools.partial(function, **bound), False


# Losses of the label's probability alone.
OF_LABEL = (cross_entropy, focal, inverse_focal, sample_dependent_focal, adaptive_focal)


def _of_two_classes(loss: Callable, rows: Rows, labels: Array, bound: dict) -> Array:
  """A loss of the label's probability, which is the same where all other classes are one."""
  odds = vocabulary.label_odds(rows, labels)
  return loss(jnp.stack([jnp.zeros_like(odds), odds], axis=-1), jnp.zeros_like(labels), **bound)


def _brier(rows: Rows, labels: Array) -> Array:
  return jax.nn.sigmoid(vocabulary.label_odds(rows, labels)) ** 2 + vocabulary.other_squares(rows, labels)


def _soft_binned_ece(rows: Rows, labels: Array, weights: Array, axis_name: str | None, **bound) -> Array:
  return soft_binned.top_label_error(vocabulary.top_odds(rows), _correct(rows, labels), weights, axis_name, **bound)


def _avuc(rows: Rows, labels: Array, weights: Array, axis_name: str | None, **bound) -> Array:
  entropy, _ = vocabulary.entropy_and_divergence(rows)
  odds = vocabulary.top_odds(rows)
  return uncertainty.hard_loss(odds, _correct(rows, labels), entropy, weights, axis_name, **bound)


def _soft_avuc(rows: Rows, labels: Array, weights: Array, axis_name: str | None, **bound) -> Array:
  measures = vocabulary.entropy_and_divergence(rows)
  return uncertainty.soft_loss(_correct(rows, labels), *measures, weights, axis_name, **bound)


def _correct(rows: Rows, labels: Array) -> Array:
  return (rows.top == labels).astype(rows.top_logit.dtype)


OF_BATCH: dict[str, Any] = {
  soft_binned.soft_binned_ece: ((), _soft_binned_ece),
  uncertainty.avuc: (ENTROPY, _avuc),
  uncertainty.soft_avuc: (ENTROPY, _soft_avuc),
}


def _in_blocks(loss: Callable, features: Array, kernel: Array, bias: Array | None, labels: Array, at_once: int
               ) -> Array:
  """Any loss per example, of the logits of all classes for ``at_once`` rows at a time."""
  def of_rows(features, labels):
    return checks.one_value_each("loss", loss(vocabulary.logits_of(features, kernel, bias), labels), len(labels))

  if len(labels) <= at_once:
    return of_rows(features, labels)
  one = jax.checkpoint(lambda row: of_rows(row[0][None], row[1][None])[0])
  return map_chunks(one, (features, labels), at_once)
