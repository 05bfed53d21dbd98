"""At most how large the true calibration error is: a bound for every N that assumes nothing of the predictions."""

from typing import NamedTuple

from jax.typing import ArrayLike
import numpy as np

from calib_jax import _checks as checks

SHARE = 0.8  # Of the risk 1 - level, for the labels; the rest is for the predictions, whose part is smaller.


class UpperBound(NamedTuple):
  """An upper confidence bound.

  Attributes:
    upper: the calibration error of the rounded predictions is at most this with the probability ``level``.
    distance: so is the mean distance of the predictions as they are from calibrated ones.
    error: the calibration error of the rounded predictions on these examples.
  """

  upper: float
  distance: float
  error: float


def calibration_error_upper(confidence: ArrayLike, correct: ArrayLike, *, level: float = 0.95, num_values: int = 20
                            ) -> UpperBound:
  r"""An upper confidence bound of the true calibration error, for every N and every distribution of independent rows.

  Use it for a promise: the error is at most so large.

  No test can bound the error of predictions that never repeat, because what they hide between examples is unseen. So
  the bound is of the predictions rounded to the nearest of 0, 1/m, …, 1 (m is ``num_values``):

  .. math:: E = \sum_b P(g = b)\,|\mathrm{E}[A \mid g = b] - b|, \qquad
    \hat E = \sum_b \Big|\frac{1}{N} \sum_{i: g_i = b} (a_i - b)\Big|

  with g the rounded confidence and A whether the prediction is correct. Given the predictions, the mean of
  :math:`\hat E` is at least :math:`\sum_b (n_b / N) |\mathrm{E}[A \mid b] - b|` by Jensen's inequality, and one label
  changes it by at most 1/N, so that by McDiarmid's inequality that sum is at most
  :math:`\hat E + \sqrt{\log(1 / δ_1) / (2 N)}`. It is a mean of N independent numbers in [0, 1], whose expectation E is
  bounded by the inequality of Chernoff and Hoeffding for relative entropies, with :math:`δ_2`; both add up to
  1 - ``level``. The predictions f themselves are at most E + E|f - g| from the calibrated :math:`\mathrm{E}[A \mid g]`.

  Args:
    confidence: ``[N]`` floats in [0, 1].
    correct: ``[N]`` bools, zeros and ones, or credits in [0, 1], for which the inequalities hold too.
    level: the probability that the bounds hold, in (0, 1); each by itself.
    num_values: m, at least 1; few values have little noise, and many are close to the predictions. It must not be
      chosen by these examples.

  Returns:
    The two bounds and the error on these examples, in fractions; the bounds are 1 without examples.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  References:
    McDiarmid 1989; Hoeffding 1963, Theorem 1; the distance is that of Błasiok et al. 2023b.

  >>> rng = np.random.default_rng(0)
  >>> confidence = rng.uniform(0.5, 1, 20_000)
  >>> bound = calibration_error_upper(confidence, rng.uniform(size=20_000) < confidence)
  >>> round(bound.upper, 2), round(bound.distance, 2)
  (0.02, 0.03)
  """
  checks.options(level=(level, "(0, 1)"), num_values=(num_values, "integer [1, inf)"))
  confidence, correct = np.asarray(confidence), np.asarray(correct)
  checks.rank(confidence, 1, "confidence", "[N]")
  checks.pair_values(confidence, correct, None, names=("confidence", "correct"))
  number = len(confidence)
  if not number:
    return UpperBound(1.0, 1.0, 0.0)
  f, a = confidence.astype(np.float64), correct.astype(np.float64)
  value = np.rint(f * num_values).astype(np.int64)
  gap = np.bincount(value, a - value / num_values, minlength=num_values + 1)
  error, away = float(np.abs(gap).sum()) / number, np.abs(f - value / num_values)
  risk = 1 - level
  of_sample = min(1.0, error + np.sqrt(np.log(1 / (SHARE * risk)) / (2 * number)))
  # The predictions' mean distance is of their own sample too; 1/(2 m) is the most that rounding can move one.
  upper = _largest_mean(of_sample, np.log(1 / ((1 - SHARE) * risk)) / number)
  furthest = 0.5 / num_values
  moved = _largest_mean(min(1.0, of_sample / (1 + furthest) + away.mean() / (1 + furthest)),
                        np.log(1 / ((1 - SHARE) * risk)) / number) * (1 + furthest)
  return UpperBound(float(upper), float(min(1.0, moved)), error)


def _largest_mean(mean: float, entropy: float) -> float:
  """The largest q with kl(mean, q) <= ``entropy``: above it numbers in [0, 1] seldom have so small a mean."""
  low, high = mean, 1.0
  for _ in range(60):
    q = (low + high) / 2
    terms = ((p, r) for p, r in ((mean, q), (1 - mean, 1 - q)) if p > 0)
    divergence = sum(p * np.log(p / r) if r > 0 else np.inf for p, r in terms)
    low, high = (q, high) if divergence <= entropy else (low, q)
  return high
