"""Packages whose public names are imported when they are first used."""

from collections.abc import Callable, Collection, Mapping
import importlib
import sys
from typing import Any


def names(package: str, places: Mapping[str, str], modules: Collection[str] = ()
          ) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
  """Returns ``__getattr__`` and ``__dir__`` of a package.

  ``places`` has the module of each name, and ``modules`` are the package's modules that are names themselves.
  """
  def get(name: str) -> Any:
    if name in places:
      return getattr(importlib.import_module(places[name]), name)
    if name in modules:
      return importlib.import_module(f"{package}.{name}")
    raise AttributeError(f"module {package!r} has no attribute {name!r}")

  return get, lambda: sorted({*vars(sys.modules[package]), *places, *modules})
