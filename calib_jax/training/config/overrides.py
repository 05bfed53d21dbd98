"""Overrides of a config on the command line: ``--config.key=value``."""

import ast
from collections.abc import Callable, Iterator, Sequence
import re
from typing import Any

import ml_collections

from calib_jax import _checks as checks
from calib_jax._system.errors import LONGEST, UserError, short

# The exceptions of ast.literal_eval for texts that are not Python literals.
NOT_A_LITERAL = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError)
BOOLS = {"true": True, "1": True, "false": False, "0": False}
# Functions that read the text of a field by its type.
READERS: dict[type, Callable[[str], Any]] = {
  bool: lambda text: BOOLS[text.lower()], int: lambda text: int(text, 0), float: float, str: str}


def pairs(arguments: Sequence[str], config: ml_collections.ConfigDict, collections: Sequence[str] = ()
          ) -> list[tuple[str, str]]:
  """Returns the overrides as ``(key, text)``; a UserError for an argument of another form.

  A dict overrides each of its keys of a section; it replaces the ``collections``, whose old fields become "" first.
  """
  pairs = []
  for argument in arguments:
    match = re.fullmatch(r"--config\.([^=]+)=(.*)", argument, re.DOTALL)
    if not match:
      name, _, text = argument.lstrip("-").removeprefix("config.").partition("=")
      advice = (f"write --config.{name}={text or 'VALUE'}" if name in _keys(config) else
                "overrides look like --config.training.num_steps=20, and --help lists the options")
      raise UserError(f"the argument {short(argument)} is not an override: {advice}.")
    key, text = match[1], match[2]
    if text and isinstance(_node(config, key), ml_collections.ConfigDict):
      try:
        value = ast.literal_eval(text)
      except NOT_A_LITERAL:
        value = None
      if not isinstance(value, dict):
        raise UserError(f"config key {key} is a section: set one of its fields, or give a dict of fields: got "
                        f"{short(text)}.")
      if key in collections:
        pairs.extend((f"{key}.{label}", "") for label in _node(config, key))
      pairs.extend(_flat(key, value))
    else:
      pairs.append((key, text))
  return pairs


def elsewhere(config: ml_collections.ConfigDict, key: str) -> str:
  """`` Did you mean …?`` with the keys that end as ``key`` does, or nothing if there are none or many."""
  near = [other for other in _keys(config) if other.split(".")[-1] == key.split(".")[-1] and other != key]
  return f" Did you mean {' or '.join(map(repr, near))}?" if 0 < len(near) <= 3 else ""


def _keys(config: ml_collections.ConfigDict, prefix: str = "") -> Iterator[str]:
  for name, child in config.items():
    yield f"{prefix}{name}"
    if isinstance(child, ml_collections.ConfigDict):
      yield from _keys(child, f"{prefix}{name}.")


def fields(config: ml_collections.ConfigDict, prefix: str = "") -> dict[str, str]:
  """Returns the text of each field by its key, as an override gives it back."""
  texts = {}
  for name, value in config.items():
    key = f"{prefix}{name}"
    if isinstance(value, ml_collections.ConfigDict) and len(value):
      texts |= fields(value, f"{key}.")
    else:
      texts[key] = (value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else
                    repr(value if not isinstance(value, ml_collections.ConfigDict) else {}))
  return texts


def _flat(key: str, value) -> list[tuple[str, str]]:
  if not isinstance(value, dict):
    return [(key, value if isinstance(value, str) else repr(value))]
  return [pair for name, child in value.items() for pair in _flat(f"{key}.{name}", child)]


def _node(config: ml_collections.ConfigDict, key: str):
  """Returns what ``config`` has at ``key``, or None."""
  node = config
  for part in key.split("."):
    if not isinstance(node, ml_collections.ConfigDict) or part not in node:
      return None
    node = node[part]
  return node


def apply(config: ml_collections.ConfigDict, key: str, text: str) -> None:
  """Sets one key to the value in ``text``, parsed as its type; another key or type is a UserError."""
  node, place = config, "the config"
  for part in key.split("."):
    if not isinstance(node, ml_collections.ConfigDict) or part not in node:
      keys = list(node) if isinstance(node, ml_collections.ConfigDict) else []
      advice = elsewhere(config, key) or checks.suggestion(part, keys)
      raise UserError(f"config key {key[:LONGEST]} does not exist: {place} has "
                      f"{', '.join(keys) or 'no keys of its own'}.{advice}")
    parent, node, place = node, node[part], part
  kind = parent.get_type(part)
  try:
    parent[part] = _value(text, kind, node)
  except (*NOT_A_LITERAL, OverflowError, KeyError) as error:
    raise UserError(f"config key {key} must be of type {kind.__name__}: got {short(text)}.") from error


def _value(text: str, kind: type, default):
  """Returns the value in ``text``. Raises one of the errors that ``apply`` expects if it is of another type."""
  if default is None and text in ("None", "none"):
    return None
  if kind is tuple:
    return _tuple(text, default)
  if kind in READERS:
    return READERS[kind](text)
  try:
    return ast.literal_eval(text)  # A field without a type, such as an optional number or name.
  except NOT_A_LITERAL:
    return text


def _tuple(text: str, default: tuple | None) -> tuple:
  try:
    value = ast.literal_eval(text) if text else ()
  except NOT_A_LITERAL:
    value = tuple(part.strip() for part in text.split(","))  # Names may be given without quotes.
  value = tuple(value) if isinstance(value, tuple | list) else (value,)
  kinds = {type(x) for x in default or ()}
  if len(kinds) == 1:
    kind = kinds.pop()
    if not all(type(x) is kind or (kind is float and type(x) is int) for x in value):
      raise ValueError(text)
    value = tuple(kind(x) for x in value)
  return value
