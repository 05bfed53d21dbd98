"""Intervals of means of values that have bounds: shares, losses and costs, of examples or of groups of them."""

from jax.typing import ArrayLike
import numpy as np
from scipy import optimize, special

from calib_jax.intervals import draws


def of_groups(values: np.ndarray, groups: ArrayLike | None) -> np.ndarray:
  """The mean of the ``[N]`` values of each group, or the values without groups.

  Groups are independent of each other and have these means as values, whatever their sizes. The mean over examples is a
  ratio of two sums over groups, and a few large groups that nobody has drawn yet may have most of it.
  """
  groups, number = draws.group_numbers(groups, len(values))
  return values if groups is None else np.bincount(groups, values, number) / np.bincount(groups, minlength=number)


def binomial_interval(rate: float, n: int, level: float) -> tuple[float, float]:
  """The exact interval of a rate among n examples (Clopper & Pearson 1934)."""
  tail, hits = (1 - level) / 2, rate * n  # By scipy.special, because the import of scipy.stats takes 0.4 s.
  return (float(special.betaincinv(hits, n - hits + 1, tail)) if hits > 0 else 0.0,
          float(special.betainccinv(hits + 1, n - hits, tail)) if hits < n else 1.0)


def mean_interval(values: np.ndarray, bounds: tuple[float, float], level: float = 0.95,
                  groups: ArrayLike | None = None) -> tuple[float, float, float]:
  r"""The mean of ``[N]`` values, or of the groups' in ``of_groups``, and the ends of the interval of its expectation.

  An upper end is the largest m with n max_λ mean log(1 + λ (m - v)) ≤ -log(1 - ``level``), and a lower one likewise;
  the λ are those for which no value within the bounds makes the logarithm infinite (the best of the bets of
  Waudby-Smith & Ramdas 2024, known in hindsight). A rare value of high cost that no example has is allowed for, as
  Student's t does not. Simulations, not a proof, show that it holds the expectation often enough: docs/thresholds.md.
  """
  values, total = of_groups(values, groups), -np.log1p(-level)
  distinct, counts = np.unique(values, return_counts=True)
  mean = float(values.mean())
  low = -_upper_end(-distinct, counts / len(values), -bounds[0], total / len(values))
  return mean, min(low, mean), max(_upper_end(distinct, counts / len(values), bounds[1], total / len(values)), mean)


def _upper_end(values: np.ndarray, shares: np.ndarray, bound: float, most: float) -> float:
  """The largest mean whose divergence from the ``shares`` of distinct ``values`` below a bound is at most ``most``."""
  mean = float(shares @ values)
  width = bound - mean
  if width <= 1e-12 * max(abs(bound), abs(mean)):
    return bound
  # With the best λ of a mean m, and r = λ width / (1 + λ (m - mean)), m - mean is width s / (1 + r s), s = shift(r).
  above = (values - mean) / width

  def shift(r):
    return shares @ (above / (1 - r * above))

  def excess(r):
    return np.log1p(r * shift(r)) + shares @ np.log1p(-r * above) - most

  highest = 1 - 1e-12
  if excess(highest) <= 0:  # The λ is the largest that no value within the bounds makes infinite.
    return bound - width * float(np.exp(shares @ np.log1p(-highest * above) - most))
  r = optimize.brentq(excess, 0, highest)
  return mean + width * float(shift(r) / (1 + r * shift(r)))
