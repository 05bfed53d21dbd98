"""Optimizers and learning-rate schedules by name, built on optax."""

from collections.abc import Callable

import optax


def constant(learning_rate: float, num_steps: int, **_) -> optax.Schedule:
  """The same rate throughout."""
  del num_steps
  return optax.constant_schedule(learning_rate)


def cosine(learning_rate: float, num_steps: int, **_) -> optax.Schedule:
  """Half a cosine from the rate down to 0 at the last step."""
  return optax.cosine_decay_schedule(learning_rate, num_steps)


def piecewise(learning_rate: float, num_steps: int, *, boundaries: tuple[float, ...], decay: float) -> optax.Schedule:
  """The rate times ``decay`` from each of ``boundaries``, fractions of the whole run, onwards."""
  return optax.piecewise_constant_schedule(learning_rate, {int(b * num_steps): decay for b in boundaries})


SCHEDULES: dict[str, Callable[..., optax.Schedule]] = {"constant": constant, "cosine": cosine, "piecewise": piecewise}


def schedule(name: str, learning_rate: float, num_steps: int, *, warmup_steps: int = 0,
             boundaries: tuple[float, ...] = (), decay: float = 0.2) -> optax.Schedule:
  """The schedule by name, after a linear warm-up from 0 over ``warmup_steps`` (which it does not lengthen)."""
  base = SCHEDULES[name](learning_rate, num_steps, boundaries=boundaries, decay=decay)
  if warmup_steps == 0:
    return base
  ramp = optax.linear_schedule(0.0, 1.0, warmup_steps)
  return lambda step: ramp(step) * base(step)


def sgd(momentum: float, nesterov: bool) -> optax.GradientTransformation:
  """Gradient descent with heavy-ball momentum, or Nesterov's."""
  return optax.trace(decay=momentum, nesterov=nesterov)


def adamw(momentum: float, nesterov: bool) -> optax.GradientTransformation:
  """Adam, ``momentum`` its first decay rate; with ``optimizer.weight_decay`` it is AdamW, with ``nesterov`` NAdamW."""
  return optax.scale_by_adam(b1=momentum, nesterov=nesterov)


OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {"sgd": sgd, "adamw": adamw}


def build(name: str, learning_rate: optax.Schedule, *, momentum: float, weight_decay: float, decays: Callable,
          nesterov: bool = False, clip_norm: float | None = None) -> optax.GradientTransformation:
  """The optimizer by name; ``weight_decay`` is decoupled: it shrinks parameters by rate * decay at every step.

  ``decays(params)`` says which parameters do. Gradients, those of an L2 penalty included, are first scaled down to a
  global norm of ``clip_norm`` where they exceed it.
  """
  clip = optax.identity() if clip_norm is None else optax.clip_by_global_norm(clip_norm)
  return optax.chain(clip, OPTIMIZERS[name](momentum, nesterov), optax.add_decayed_weights(weight_decay, decays),
                     optax.scale_by_learning_rate(learning_rate))
