"""What the options of a function may be: numbers in an interval, or one of several choices.

Each check raises ``TypeError`` for a wrong kind and ``ValueError`` for a wrong value, and the message names the option,
what it was and what was expected.
"""

from collections.abc import Iterable
import difflib
import math
import re

import jax


def options(**values_and_limits: tuple[object, str | type | Iterable]) -> None:
  """Checks the options of a function: for each by name, its value and what the value may be, as in ``limited``.

  >>> options(norm=("max", "[1, inf) or max"), gamma=(-1, "[0, inf)"))
  Traceback (most recent call last):
  ValueError: gamma must be in [0, inf): got -1.
  """
  for name, (value, limit) in values_and_limits.items():
    limited(name, value, limit)


def limited(name: str, value, limit: str | type | Iterable) -> None:
  """Checks one option.

  Args:
    name: the name of the option, for the message.
    value: the value of the option. Traced values are not checked.
    limit: ``bool``; the choices; or an interval as a text, of which ``"[0, 1)"`` holds 0 but not 1. After
      ``"integer "`` it holds whole numbers only, and before ``" or max"`` the text ``max`` (or another) is allowed too.

  Raises:
    TypeError, ValueError: if the value is not within the limit.

  >>> limited("norm", "max", "[1, inf) or max")
  >>> limited("gamma", -1, "[0, inf)")
  Traceback (most recent call last):
  ValueError: gamma must be in [0, inf): got -1.
  """
  if not isinstance(limit, str):
    choice(name, value, (True, False) if limit is bool else limit)
    return
  integer, left, low, high, right, other = re.fullmatch(
    r"(integer )?([\[(])(\S+), (\S+)([\])])(?: or (\S+))?", limit).groups()
  if other is None or isinstance(value, jax.core.Tracer) or str(value) != other:
    number(name, value, low=float(low), high=float(high), open_low=left == "(", open_high=right == ")",
           integer=bool(integer))


def choice(name: str, value, known: Iterable) -> None:
  """Raises a ValueError unless ``value`` is one of ``known``; a near miss is suggested."""
  known = list(known)
  if any(type(value) is type(k) and value == k for k in known):
    return
  raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}: got {value!r}.{suggestion(value, known)}")


def suggestion(value, known: Iterable) -> str:
  """`` Did you mean …?`` with the name of ``known`` that ``value`` may stand for, or nothing.

  ``value`` may leave out words of the name or cut them short, or be spelt nearly as the name is.

  >>> [suggestion(name, ["soft_avuc", "soft_binned_ece"]) for name in ("soft_ece", "sbece", "soft_avu")]
  [" Did you mean 'soft_binned_ece'?", " Did you mean 'soft_binned_ece'?", " Did you mean 'soft_avuc'?"]
  """
  names = sorted(map(str, known), key=len)
  if not isinstance(value, str) or not value:
    return ""
  words, letters = value.split("_"), value.replace("_", "")
  near = [name for name in names if len(words) > 1 and set(words) < set(name.split("_"))]
  near += [name for name in names if "_" in name and _abbreviates(letters, name.split("_"))]
  near += difflib.get_close_matches(value, names, n=1)
  return f" Did you mean {near[0]!r}?" if near else ""


def _abbreviates(letters: str, words: list[str]) -> bool:
  """Whether ``letters`` are a beginning of each word, of at least one letter, one after another."""
  if not words:
    return not letters
  return any(letters.startswith(words[0][:length]) and _abbreviates(letters[length:], words[1:])
             for length in range(len(words[0]), 0, -1))


def number(name: str, value, *, low: float = -math.inf, high: float = math.inf, open_low: bool = False,
           open_high: bool = False, integer: bool = False) -> None:
  """Checks that a Python number lies in ``[low, high]`` (open ends on request). Traced values are not checked."""
  if isinstance(value, jax.core.Tracer):
    return
  kinds = (int,) if integer else (int, float)
  if isinstance(value, bool) or not (isinstance(value, kinds) or getattr(value, "ndim", None) == 0):
    raise TypeError(f"{name} must be {'an integer' if integer else 'a number'}: got {value!r}.")
  value = float(value)
  below = value <= low if open_low else value < low
  above = value >= high if open_high else value > high
  if below or above or math.isnan(value) or math.isinf(value):
    left = "(" if open_low or low == -math.inf else "["
    right = ")" if open_high or high == math.inf else "]"
    raise ValueError(f"{name} must be in {left}{low:g}, {high:g}{right}: got {value:g}.")
