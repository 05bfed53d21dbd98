"""Optimizers and learning-rate schedules are built from optax and found by name."""

from collections.abc import Callable
from typing import Any

import ml_collections
import optax

from calib_jax._checks.registry import register

RATES: dict[str, Callable[..., optax.Schedule]] = {}  # Learning-rate schedules by name.
# Optimizers by name.
OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {}


@register(RATES)
def constant(learning_rate: float, num_steps: int, **_: Any) -> optax.Schedule:
  """Keeps the rate the same in every step."""
  del num_steps
  return optax.constant_schedule(learning_rate)


@register(RATES)
def cosine(learning_rate: float, num_steps: int, **_: Any) -> optax.Schedule:
  """Lowers the rate along half a cosine, to 0 at the last step."""
  return optax.cosine_decay_schedule(learning_rate, num_steps)


@register(RATES)
def piecewise(learning_rate: float, num_steps: int, *, boundaries: tuple[float, ...], decay: float) -> optax.Schedule:
  """Multiplies the rate by ``decay`` at each of ``boundaries``, which are fractions of the whole run."""
  return optax.piecewise_constant_schedule(learning_rate, {int(b * num_steps): decay for b in boundaries})


def rate(section: ml_collections.ConfigDict, num_steps: int, steps_per_epoch: int) -> optax.Schedule:
  """Returns the learning rate of a stage of ``num_steps``, described by a section like ``config.optimizer``.

  It is the schedule's rate, multiplied by a ramp from 0 to 1 over the first ``warmup_epochs``.
  """
  base = RATES[section.schedule](section.learning_rate, num_steps, boundaries=tuple(section.boundaries),
                                 decay=section.decay)
  if section.warmup_epochs == 0:
    return base
  ramp = optax.linear_schedule(0.0, 1.0, section.warmup_epochs * steps_per_epoch)
  return lambda step: ramp(step) * base(step)


@register(OPTIMIZERS)
def sgd(momentum: float, nesterov: bool) -> optax.GradientTransformation:
  """Gradient descent with heavy-ball or Nesterov momentum."""
  return optax.trace(decay=momentum, nesterov=nesterov)


@register(OPTIMIZERS)
def adamw(momentum: float, nesterov: bool) -> optax.GradientTransformation:
  """Adam with the first decay rate ``momentum``; ``optimizer.weight_decay`` makes it AdamW, ``nesterov`` NAdamW."""
  return optax.scale_by_adam(b1=momentum, nesterov=nesterov)


def build(section: ml_collections.ConfigDict, num_steps: int, steps_per_epoch: int, decays: Callable[..., Any]
          ) -> optax.GradientTransformation:
  """Returns the optimizer of a stage of ``num_steps``, described by a section like ``config.optimizer``.

  The transformations are in this order: clipping of gradients, which include the L2 penalty's, by their global
  norm; ``coupled_weight_decay`` times the parameter, as by ``weight_decay`` of PyTorch's SGD; momentum; decoupled
  ``weight_decay``, which shrinks a parameter by the factor 1 - learning rate * ``weight_decay``; the learning rate.
  ``decays`` maps parameters to a tree of bools, which says which of them decay in either way.
  """
  clip = optax.identity() if section.clip_norm is None else optax.clip_by_global_norm(section.clip_norm)
  coupled = [optax.add_decayed_weights(section.coupled_weight_decay, decays)] if section.coupled_weight_decay else []
  return optax.chain(clip, *coupled, OPTIMIZERS[section.name](section.momentum, section.nesterov),
                     optax.add_decayed_weights(section.weight_decay, decays),
                     optax.scale_by_learning_rate(rate(section, num_steps, steps_per_epoch)))
