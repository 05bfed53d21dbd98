"""Numbers as text: percent, intervals and p-values."""

import math

from calib_jax.evaluation.columns import COLUMNS
from calib_jax.evaluation.results import Estimate, Interval


def cell(number: Estimate | Interval, scale: float) -> str:
  """Returns ``estimate [low, high]``, percent with two digits and others with four."""
  estimate, low, high = (f"{scale * x:.{digits_of(scale)}f}" for x in (number.estimate, number.low, number.high))
  return f"{estimate} [{low}, {high}]"


def digits_of(scale: float) -> int:
  """Returns how many digits after the point numbers of a scale have: two of percent, and else four."""
  return 2 if scale == 100 else 4


def p_text(p_value: float, name: str, num_resamples: int) -> str:
  """Returns the p-value of a column as text: "0.012", or "≤ 0.001" for the smallest that so many redraws can give.

  A bound is rounded up, and no p-value is "0.000".

  >>> p_text(1 / 201, "ece", 200), p_text(0.5, "ece", 200), p_text(2e-4, "ece", 10_000)
  ('≤ 0.005', '0.500', '≤ 0.001')
  """
  smallest = 1 / (1 + COLUMNS[name].num_redraws(num_resamples))
  if p_value <= max(smallest * (1 + 1e-6), 5e-4):
    return f"≤ {math.ceil(1000 * p_value - 1e-3) / 1000:.3f}"
  return f"{p_value:.3f}"


def error_text(error: Estimate, num_resamples: int) -> str:
  """Returns the ECE as it is computed, which other tools print too, beside its noise floor and its p-value.

  >>> error_text(Estimate(0.11, 0.1, 0.09, 0.12, floor=0.012, p_value=0.25), 200)
  'ECE 11.0%, noise floor 1.2%, p = 0.250'
  """
  p = p_text(error.p_value, "ece", num_resamples)
  return (f"ECE {100 * error.value:.1f}%, noise floor {100 * error.floor:.1f}%, "
          f"p {p if p.startswith('≤') else f'= {p}'}")


def distinct_texts(*values: float) -> list[str]:
  """Returns numbers with two digits after the point, or with three or four if they would else look alike.

  >>> distinct_texts(0.5234, 0.4311), distinct_texts(0.4934, 0.4921), distinct_texts(0.5, 0.5)
  (['0.52', '0.43'], ['0.493', '0.492'], ['0.5000', '0.5000'])
  """
  texts = []
  for digits in (2, 3, 4):
    texts = [f"{x:z.{digits}f}" for x in values]
    if len(set(texts)) == len(values):
      break
  return texts


def points(excess: Interval) -> str:
  """Returns the size of a difference of two shares in points, with its interval in the direction of the difference.

  >>> points(Interval(-0.05, -0.08, -0.02)), points(Interval(0.26, -1.0, 1.0))
  ('5.0 ± 3.0 points', '26.0 points (-100 to 100)')
  """
  size = -excess if excess.estimate < 0 else excess
  if math.isclose(size.high - size.estimate, size.estimate - size.low, rel_tol=1e-3):
    return f"{100 * size.estimate:.1f} ± {50 * (size.high - size.low):.1f} points"
  return f"{100 * size.estimate:.1f} points ({100 * size.low:.0f} to {100 * size.high:.0f})"  # Its range cuts it off.


def ends(gain: Interval) -> str:
  """Returns the ends of an interval, with digits that tell them from 0.

  >>> ends(Interval(0.09, 0.071, 0.113)), ends(Interval(0.01, -0.0004, 0.02))
  ('0.07 to 0.11', '-0.0004 to 0.0200')
  """
  return " to ".join(distinct_texts(0.0, gain.low, gain.high)[1:])


def counted(number: int, noun: str) -> str:
  """Returns a number of things.

  >>> counted(1, "example"), counted(2000, "example")
  ('1 example', '2,000 examples')
  """
  return f"{number:,} {noun}{'' if number == 1 else 's'}"
