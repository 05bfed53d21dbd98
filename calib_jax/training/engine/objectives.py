"""The objective is the loss that a phase minimises; the ``loss`` section of its config defines it."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections

from calib_jax import losses
from calib_jax.training.loss_state import split_options

# The losses per example that take distributions as labels themselves.
SOFT = ("cross_entropy", "focal", "brier")


def objective(loss: ml_collections.ConfigDict, parts: tuple[str, ...] = ("primary", "secondary")) -> Callable[..., Any]:
  """Returns the objective ``primary + weight * secondary``, or only one of its two terms; see ``losses.composite``.

  With ``loss.reduction`` "sum" the primary is summed over the global batch instead. Labels that mixup or CutMix mixed
  are distributions over two classes; a primary that takes only integers is then the mean of its values for the two.

  Args:
    loss: a config's section ``loss``.
    parts: the terms to include, "primary", "secondary" or both.

  Returns:
    A function ``(logits, labels, *, loss_states, where, axis_name, scale) -> (loss, dict of its parts)``, where
    ``loss_states`` maps the names of losses to the states that they read, and ``scale`` multiplies a summed primary. A
    step that averages over parts of a batch passes it, so that the average is the sum over the whole batch.
  """
  primary, reduction = _loss(loss.primary), loss.get("reduction", "mean")
  secondary = _loss(loss.secondary) if loss.secondary.name and "secondary" in parts else None

  def total(logits, labels, *, loss_states: Mapping[str, Any] | None = None, where=None, axis_name=None, scale=1.0):
    states = loss_states or {}
    batch_loss = None if secondary is None else secondary(states)
    if batch_loss is not None and "primary" not in parts:
      value = batch_loss(logits, labels, where=where, axis_name=axis_name)
      return loss.weight * value, {"secondary": value}
    combined = losses.composite(primary(states), batch_loss, loss.weight, reduction=reduction)
    value, measured = combined(logits, labels, where=where, axis_name=axis_name)
    if reduction == "mean":
      return value, measured
    measured |= {"primary": scale * measured["primary"]}
    return measured["primary"] + loss.weight * measured["secondary"], measured

  return total


def per_example(loss: ml_collections.ConfigDict, batch_size: int) -> Callable[..., Any]:
  """Returns the objective in units of one example, which does not depend on the number of examples.

  A validation split is scored with it. If ``loss.reduction`` is "sum", the primary is averaged instead, and
  ``loss.weight`` is divided by ``batch_size``, the batch of training, which keeps the ratio of the two terms.
  """
  if loss.reduction == "mean":
    return objective(loss)
  weight = loss.weight / batch_size
  return objective(ml_collections.ConfigDict({**loss.to_dict(), "reduction": "mean", "weight": weight}))


def second_loss(section: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Returns the section ``loss`` of a stage that minimises one loss per example: a config's section ``stage2.loss``."""
  return ml_collections.ConfigDict({"primary": section, "secondary": {"name": ""}, "weight": 0.0, "reduction": "mean"})


# What may score the validation split.
VALIDATION_LOSSES = ("auto", "objective", "nll")


def validation_loss(config: ml_collections.ConfigDict) -> str:
  """Returns which loss scores the validation split, "objective" or "nll".

  By default it is the objective. A loss of a whole batch changes with the size of the batch and with what the batch
  holds, so the NLL takes its place if the primary loss is one.
  """
  chosen = config.training.validation_loss
  if chosen != "auto":
    return chosen
  return "nll" if config.loss.primary.name in losses.PER_BATCH else "objective"


def _loss(section: ml_collections.ConfigDict) -> Callable[[Mapping[str, Any]], Callable]:
  """Returns a function that takes the loss states and binds a section's options and state to its loss."""
  options, _ = split_options(section)

  def bound(states):
    state = states[section.name]._asdict() if section.name in states else {}
    loss = losses.get(section.name, **options, **state)
    return _of_two_classes(loss) if section.name in losses.PER_EXAMPLE and section.name not in SOFT else loss

  return bound


def _of_two_classes(loss: Callable) -> Callable:
  """Returns a loss per example that also takes mixed labels, ``λ ℓ(z, y) + (1 - λ) ℓ(z, y')`` (Zhang et al. 2018)."""
  def mixed(logits, labels):
    if labels.ndim < logits.ndim:
      return loss(logits, labels)
    shares, classes = jax.lax.top_k(labels, 2)
    classes = jnp.where(shares > 0, classes, classes[..., :1])  # Of two images of one class there is no second one.
    return sum(shares[..., i] * loss(logits, classes[..., i]) for i in range(2))

  return mixed
