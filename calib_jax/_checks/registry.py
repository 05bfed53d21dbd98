"""Registries: dicts of functions by name, filled by a decorator where each function stands."""

from collections.abc import Callable, Mapping, MutableMapping
import dataclasses
import functools
import importlib
import inspect
import pkgutil
from typing import TypeVar

from calib_jax import _checks as checks

Registered = TypeVar("Registered", bound=Callable)


def register(registry: MutableMapping[str, Callable], name: str | None = None) -> Callable[[Registered], Registered]:
  """A decorator that adds a function or class to ``registry``, under ``name`` or its own name."""
  def add(function: Registered) -> Registered:
    registry[name or function.__name__] = function
    return function

  return add


def import_modules(package: str) -> None:
  """Imports every file of a package, so that what they register is found: a new file needs no other line."""
  for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
    if not module.ispkg and not module.name.endswith(".__main__"):
      importlib.import_module(module.name)


def find(argument: str, choice: str | Callable, registry: Mapping[str, Callable]) -> Callable:
  """The function ``choice``, or the one of this name in ``registry``; else a ValueError about ``argument``."""
  if callable(choice):
    return choice
  checks.choice(argument, choice, registry)
  return registry[choice]


def options(function: Callable, *, positional: bool = False) -> dict[str, object]:
  """What a config may set of a registered function: keyword-only parameters or a dataclass's own fields, with defaults.

  >>> def rectangle(position, *, width=1.0, height=2.0): ...
  >>> options(rectangle)
  {'width': 1.0, 'height': 2.0}
  """
  target = function.func if isinstance(function, functools.partial) else function
  parameters = inspect.signature(function).parameters.values()
  if dataclasses.is_dataclass(target):
    inherited = {field.name for base in target.__bases__ for field in dataclasses.fields(base)}
    return {p.name: p.default for p in parameters if p.name not in inherited}
  kinds = {inspect.Parameter.KEYWORD_ONLY, *([inspect.Parameter.POSITIONAL_OR_KEYWORD] if positional else [])}
  return {p.name: p.default for p in parameters if p.kind in kinds}
