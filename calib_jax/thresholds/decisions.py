"""Decisions under costs: the act of the lowest expected cost, and what the model is worth in costs."""

from typing import NamedTuple

from jax.typing import ArrayLike
import numpy as np

from calib_jax import _checks as checks
from calib_jax.thresholds.means import mean_interval, of_groups
from calib_jax.thresholds.sets import classified


class Decision(NamedTuple):
  """Acts, and what they cost.

  Attributes:
    acts: ``[N]``, the act of the lowest expected cost for each example.
    expected: what the model expects the acts to cost, the mean over examples.
    cost: what they cost by the labels; nan without labels, as all that follows.
    interval: of ``cost``, by ``means.mean_interval``.
    always: ``[actions]``, what it costs to take one act for all examples.
    saved: ``[actions]``, that less ``cost``: what the model is worth.
    saved_interval: ``[actions, 2]``, of ``saved``, by ``means.mean_interval`` of the differences of the same examples.
    cut: of two classes and two acts, the probability of class 1 from which act 1 costs less; else nan.
  """

  acts: np.ndarray
  expected: float
  cost: float
  interval: tuple[float, float]
  always: np.ndarray
  saved: np.ndarray
  saved_interval: np.ndarray
  cut: float


class NetBenefit(NamedTuple):
  """Net benefits at each threshold ``[T]``, in true positives per example: of the model, and of acting on all.

  Not to act has 0. ``low`` and ``high`` are the ends of the 95% interval of the model's.
  """

  thresholds: np.ndarray
  model: np.ndarray
  act_on_all: np.ndarray
  low: np.ndarray
  high: np.ndarray


def decision_threshold(probs: ArrayLike, costs: ArrayLike, labels: ArrayLike | None = None, *, level: float = 0.95,
                       groups: ArrayLike | None = None) -> Decision:
  r"""The Bayes act of each example under a cost matrix, and with labels what it costs against acting without a model.

  .. math:: a_i = \arg\min_a \sum_k C_{ak}\, p_{ik}

  With calibrated probabilities no other rule that knows the probabilities alone costs less. For two classes and two
  acts this is a cut: act 1 from :math:`p_1 = (C_{10} - C_{00}) / (C_{10} - C_{00} + C_{01} - C_{11})` on.

  Args:
    probs: ``[N, K]`` probabilities.
    costs: ``[actions, K]`` finite numbers: the cost of each act if the class is k.
    labels: optional ``[N]`` integers in ``[0, K)``.
    level: of the intervals, in (0, 1).
    groups: optional ``[N]`` integers, as in ``selective_threshold``: each group counts once, by its mean cost.

  Returns:
    The decision. Compare its ``cost`` with and without calibration: this is what calibration is worth.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  References:
    Elkan 2001, The foundations of cost-sensitive learning.

  >>> costs = np.array([[0.0, 10.0], [1.0, 0.0]])  # To miss costs 10, a false alarm 1.
  >>> probs = np.array([[0.95, 0.05], [0.8, 0.2], [0.3, 0.7], [0.9, 0.1]])
  >>> decision = decision_threshold(probs, costs, np.array([0, 0, 1, 0]))
  >>> decision.acts.tolist(), round(decision.cut, 3), decision.cost, decision.always.tolist()
  ([0, 1, 1, 1], 0.091, 0.5, [2.5, 0.75])
  """
  checks.options(level=(level, "(0, 1)"))
  (probs, labels), costs = classified(probs, labels), np.asarray(costs).astype(np.float64)
  if costs.ndim != 2 or costs.shape[1] != probs.shape[1] or not np.isfinite(costs).all():
    raise ValueError(f"costs must be finite numbers of shape [actions, {probs.shape[1]}]: got shape {costs.shape}.")
  believed = probs @ costs.T
  acts = np.argmin(believed, axis=1)
  expected = float(np.mean(of_groups(np.min(believed, axis=1), groups)))
  cut = np.nan
  if costs.shape == (2, 2):
    wrong = costs[1, 0] - costs[0, 0], costs[0, 1] - costs[1, 1]
    cut = float(wrong[0] / sum(wrong)) if min(wrong) >= 0 and sum(wrong) > 0 else np.nan
  if labels is None:
    empty = np.full(len(costs), np.nan)
    return Decision(acts, expected, np.nan, (np.nan, np.nan), empty, empty, np.full((len(costs), 2), np.nan), cut)
  own, of_acts = costs[acts, labels], costs[:, labels]  # What the acts cost, and what each one always would have.
  cost = mean_interval(own, (costs.min(), costs.max()), level, groups)
  saved = np.array([mean_interval(of_act - own, (less.min(), less.max()), level, groups)
                    for of_act, less in zip(of_acts, costs[:, None] - costs, strict=True)])
  always = np.array([of_groups(of_act, groups).mean() for of_act in of_acts])
  return Decision(acts, expected, cost[0], cost[1:], always, saved[:, 0], saved[:, 1:], cut)


def net_benefit(prob: ArrayLike, labels: ArrayLike, thresholds: ArrayLike) -> NetBenefit:
  r"""Decision curves: what it is worth to act where the probability is at or above a threshold t.

  .. math:: \mathrm{NB}(t) = \frac{\mathrm{TP}}{N} - \frac{\mathrm{FP}}{N}\, \frac{t}{1 - t}

  Args:
    prob: ``[N]`` probabilities of the class that calls for the act.
    labels: ``[N]`` bools: whether it is the class.
    thresholds: ``[T]`` numbers in (0, 1): the probability at which one would not mind either way.

  Returns:
    The net benefits.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  References:
    Vickers & Elkin 2006.

  >>> curve = net_benefit(np.array([0.9, 0.6, 0.3, 0.1]), np.array([True, False, True, False]), [0.2, 0.5])
  >>> curve.model.tolist(), curve.act_on_all.tolist()
  ([0.4375, 0.0], [0.375, 0.0])
  """
  prob, thresholds = np.asarray(prob).astype(np.float64), np.atleast_1d(np.asarray(thresholds, np.float64))
  checks.pair_values(prob, np.asarray(labels).astype(np.float64), names=("prob", "labels"), kind=checks.BINARY)
  labels = np.asarray(labels).astype(bool)
  if thresholds.ndim != 1 or not ((thresholds > 0) & (thresholds < 1)).all():
    raise ValueError("thresholds must have shape [T] and be in (0, 1).")
  odds = thresholds / (1 - thresholds)
  means = np.array([mean_interval(np.where(prob >= t, np.where(labels, 1.0, -o), 0.0), (-o, 1.0))
                    for t, o in zip(thresholds, odds, strict=True)]).reshape(-1, 3)
  share = labels.mean()
  return NetBenefit(thresholds, means[:, 0], share - (1 - share) * odds, means[:, 1], means[:, 2])
