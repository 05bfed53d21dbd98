"""Losses by name, and a primary and a secondary loss as one."""

from collections.abc import Callable, Mapping
import functools
import inspect

import jax
import jax.numpy as jnp

from calib_jax import checks
from calib_jax.losses.adaptive_focal import adaptive_focal
from calib_jax.losses.focal import dual_focal, focal, inverse_focal, properized_focal, sample_dependent_focal
from calib_jax.losses.kernels import kde_ece, mmce
from calib_jax.losses.margins import (
  adaptive_conditional_label_smoothing,
  margin_label_smoothing,
  pairwise_constraints,
  square,
)
from calib_jax.losses.proper import brier, cross_entropy
from calib_jax.losses.reductions import global_sum
from calib_jax.losses.selective import aurc, selective_risk
from calib_jax.losses.soft_binned import soft_binned_ece, soft_binned_marginal_ece
from calib_jax.losses.uncertainty import avuc, soft_avuc

Array = jax.Array

PER_EXAMPLE: Mapping[str, Callable[..., Array]] = {f.__name__: f for f in (
  cross_entropy, brier, square, focal, sample_dependent_focal, inverse_focal, dual_focal, adaptive_focal,
  properized_focal, margin_label_smoothing, adaptive_conditional_label_smoothing, pairwise_constraints)}
PER_BATCH: Mapping[str, Callable[..., Array]] = {f.__name__: f for f in (
  soft_binned_ece, soft_binned_marginal_ece, avuc, soft_avuc, mmce, kde_ece, aurc, selective_risk)}


def per_example(name: str) -> Callable[..., Array]:
  """The per-example loss called ``name``."""
  checks.choice("loss", name, PER_EXAMPLE)
  return PER_EXAMPLE[name]


def get(name: str, **options) -> Callable[..., Array]:
  """The loss called ``name`` with ``options`` bound. ValueError for an unknown name, TypeError for an unknown option.

  >>> get("focal", gamma=0.0)(jnp.array([[0.0, 0.0]]), jnp.array([0])).round(4)
  Array([0.6931], dtype=float32)
  """
  known = {**PER_EXAMPLE, **PER_BATCH}
  checks.choice("loss name", name, known)
  accepted = [p for p in inspect.signature(known[name]).parameters if p not in ("logits", "labels")]
  for option in options:
    if option not in accepted:
      raise TypeError(f"{name} has no option {option!r}; it has {', '.join(accepted) or 'none'}.")
  return functools.partial(known[name], **options)


def composite(primary: str | Callable, secondary: str | Callable | None = None, weight: float = 1.0) -> Callable:
  """``mean(primary) + weight * secondary``, the training loss of Karandikar et al. 2021, Section 5.1.

  Args:
    primary: a loss per example, by name or as a function ``(logits, labels) -> [N]``.
    secondary: optional loss per batch, by name or as a function ``(logits, labels, *, where, axis_name) -> scalar``.
    weight: β.
  Returns: a function ``(logits, labels, *, where=None, axis_name=None)`` to the loss and a dict of its two parts,
    ``primary`` and ``secondary``, unweighted. The mean is over the rows of the global batch that count.

  >>> loss, parts = composite("cross_entropy", "soft_avuc", 0.5)(jnp.array([[1.0, 0.0]]), jnp.array([0]))
  >>> bool(loss == parts["primary"] + 0.5 * parts["secondary"])
  True
  """
  checks.number("weight", weight)
  primary = get(primary) if isinstance(primary, str) else primary
  secondary = get(secondary) if isinstance(secondary, str) else secondary

  def loss(logits, labels, *, where=None, axis_name: str | None = None) -> tuple[Array, dict[str, Array]]:
    logits, labels = checks.scores_and_labels(logits, labels, soft=True)
    where = checks.mask(where, logits.shape[:-1])
    if where is not None:
      logits = jnp.where(where[:, None], logits, 0)
      labels = jnp.where(where[:, None] if labels.ndim > where.ndim else where, labels, 0)
    counts = jnp.ones(logits.shape[0], logits.dtype) if where is None else where.astype(logits.dtype)
    total, count = global_sum(jnp.stack([primary(logits, labels) * counts, counts], axis=-1), axis_name)
    parts = {"primary": total / jnp.maximum(count, 1), "secondary": jnp.zeros((), logits.dtype)}
    if secondary is not None:
      parts["secondary"] = secondary(logits, labels, where=where, axis_name=axis_name)
    return parts["primary"] + weight * parts["secondary"], parts

  return loss
