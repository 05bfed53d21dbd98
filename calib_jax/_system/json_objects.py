"""Reads JSON that may come from anyone: an object, of few levels, with each key once."""

from collections.abc import Iterable
import json

from calib_jax._system.errors import FileError, short

DEEPEST = 64  # Levels.


def parse_json(text: str, place: str) -> dict:
  """Returns the object that a JSON text holds; ``NaN`` and ``Infinity`` are numbers, because Python writes them so.

  No object, over 64 levels, a key twice or an integer of over 64 bits is a FileError, which begins with ``place``.
  """
  def unique(pairs: Iterable[tuple[str, object]]) -> dict:
    values = {}
    for key, value in pairs:
      if key in values:
        raise ValueError(f"it has the key {short(key)} twice")
      values[key] = value
    return values

  def integer(digits: str) -> int:
    if len(digits) > 20 or not -2**63 <= int(digits) < 2**64:
      raise ValueError(f"it has an integer of {len(digits)} digits")
    return int(digits)

  try:
    value = json.loads(text, object_pairs_hook=unique, parse_int=integer)
    if not isinstance(value, dict):
      raise ValueError(f"it holds a {type(value).__name__} where an object belongs")
    level: list[object] = [value]
    for _ in range(DEEPEST):
      level = [child for node in level if isinstance(node, dict | list)
               for child in (node.values() if isinstance(node, dict) else node)]
    if level:
      raise RecursionError
    return value
  except RecursionError:
    raise FileError(f"{place} cannot be read as JSON (it is nested more than {DEEPEST} levels deep).") from None
  except (ValueError, MemoryError) as error:
    reason = next(iter(str(error).splitlines()), "it is too large")
    raise FileError(f"{place} cannot be read as JSON ({reason}).") from error
