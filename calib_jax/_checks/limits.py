"""What the options of a function may be: numbers in an interval, or one of several choices.

Each check raises ``TypeError`` for a wrong kind and ``ValueError`` for a wrong value, and the message names the option,
what it was and what was expected.
"""

from collections.abc import Iterable
import difflib
import functools
import math
import re

import jax


def options(**values_and_limits: tuple[object, str | type | Iterable]) -> None:
  """Checks the options of a function: for each by name, its value and what the value may be.

  The limit is ``bool``; the choices; or an interval as a text, of which ``"[0, 1)"`` holds 0 but not 1. After
  ``"integer "`` it holds whole numbers only, and before ``" or max"`` the text ``max`` (or another) is allowed too. A
  value of the wrong kind is a TypeError, and one that is not within its limit a ValueError. Of a number that is
  traced, the interval is not checked. What selects a formula or a shape (bools, choices, whole numbers) must not be
  traced.

  >>> options(norm=("max", "[1, inf) or max"), gamma=(-1, "[0, inf)"))
  Traceback (most recent call last):
  ValueError: gamma must be in [0, inf): got -1.
  """
  for name, (value, limit) in values_and_limits.items():
    if not isinstance(limit, str):
      choice(name, value, (True, False) if limit is bool else limit)
      continue
    interval, other = _interval(limit)
    if other is None or isinstance(value, jax.core.Tracer) or str(value) != other:
      number(name, value, **interval, other=other)


@functools.cache
def _interval(limit: str) -> tuple[dict[str, object], str | None]:
  """The keyword arguments of ``number`` for an interval as a text, and the text that is allowed beside it."""
  integer, left, low, high, right, other = re.fullmatch(
    r"(integer )?([\[(])(\S+), (\S+)([\])])(?: or (\S+))?", limit).groups()
  return {"low": float(low), "high": float(high), "open_low": left == "(", "open_high": right == ")",
          "integer": bool(integer)}, other


def choice(name: str, value, choices: Iterable) -> None:
  """Raises a ValueError unless ``value`` is one of the ``choices``; a near miss is suggested."""
  choices = list(choices)
  _static(name, value)
  if any(type(value) is type(k) and value == k for k in choices):
    return
  raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}: got {value!r}.{suggestion(value, choices)}")


def _static(name: str, value) -> None:
  """Raises a TypeError if ``value`` is traced."""
  if isinstance(value, jax.core.Tracer):
    raise TypeError(f"{name} must be static, because it selects a formula or a shape: give a Python value, or name it "
                    f"in static_argnames of jax.jit; got {value}.")


def suggestion(value, choices: Iterable) -> str:
  """`` Did you mean …?`` with the name among ``choices`` that ``value`` may stand for, or nothing.

  ``value`` may leave out words of the name or cut them short, or be spelt nearly as the name is.

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
  return f" Did you mean {near[0]!r}?" if near else ""


def _abbreviates(letters: str, words: list[str]) -> bool:
  """Whether ``letters`` are a beginning of each word, of at least one letter, one after another."""
  if not words:
    return not letters
  return any(letters.startswith(words[0][:length]) and _abbreviates(letters[length:], words[1:])
             for length in range(len(words[0]), 0, -1))


def number(name: str, value, *, low: float = -math.inf, high: float = math.inf, open_low: bool = False,
           open_high: bool = False, integer: bool = False, other: str | None = None) -> None:
  """Checks that a Python number lies in ``[low, high]`` (open ends on request). Traced values are not checked.

  ``other`` is what the value may be as well, for the message.
  """
  if integer:
    _static(name, value)
  if isinstance(value, jax.core.Tracer):
    return
  kinds, also = (int,) if integer else (int, float), f" or {other}" if other else ""
  if isinstance(value, bool) or not (isinstance(value, kinds) or getattr(value, "ndim", None) == 0):
    raise TypeError(f"{name} must be {'an integer' if integer else 'a number'}{also}: got {value!r}.")
  value = float(value)
  below = value <= low if open_low else value < low
  above = value >= high if open_high else value > high
  if below or above or math.isnan(value) or math.isinf(value):
    left = "(" if open_low or low == -math.inf else "["
    right = ")" if open_high or high == math.inf else "]"
    raise ValueError(f"{name} must be in {left}{low:g}, {high:g}{right}{also}: got {value:g}.")
