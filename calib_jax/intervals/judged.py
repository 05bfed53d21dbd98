"""How often answers are right, where a judge says so of all of them and a person of some."""

from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from calib_jax.intervals.groups import standard_error

FEWEST = 20  # Answers, or groups of them, with a person's verdict, below which there is no interval.


class JudgedMean(NamedTuple):
  """A share with its interval; the ends are NaN where there are fewer than ``FEWEST`` answers or groups."""

  estimate: float
  low: float
  high: float


def judged_mean(correct: np.ndarray, judged: np.ndarray, judged_others: np.ndarray, *, level: float = 0.95,
                groups: np.ndarray | None = None, groups_others: np.ndarray | None = None) -> JudgedMean:
  r"""The share of right answers, by what persons say of those that the judge accepts and of those that it does not.

  .. math:: \hat\theta = q \, p_1 + (1 - q) \, p_0

  with the share q of all answers that the judge accepts, and the shares :math:`p_1` and :math:`p_0` that are right, by
  persons, of those that it accepts and of those that it does not. For verdicts this is the prediction-powered mean of
  the smallest variance (Angelopoulos et al. 2023): a judge that is often wrong gains little, and misleads never. The
  interval joins Wilson's intervals of the three shares by their squares (Zou & Donner 2008), so that it is no point
  where all persons agree with the judge.

  Args:
    correct: bools ``[n]``, the verdicts of persons.
    judged: bools ``[n]``, the judge's of the same answers.
    judged_others: bools ``[m]``, the judge's of answers without a person's; all must have been drawn alike.
    level: the level of the interval.
    groups: optional integers ``[n]``; answers of one value depend on each other.
    groups_others: the same of the others, ``[m]``, if there are groups.

  Returns:
    The estimate with its interval.

  >>> rng = np.random.default_rng(0)
  >>> correct = rng.random(1000) < 0.7
  >>> judge = np.where(rng.random(1000) < 0.9, correct, ~correct)
  >>> mean = judged_mean(correct[:200], judge[:200], judge[200:])
  >>> [round(x, 2) for x in mean]
  [0.66, 0.62, 0.71]
  """
  correct, judged, others = (np.asarray(x, bool) for x in (correct, judged, judged_others))
  every = np.concatenate([judged, others])
  accepted = _share(every, _repeats(every.astype(float), None if groups is None else np.append(groups, groups_others)),
                    level)
  weights = np.array([1 - accepted[0], accepted[0]])  # Of what the judge does not accept, and of what it does.
  means = np.array([correct[judged == kind].mean() if (judged == kind).any() else 0.5 for kind in (False, True)])
  place = judged.astype(int)
  # What each answer adds to the estimate says how many independent answers those of groups are worth.
  added = (correct - means[place]) * (weights / np.maximum(np.bincount(place, minlength=2), 1))[place]
  repeats = _repeats(added, groups)
  shares = [_share(correct[judged == kind], repeats, level) for kind in (False, True)]
  estimate = float(weights @ means)
  if (len(correct) if groups is None else len(np.unique(groups))) < FEWEST:
    return JudgedMean(estimate, np.nan, np.nan)
  slope, (q, least, most) = means[1] - means[0], accepted
  below = [*(w * (p - low) for w, (p, low, _) in zip(weights, shares, strict=True)),
           slope * (q - (least if slope > 0 else most))]
  above = [*(w * (high - p) for w, (p, _, high) in zip(weights, shares, strict=True)),
           slope * ((most if slope > 0 else least) - q)]
  return JudgedMean(estimate, max(estimate - float(np.linalg.norm(below)), 0.0),
                    min(estimate + float(np.linalg.norm(above)), 1.0))


def _repeats(values: np.ndarray, groups: np.ndarray | None) -> float:
  """How many values of groups are worth an independent one: at least 1, and their mean number where none vary."""
  if groups is None:
    return 1.0
  error = standard_error(values)
  return max(1.0, (standard_error(values, groups) / error) ** 2) if error > 0 else len(groups) / len(np.unique(groups))


def _share(values: np.ndarray, repeats: float, level: float) -> tuple[float, float, float]:
  """A share with Wilson's interval of values, so many of which are worth one."""
  if not len(values):
    return 0.5, 0.0, 1.0
  share, count, z = float(values.mean()), len(values) / repeats, float(ndtri((1 + level) / 2))
  centre, width = share + z**2 / (2 * count), z * np.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
  return share, float((centre - width) / (1 + z**2 / count)), float((centre + width) / (1 + z**2 / count))
