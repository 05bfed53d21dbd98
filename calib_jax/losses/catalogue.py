"""Losses by name. Each enters itself where it is defined: ``@register(PER_EXAMPLE)`` or ``@register(PER_BATCH)``."""

from collections.abc import Callable
import functools
import inspect
from typing import Any, TypeVar

import jax

from calib_jax import _checks as checks
from calib_jax._checks import registry

Array = jax.Array
Loss = TypeVar("Loss", bound=Callable)

MOST = 16  # Options of a loss that are compiled, because a search over many would compile each.
NUMBERS_AND_NAMES = {bool, int, float, str, type(None)}  # Options with which a loss is compiled.
# Losses that return one value an example, by name.
PER_EXAMPLE: dict[str, Callable[..., Array]] = {}
# Losses that return one value for a whole batch, by name.
PER_BATCH: dict[str, Callable[..., Array]] = {}


def register(losses: dict[str, Callable[..., Any]]) -> Callable[[Loss], Loss]:
  """A decorator that adds a loss to ``losses``, by its name.

  A call with options alone, such as ``focal(gamma=1.0)``, is a TypeError that says how options are bound.

  >>> get("focal", gamma=1.0)(jnp.array([[0.0, 0.0]]), jnp.array([0])).round(4)
  Array([0.3466], dtype=float32)
  """
  def add(function: Loss) -> Loss:
    name, compiled = function.__name__, set()

    @functools.wraps(function)
    def loss(*args, **kwargs):
      if not args and "logits" not in kwargs:
        call = ", ".join([repr(name), *(f"{option}={value!r}" for option, value in kwargs.items())])
        raise TypeError(f"{name} takes logits and labels, and got none: losses.get({call}) is the loss with these "
                        "options, a function of logits and labels.")
      options = tuple(kwargs.items()), tuple(map(type, kwargs.values()))  # True is 1, and no number of an option.
      is_plain = len(args) == 2 and NUMBERS_AND_NAMES.issuperset(options[1])
      if is_plain and (options in compiled or len(compiled) < MOST) and checks.are_right_on_host(*args):
        compiled.add(options)
        return _compiled(function, options, *args)
      return function(*args, **kwargs)

    return registry.register(losses)(loss)

  return add


@functools.partial(jax.jit, static_argnums=(0, 1))
def _compiled(function: Callable[..., Any], options: tuple, logits: Array, labels: Array) -> Array:
  """A loss outside of ``jax.jit``, as one program: by its operations it would be some 50, for each shape."""
  token = checks.WAS_READ.set(True)
  try:
    return function(logits, labels, **dict(options[0]))
  finally:
    checks.WAS_READ.reset(token)


def options(name: str) -> dict[str, object]:
  """The options of the loss called ``name`` and their defaults: its keyword-only arguments.

  Args:
    name: the name of a loss per example or per batch.

  Returns:
    A dict from each option to its default, ``inspect.Parameter.empty`` where it has none. ``where``, ``weights`` and
    ``axis_name``, which belong to a batch, are not options.

  Raises:
    ValueError: for an unknown name.

  >>> options("focal")
  {'gamma': 2.0, 'stop_gradient': False}
  """
  return {option: default for option, default in registry.options(_loss(name)).items()
          if option not in ("where", "weights", "axis_name")}


def get(name: str, **options: Any) -> Callable[..., Array]:
  """The loss called ``name`` with ``options`` bound.

  Args:
    name: the name of a loss per example or per batch.
    **options: any of that loss's keyword arguments; ``losses.options(name)`` lists them.

  Returns:
    A function of logits and labels, and of ``where``; for a loss per batch of ``weights`` and ``axis_name`` too. A type
    checker knows the names and the options of each, and therefore asks for a literal name, not any ``str``.

  Raises:
    ValueError: for an unknown name.
    TypeError: for an unknown option, or one without a default that is missing.

  >>> get("focal", gamma=0.0)(jnp.array([[0.0, 0.0]]), jnp.array([0])).round(4)
  Array([0.6931], dtype=float32)
  """
  loss = _loss(name)
  accepted = registry.options(loss)
  for option in options:
    if option not in accepted:
      raise TypeError(f"{name} has no option {option!r}; it has {', '.join(accepted) or 'none'}."
                      f"{checks.suggestion(option, accepted)}")
  missing = [option for option, default in accepted.items() if default is inspect.Parameter.empty
             and option not in options]
  if missing:
    raise TypeError(f"{name} needs {' and '.join(missing)}, without a default: losses.get({name!r}, "
                    f"{', '.join(f'{option}=…' for option in missing)}).")
  return functools.partial(loss, **options)


def _loss(name: str) -> Callable[..., Array]:
  return registry.find("loss name", name, {**PER_EXAMPLE, **PER_BATCH})
