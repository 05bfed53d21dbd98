"""At most how large the true calibration error is: a bound for every N that assumes nothing of the predictions."""

from typing import NamedTuple

from jax.typing import ArrayLike
import numpy as np

from calib_jax import _checks as checks

FACTOR = 8.0  # κ = (8 log(1 / δ) / N)^(1/2) was near the best for all models and N of experiments/upper_bound.py.
RATIOS = 1 + np.geomspace(1e-3, 4, 40)  # Of λ to κ.
OFFSETS = np.arange(0, 4, 0.02)  # Of μ from b, in standard deviations; beyond them φ's bound by its tail is as good.


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
  r"""An upper confidence bound of the true calibration error, for every N and whatever the predictions are.

  Use it for a promise: the error is at most so large. Rows must be independent draws of one distribution.

  No test can bound the error of predictions that never repeat, because what they hide between examples is unseen. So
  the bound is of the predictions rounded to the nearest of 0, 1/m, …, 1 (m is ``num_values``):

  .. math:: E = \mathrm{E}\,|μ_g - g|, \quad μ_b = \mathrm{E}[A \mid g = b], \qquad
    \hat E = \frac{T}{N}, \quad T = \sum_b \Big|\sum_{i: g_i = b} (a_i - b)\Big|

  with g the rounded confidence and A whether the prediction is correct. Given the predictions, the mean of
  :math:`e^{-λ T}` is :math:`\prod_b φ_b(μ_b)`, where :math:`φ_b(μ) = \mathrm{E}\,e^{-λ |S - n_b b|}` for a binomial S
  of n_b examples. And :math:`\mathrm{E} \prod_i (1 - κ |μ_{g_i} - g_i|) = (1 - κ E)^N \le e^{-κ N E}`. So by Markov's
  inequality, with the probability 1 - δ,

  .. math:: κ N E \le \min_λ \Big(λ T + \sum_b \max_μ \big(\log φ_b(μ) - n_b \log(1 - κ |μ - b|)\big)\Big) +
    \log \frac{1}{δ}

  λ may be chosen after T is seen, as the bound of T's tail given the predictions grows with T (Chernoff); κ is fixed by
  N. Noise alone gives a calibrated model some :math:`\hat E`, and φ takes account of it. The predictions f themselves
  are at most E|μ_g - g| + E|f - g| from the calibrated μ_g, which is bounded in the same way.

  Args:
    confidence: ``[N]`` floats in [0, 1].
    correct: ``[N]`` bools, zeros and ones, or credits in [0, 1]: with any between them φ is replaced by a bound of it
      (Hoeffding), which is wider.
    level: 1 - δ, the probability that the bounds hold, in (0, 1); each by itself.
    num_values: m, at least 1; few values have little noise, and many are close to the predictions. It must not be
      chosen by these examples.

  Returns:
    The two bounds and the error on these examples, in fractions; the bounds are 1 without examples.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  References:
    Chernoff 1952; Hoeffding 1963; the combination is of this library. The distance is that of Błasiok et al. 2023b.

  >>> rng = np.random.default_rng(0)
  >>> confidence = rng.uniform(0.5, 1, 20_000)
  >>> bound = calibration_error_upper(confidence, rng.uniform(size=20_000) < confidence)
  >>> round(bound.upper, 3), round(bound.distance, 3)
  (0.014, 0.026)
  """
  checks.options(level=(level, "(0, 1)"), num_values=(num_values, "integer [1, inf)"))
  confidence, correct = np.asarray(confidence), np.asarray(correct)
  checks.rank(confidence, 1, "confidence", "[N]")
  checks.pair_values(confidence, correct, kind=checks.CREDITS)
  number = len(confidence)
  if not number:
    return UpperBound(1.0, 1.0, 0.0)
  f, a = confidence.astype(np.float64), correct.astype(np.float64)
  value = np.rint(f * num_values).astype(np.int64)
  counts = np.bincount(value)
  gap = float(np.abs(np.bincount(value, a - value / num_values)).sum())
  # The mean distance of a value's predictions from it, as a share of the most, 1/(2 m).
  furthest = 0.5 / num_values
  shares = np.bincount(value, np.abs(f - value / num_values)) / np.maximum(counts, 1) / furthest
  risk = np.log(1 / (1 - level))
  kappa = min(0.9 / (1 + furthest), np.sqrt(FACTOR * risk / number))
  total = gap * kappa * RATIOS + risk
  is_binary = bool(np.isin(a, (0, 1)).all())
  for b in np.flatnonzero(counts):
    rounding = (1 - shares[b], 0.0), (shares[b], furthest)
    total = total + np.max([_largest(int(counts[b]), b / num_values, sign, kappa, rounding, is_binary)
                            for sign in (1, -1)], axis=0)
  upper, distance = np.minimum(1, total.min(axis=1) / (kappa * number))
  return UpperBound(float(upper), float(distance), gap / number)


