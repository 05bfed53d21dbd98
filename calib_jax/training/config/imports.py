"""Finds functions of a user's own that a config names by their import path, and registers them under it.

A name such as ``my_package.losses:mine`` is the path of a module, a colon, and the name of a function or class in it.
It is registered under this name, so that everything that finds a loss, model, head, data source, schedule or calibrator
by name finds it too. The module may lie in the directory in which the command runs, beside the config file, or anywhere
where Python imports from.

Import paths are code that is run, so only a config file, which is Python itself, and the command line may name them.
The JSON of a run's directory may not, unless the caller says so.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
import contextlib
import importlib
import inspect
import os
import sys
from typing import Any

from calib_jax import calibrators, losses, training
from calib_jax._checks.registry import options
from calib_jax._system.errors import UserError
from calib_jax.training import data, models
from calib_jax.training.data import sources

REGISTRIES: dict[str, MutableMapping[str, Callable[..., Any]]] = {
  "data": data.SOURCES, "model": models.MODELS, "head": models.HEADS, "schedule": training.SCHEDULES,
  "evaluation.calibrators": calibrators.CALIBRATORS}
BASES: dict[str, type] = {"model": models.Backbone, "head": models.Head}


def register(section: str, name: str) -> None:
  """Imports and registers what ``name`` says, if it is an import path, for a section such as ``loss.primary``.

  What cannot be imported, or is not what the section needs, is a UserError.
  """
  is_loss = section.startswith("loss.") or section == "stage2.loss"
  if not is_import_path(name) or not (is_loss or section in REGISTRIES):
    return
  key = f"config key {section}.name"
  function = _imported(key, name, BASES.get(section))
  if is_loss:
    is_batch_loss = {"where", "axis_name"} <= inspect.signature(function).parameters.keys()
    if section == "loss.secondary" and not is_batch_loss:
      raise UserError(f"{key}: {name} must take the keywords where and axis_name, as losses of a batch do.")
    (losses.PER_BATCH if is_batch_loss else losses.PER_EXAMPLE)[name] = function
    return
  if section == "data" and (unknown := set(sources.positional(function)) - set(sources.REQUEST)):
    raise UserError(f"{key}: {name} can only take the arguments {', '.join(sources.REQUEST)} and options after a *: "
                    f"got {', '.join(sorted(unknown))}.")
  REGISTRIES[section][name] = function


def is_import_path(name: object) -> bool:
  """Returns whether what a config has as a name is an import path."""
  return isinstance(name, str) and ":" in name


def import_paths(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
  """Yields the keys of a config that hold import paths, and these: names, and bases of calibrators."""
  for field, value in section.items():
    if isinstance(value, Mapping):
      yield from import_paths(value, f"{prefix}{field}.")
    elif field in ("name", "base") and is_import_path(value):
      yield f"{prefix}{field}", value


def search_here(*folders: str) -> None:
  """Lets Python import from the present directory, ``folders``, and ``configs`` of the package if it is absent."""
  for folder in (os.getcwd(), *folders):
    if folder not in sys.path:  # A program has the directory of its own file there, and not the one it runs in.
      sys.path.append(folder)
  try:
    importlib.import_module("configs.common")
  except ModuleNotFoundError:
    with contextlib.suppress(ModuleNotFoundError):  # Only an installed package holds the configs.
      sys.modules["configs"] = importlib.import_module("calib_jax.configs")


def _imported(key: str, name: str, base: type | None) -> Callable:
  module_name, _, attribute = name.partition(":")
  search_here()
  try:
    module = importlib.import_module(module_name)
  except (Exception, SystemExit) as error:  # The user's own module may raise any exception.
    raise UserError(f"{key}: {module_name!r} cannot be imported ({type(error).__name__}: "
                    f"{str(error).splitlines()[0] if str(error) else ''}).") from error
  function = getattr(module, attribute, None)
  if not callable(function):
    raise UserError(f"{key}: the module {module_name} has no function or class {attribute!r}.")
  if base and isinstance(function, type) and not issubclass(function, base):
    raise UserError(f"{key}: {name} must be a subclass of calib_jax.training.models.{base.__name__}, whose fields it "
                    "inherits; its own fields are options.")
  try:
    options(function)
  except (ValueError, TypeError, AttributeError) as error:
    raise UserError(f"{key}: the arguments of {name} cannot be listed ({str(error).splitlines()[0]}): name a function "
                    "or class that is written in Python.") from error
  return function
