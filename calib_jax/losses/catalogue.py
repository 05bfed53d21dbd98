"""Losses by name. Each enters itself where it is defined: ``@per_example(…)`` or ``@per_batch(…)`` with its limits."""

from collections.abc import Callable
import functools

import jax
import jax.numpy as jnp

from calib_jax import _checks as checks
from calib_jax._checks import registry
from calib_jax._numerics.softmax import infinite

Array = jax.Array

# Losses that return one value an example, by name.
PER_EXAMPLE: dict[str, Callable[..., Array]] = {}
# Losses that return one value for a whole batch, by name.
PER_BATCH: dict[str, Callable[..., Array]] = {}


def per_example(*, soft: bool = False, every_class: bool = False,
                **limits) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
  """A decorator that registers a loss per example and checks its arguments first, as ``checks.arguments`` does.

  The value is NaN where a label is out of range, and inf where -log p of a masked class is part of it.

  Args:
    soft: whether labels may also be floats ``[..., K]``.
    every_class: whether a masked class has no meaning, so that logits of -inf are refused where they can be read.
    **limits: what each option may be.

  Returns:
    The decorator. The loss gets logits ``[..., K]`` of float32 or wider, and labels in int32 or that dtype.
  """
  def decorate(loss):
    def prepare(logits, labels):
      prepared = checks.scores_and_labels(logits, labels, soft=soft)
      checks.label_values(labels, prepared[0].shape[-1])
      if every_class:
        checks.masked_class(prepared[0], f"{loss.__name__} depends on the logit of every class")
      return prepared

    @functools.wraps(loss)
    def with_limits(logits, labels, **options):
      values = loss(logits, labels, **options)
      values = values if every_class else infinite(values)
      if labels.shape == logits.shape:
        return values
      return jnp.where(checks.out_of_range(labels, logits.shape[-1]), jnp.nan, values)

    return registry.register(PER_EXAMPLE)(checks.arguments(prepare, **limits)(with_limits))

  return decorate


def per_batch(**limits) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
  """As ``per_example``, for a loss per batch, which gets what ``checks.batch`` returns: ``where`` is never None."""
  def prepare(logits, labels, where):
    prepared = checks.batch(logits, labels, where)
    checks.label_values(labels, prepared[0].shape[-1], where)
    return prepared

  return lambda loss: registry.register(PER_BATCH)(checks.arguments(prepare, **limits)(loss))


def options(name: str) -> dict[str, object]:
  """The options of the loss called ``name`` and their defaults: its keyword-only arguments.

  Args:
    name: the name of a loss per example or per batch.

  Returns:
    A dict from each option to its default, ``inspect.Parameter.empty`` where it has none. ``where`` and ``axis_name``,
    which belong to a batch, are not options.

  Raises:
    ValueError: for an unknown name.

  >>> options("focal")
  {'gamma': 2.0, 'stop_gradient': False}
  """
  found = registry.options(_loss(name))
  return {option: default for option, default in found.items() if option not in ("where", "axis_name")}


def get(name: str, **options) -> Callable[..., Array]:
  """The loss called ``name`` with ``options`` bound.

  Args:
    name: the name of a loss per example or per batch.
    **options: any of that loss's keyword arguments; ``losses.options(name)`` lists them.

  Returns:
    A function of logits and labels (and of ``where`` and ``axis_name``, for a loss per batch).

  Raises:
    ValueError: for an unknown name.
    TypeError: for an unknown option.

  >>> get("focal", gamma=0.0)(jnp.array([[0.0, 0.0]]), jnp.array([0])).round(4)
  Array([0.6931], dtype=float32)
  """
  loss = _loss(name)
  accepted = registry.options(loss)
  for option in options:
    if option not in accepted:
      raise TypeError(f"{name} has no option {option!r}; it has {', '.join(accepted) or 'none'}.")
  return functools.partial(loss, **options)


def _loss(name: str) -> Callable[..., Array]:
  known = {**PER_EXAMPLE, **PER_BATCH}
  checks.choice("loss name", name, known)
  return known[name]
