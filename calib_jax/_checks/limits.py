"""What the options of a function may be: numbers in an interval, or one of several choices.

Each check raises ``TypeError`` for a wrong kind and ``ValueError`` for a wrong value, and the message names the option,
what it was and what was expected.
"""

from collections.abc import Iterable
import difflib

import jax


def options(**values_and_limits: tuple[object, str | type | Iterable]) -> None:
  """Checks options, each ``(value, limit)``: ``bool``, choices, or a text as ``"integer [1, inf) or max"``."""
  for name, (value, limit) in values_and_limits.items():
    if isinstance(limit, str):
      _number(name, value, limit)
    elif limit is bool:
      choice(name, value, (True, False))
    elif type(value) is not str or value not in (limit := list(limit)):
      choice(name, value, limit)


def _number(name: str, value, limit: str) -> None:
  """Checks a number, unless it is traced, against an interval as a text, or the word beside it."""
  interval, _, word = limit.removeprefix("integer ").partition(" or ")
  kind = "an integer" if limit.startswith("integer ") else "a number"
  if isinstance(value, jax.core.Tracer):
    if kind == "an integer":
      raise _not_static(name, value)
    return
  if word and str(value) == word:
    return
  also = f" or {word}" if word else ""
  kinds = int if kind == "an integer" else (int, float)
  if isinstance(value, bool) or not (isinstance(value, kinds) or getattr(value, "ndim", None) == 0):
    raise TypeError(f"{name} must be {kind}{also}: got {value!r}.")
  low, high = map(float, interval[1:-1].split(", "))
  is_above = float(value) >= low if interval[0] == "[" else float(value) > low
  is_below = float(value) <= high if interval[-1] == "]" else float(value) < high
  if not (is_above and is_below):  # As neither of NaN is.
    raise ValueError(f"{name} must be in {interval}{also}: got {float(value):g}.")


def choice(name: str, value, choices: Iterable) -> None:
  """Raises a ValueError unless ``value`` is one of the ``choices``; a near miss is suggested."""
  choices = list(choices)
  if isinstance(value, jax.core.Tracer):
    raise _not_static(name, value)
  for k in choices:
    if type(value) is type(k) and value == k:
      return
  raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}: got {value!r}.{suggestion(value, choices)}")


def _not_static(name: str, value) -> TypeError:
  return TypeError(f"{name} must be static, because it selects a formula or a shape: give a Python value, or name it "
                   f"in static_argnames of jax.jit; got {value}.")


def suggestion(value, choices: Iterable) -> str:
  """`` Did you mean …?`` with the name that ``value`` leaves out words of, cuts short or misspells, or nothing.

  >>> [suggestion(name, ["soft_avuc", "soft_binned_ece"]) for name in ("soft_ece", "sbece", "soft_avu")]
  [" Did you mean 'soft_binned_ece'?", " Did you mean 'soft_binned_ece'?", " Did you mean 'soft_avuc'?"]
  """
  names = sorted(map(str, choices), key=len)
  if not isinstance(value, str) or not value:
    return ""
  words, letters = value.split("_"), value.replace("_", "")
  near = [name for name in names if len(words) > 1 and set(words) < set(name.split("_"))]
  near += [name for name in names if "_" in name and _abbreviates(letters, name.split("_"))]
  near += difflib.get_close_matches(value, names, n=1)
  near += [name for name in names if len(value) > 2 and name.startswith(value)]
  return f" Did you mean {near[0]!r}?" if near else ""


def _abbreviates(letters: str, words: list[str]) -> bool:
  """Whether ``letters`` are a beginning of each word, of at least one letter, one after another."""
  if not words:
    return not letters
  return any(letters.startswith(words[0][:length]) and _abbreviates(letters[length:], words[1:])
             for length in range(len(words[0]), 0, -1))