def _largest(number: int, b: float, sign: int, kappa: float, rounding: tuple[tuple[float, float], ...], is_binary: bool
             ) -> np.ndarray:
  """The maxima over the μ on one side of b, ``[2, len(RATIOS)]``: for E, and for the distance with ``rounding``."""
  most, lambdas = 1 - b if sign > 0 else b, kappa * RATIOS
  if most <= 0:
    return np.full((2, len(lambdas)), -np.inf)

  def cost(d, away):
    return -number * np.log1p(-kappa * (d + away))

  def tail(d):
    """The log of E exp(-λ sign (S - n b)), which is at least φ: of a binomial S it is the largest (Hoeffding)."""
    return number * (np.log1p(np.expm1(-sign * lambdas) * (b + sign * d)) + sign * lambdas * b)

  if is_binary:
    deviation = np.sqrt(number * b * (1 - b) + 1)
    d = OFFSETS * deviation / number
    d = np.append(d[d < most], min(most, d[-1]))
    logs = _cells(number, b, b + sign * d, deviation, lambdas)
    d, start = d[1:, None], d[-1]  # A cell's cost is the one at its far end.
    near = np.array([(logs + cost(d, 0.0)).max(axis=0), (logs + sum(w * cost(d, r) for w, r in rounding)).max(axis=0)])
  else:  # Up to start, φ is bounded by 1, and the cost grows.
    near, start = np.full((2, 1), -np.inf), np.abs(np.expm1(-sign * lambdas * b) / np.expm1(-sign * lambdas) - b)
  # Beyond, tail + cost is n times the log of a quotient of two linear functions of d, whose maximum is at an end.
  far = {r: np.maximum(*(tail(d) + cost(d, r) for d in (start, most))) for r in (0.0, rounding[1][1])}
  return np.maximum(near, [far[0.0], sum(w * far[r] for w, r in rounding)])


def _cells(number: int, b: float, mu: np.ndarray, deviation: float, lambdas: np.ndarray) -> np.ndarray:
  """Upper bounds of log φ between neighbours of ``mu``, ``[len(mu) - 1, len(lambdas)]``.

  φ is a Bernstein polynomial whose coefficients rise, then fall, and so does φ: it is largest at an end of a cell,
  unless its maximum is in the cell, where it grows by at most the factor exp(n (e^λ - 1) times the cell's width).
  """
  reach = 4 * deviation + 9 * np.sqrt(deviation**2 + 4 * deviation)  # Nine standard deviations of the furthest μ.
  s = np.arange(max(0, int(number * b - reach)), min(number, int(number * b + reach) + 1) + 1)
  ratios = np.concatenate([[0.0], np.cumsum(np.log((number - s[:-1]) / (s[:-1] + 1)))])
  mu = np.clip(mu, 1e-300, 1 - 1e-16)
  chance = ratios + s * (np.log(mu) - np.log1p(-mu))[:, None]
  chance = np.exp(chance - chance.max(axis=1, keepdims=True))
  phi = chance @ np.exp(-np.abs(s - number * b)[:, None] * lambdas) / chance.sum(axis=1, keepdims=True)
  logs = np.log(phi)
  cells = np.maximum(logs[:-1], logs[1:])
  top, column = logs.argmax(axis=0), np.arange(len(lambdas))
  for cell in (np.maximum(top - 1, 0), np.minimum(top, len(cells) - 1)):
    cells[cell, column] = logs[top, column] + number * np.expm1(lambdas) * np.abs(mu[cell + 1] - mu[cell])
  return cells
