"""Optimizers and learning-rate schedules are built from optax and found by name."""

from collections.abc import Callable

from ml_collections import ConfigDict
import optax

from calib_jax._checks.registry import register

RATES: dict[str, Callable[..., optax.Schedule]] = {}  # Learning-rate schedules by name.
# Optimizers by name.
OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {}


@register(RATES)
def constant(learning_rate: float, num_steps: int, **_) -> optax.Schedule:
  """Keeps the rate the same in every step."""
  del num_steps
  return optax.constant_schedule(learning_rate)


@register(RATES)
def cosine(learning_rate: float, num_steps: int, **_) -> optax.Schedule:
  """Lowers the rate along half a cosine, to 0 at the last step."""
  return optax.cosine_decay_schedule(learning_rate, num_steps)


@register(RATES)
def piecewise(learning_rate: float, num_steps: int, *, boundaries: tuple[float, ...], decay: float) -> optax.Schedule:
  """Multiplies the rate by ``decay`` at each of ``boundaries``, which are fractions of the whole run."""
  return optax.piecewise_constant_schedule(learning_rate, {int(b * num_steps): decay for b in boundaries})


def schedule(name: str, learning_rate: float, num_steps: int, *, warmup_steps: int = 0,
             boundaries: tuple[float, ...] = (), decay: float = 0.2) -> optax.Schedule:
  """Returns the schedule by name, multiplied by a ramp from 0 to 1 over the first ``warmup_steps`` of its steps."""
  base = RATES[name](learning_rate, num_steps, boundaries=boundaries, decay=decay)
  if warmup_steps == 0:
    return base
  ramp = optax.linear_schedule(0.0, 1.0, warmup_steps)
  return lambda step: ramp(step) * base(step)


@register(OPTIMIZERS)
def sgd(momentum: float, nesterov: bool) -> optax.GradientTransformation:
  """Gradient descent with heavy-ball or Nesterov momentum."""
  return optax.trace(decay=momentum, nesterov=nesterov)


@register(OPTIMIZERS)
def adamw(momentum: float, nesterov: bool) -> optax.GradientTransformation:
  """Adam with the first decay rate ``momentum``; ``optimizer.weight_decay`` makes it AdamW, ``nesterov`` NAdamW."""
  return optax.scale_by_adam(b1=momentum, nesterov=nesterov)


def rate(section: ConfigDict, num_steps: int, steps_per_epoch: int) -> optax.Schedule:
  """Returns the learning rate of a stage of ``num_steps``, described by a section like ``config.optimizer``."""
  return schedule(section.schedule, section.learning_rate, num_steps, boundaries=tuple(section.boundaries),
                  decay=section.decay, warmup_steps=section.warmup_epochs * steps_per_epoch)


def of_section(section: ConfigDict, num_steps: int, steps_per_epoch: int, decays: Callable,
               trainable: Callable) -> optax.GradientTransformation:
  """Returns the optimizer of a stage of ``num_steps``, described by a section like ``config.optimizer``.

  It keeps no state for parameters that are not ``trainable``. Their updates are their gradients, which are 0.
  """
  optimizer = build(section.name, rate(section, num_steps, steps_per_epoch), momentum=section.momentum,
                    nesterov=section.nesterov, clip_norm=section.clip_norm, weight_decay=section.weight_decay,
                    coupled_weight_decay=section.coupled_weight_decay, decays=decays)
  return optax.masked(optimizer, trainable)


def build(name: str, learning_rate: optax.Schedule, *, momentum: float, weight_decay: float, decays: Callable,
          nesterov: bool = False, clip_norm: float | None = None,
          coupled_weight_decay: float = 0.0) -> optax.GradientTransformation:
  """Returns the optimizer by name.

  The transformations are in this order: clipping, coupled decay, momentum, decoupled decay, learning rate.

  Args:
    name: one of ``OPTIMIZERS``.
    learning_rate: maps a step to its learning rate.
    momentum: the decay rate of the momentum.
    weight_decay: decoupled decay, which shrinks a parameter by the factor 1 - learning rate * ``weight_decay``.
    decays: a function from parameters to a tree of bools, which says which of them decay in either way.
    nesterov: whether the momentum is Nesterov's.
    clip_norm: gradients, which include those of an L2 penalty, are scaled down to at most this global norm; None for
      any.
    coupled_weight_decay: this factor times the parameter is added to its gradient after clipping and before momentum,
      as by ``weight_decay`` of PyTorch's SGD.

  Returns:
    The optimizer.
  """
  clip = optax.identity() if clip_norm is None else optax.clip_by_global_norm(clip_norm)
  coupled = [optax.add_decayed_weights(coupled_weight_decay, decays)] if coupled_weight_decay else []
  return optax.chain(clip, *coupled, OPTIMIZERS[name](momentum, nesterov),
                     optax.add_decayed_weights(weight_decay, decays), optax.scale_by_learning_rate(learning_rate))
