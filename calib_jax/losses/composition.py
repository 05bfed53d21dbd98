"""A primary and a secondary loss as one training loss."""

from collections.abc import Callable, Iterable
import inspect

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax.losses.catalogue import get
from calib_jax.losses.reductions import global_sum, weighted

Array = jax.Array


def composite(primary: str | Callable[..., Array], secondary: str | Callable[..., Array] | None = None,
              weight: float | Array = 1.0, *, reduction: str = "mean") -> Callable[..., tuple[Array, dict[str, Array]]]:
  """``mean(primary) + weight * secondary``, the training loss of Karandikar et al. 2021, Section 5.1.

  It trains accuracy and calibration together, in one step.

  Args:
    primary: a loss per example, by name or as a function ``(logits, labels) -> [N]``; or a loss per batch, such as
      ``"selective_risk"``.
    secondary: optional loss per batch, by name or as a function ``(logits, labels, *, where, axis_name) -> scalar``;
      to be called with weights, a function must take ``weights`` too.
    weight: β, the factor of the secondary loss.
    reduction: ``"mean"`` over the rows of the global batch that count, or ``"sum"``, which is the mean times the number
      of these rows, or the sum of their weights. It applies to the primary loss alone; the value of a loss per batch is
      taken as the mean.

  Returns:
    A function ``(logits, labels, *, where=None, weights=None, axis_name=None)`` to the loss and a dict of its parts,
    ``primary`` (reduced) and ``secondary``, without the factor β. Logits are ``[..., K]``; labels, ``where`` and
    ``weights`` have their leading axes, which are one batch of N rows. ``weights`` are at least 0, and an integer
    weight w equals w copies of the row, in both losses; class weights are ``class_weights[labels]``.

  Raises:
    ValueError: for an unknown name or reduction, for a secondary loss without ``where`` and ``axis_name``, and, when
      the returned function is called, for a loss whose value has the wrong shape or that takes no weights.
    TypeError: for a loss that is neither a name nor a function.

  >>> loss, parts = composite("cross_entropy", "soft_avuc", 0.5)(jnp.array([[1.0, 0.0]]), jnp.array([0]))
  >>> bool(loss == parts["primary"] + 0.5 * parts["secondary"])
  True
  """
  checks.options(weight=(weight, "(-inf, inf)"), reduction=(reduction, ("mean", "sum")))
  primary, secondary = _loss("primary", primary), None if secondary is None else _loss("secondary", secondary)
  if secondary is not None and (missing := _lacks(secondary)):
    raise ValueError("secondary must be a loss per batch, which takes where and axis_name: "
                     f"got one without {' and '.join(missing)}; a loss per example can only be the primary.")
  whole_batch = not _lacks(primary)

  def loss(logits: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = None,
           weights: ArrayLike | None = None, axis_name: str | None = None) -> tuple[Array, dict[str, Array]]:
    logits, labels, weights = checks.batch(logits, labels, where, weights, axis_name=axis_name, soft=True)
    keywords = {"where": weights, "axis_name": axis_name}
    if weights.dtype != jnp.bool_:  # The rows that are ignored are zeros now, and weigh 0.
      keywords |= {"where": jnp.ones_like(weights, bool), "weights": weights}
    weights = weights.astype(logits.dtype)
    if whole_batch:
      mean, count = _of_batch("primary", primary, logits, labels, keywords), global_sum(weights, axis_name)
    else:
      values = checks.one_value_each("primary", primary(logits, labels), len(logits))
      total, count = global_sum(jnp.stack([weighted(weights, values), weights], axis=-1), axis_name)
      mean = total / jnp.where(count == 0, 1, count)
    parts = {"primary": mean * count if reduction == "sum" else mean, "secondary": jnp.zeros((), logits.dtype)}
    if secondary is not None:
      parts["secondary"] = _of_batch("secondary", secondary, logits, labels, keywords)
    return parts["primary"] + weight * parts["secondary"], parts

  loss.__qualname__ = (f"composite({_name(primary)}{'' if secondary is None else f', {_name(secondary)}'}, "
                       f"weight={weight!r}, reduction={reduction!r})")
  return loss


def _name(loss: Callable) -> str:
  """What a repr calls a loss, with the options that are bound."""
  options = ", ".join(f"{name}={value!r}" for name, value in getattr(loss, "keywords", {}).items())
  own = getattr(getattr(loss, "func", loss), "__name__", type(loss).__name__)
  return f"{own}({options})" if options else own


def _loss(argument: str, loss) -> Callable[..., Array]:
  if not isinstance(loss, str) and not callable(loss):
    raise TypeError(f"{argument} must be one loss, by name or as a function: got {loss!r}.")
  return get(loss) if isinstance(loss, str) else loss


def _lacks(loss: Callable, arguments: Iterable[str] = ("where", "axis_name")) -> list[str]:
  """The ``arguments`` of a loss per batch that ``loss`` does not take."""
  parameters = inspect.signature(loss).parameters
  if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
    return []
  return [name for name in arguments if name not in parameters]


def _of_batch(argument: str, loss: Callable[..., Array], logits: Array, labels: Array, keywords: dict) -> Array:
  """The value of a loss per batch."""
  if _lacks(loss, keywords):
    raise ValueError(f"{argument} takes no weights: a loss of your own needs the keyword weights, [N] floats or None.")
  value = loss(logits, labels, **keywords)
  if value.shape:
    raise ValueError(f"{argument} must return a scalar, as it takes a whole batch: it returned shape {value.shape}.")
  return value
