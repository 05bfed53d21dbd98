"""The loss that a run minimises, from its config's ``loss`` section, and the state that some losses carry."""

from collections.abc import Callable, Mapping
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from calib_jax import losses


class Stateful(NamedTuple):
  """A per-example loss with a state: ``update(state, logits, labels)`` of the validation split follows each epoch."""

  loss: Callable
  init: Callable[[], Any]
  update: Callable[[Any, jax.Array, jax.Array], Any]


def adaptive_focal(num_bins: int = 15, gamma: float = 1.0, rate: float = 1.0, switch: float = 0.2,
                   gamma_min: float = -2.0, gamma_max: float = 20.0) -> Stateful:
  """AdaFocal (Ghosh et al. 2022): see ``losses.init_adaptive_focal`` and ``losses.update_adaptive_focal``."""
  def update(state, logits, labels):
    confidence, correct = jnp.max(jax.nn.softmax(logits), -1), jnp.argmax(logits, -1) == labels
    return losses.update_adaptive_focal(state, confidence, correct, rate=rate, switch=switch, gamma_min=gamma_min,
                                        gamma_max=gamma_max)

  return Stateful(lambda logits, labels, state: losses.adaptive_focal(logits, labels, **state._asdict()),
                  lambda: losses.init_adaptive_focal(num_bins, gamma), update)


STATEFUL: Mapping[str, Callable[..., Stateful]] = {"adaptive_focal": adaptive_focal}


def primary(section: ConfigDict) -> Stateful:
  """The per-example loss of ``loss.primary``; most have no state."""
  section = dict(section)
  name = section.pop("name")
  if name in STATEFUL:
    return STATEFUL[name](**section)
  loss = losses.get(name, **section)
  return Stateful(lambda logits, labels, state: loss(logits, labels), tuple, None)


def objective(loss: ConfigDict, parts: tuple[str, ...] = ("primary", "secondary")) -> Callable:
  """A function ``(logits, labels, *, loss_state, where, axis_name)`` to the loss and a dict of its parts.

  It is ``mean(primary) + weight * secondary`` of a config's ``loss`` section, or of those of its two ``parts``.
  """
  section = dict(loss.secondary)
  name = section.pop("name")
  secondary = losses.get(name, **section) if name and "secondary" in parts else None
  first = primary(loss.primary).loss

  def total(logits, labels, *, loss_state=(), where=None, axis_name=None):
    if "primary" not in parts:
      value = secondary(logits, labels, where=where, axis_name=axis_name)
      return loss.weight * value, {"secondary": value}
    both = losses.composite(functools.partial(first, state=loss_state), secondary, loss.weight)
    return both(logits, labels, where=where, axis_name=axis_name)

  return total
