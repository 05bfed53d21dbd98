"""Sets of classes that hold the true one with a given probability: split conformal prediction."""

import math
from typing import NamedTuple
import warnings

import jax
from jax.typing import ArrayLike
import numpy as np

from calib_jax import _checks as checks
from calib_jax.intervals.draws import group_numbers

METHODS = ("lac", "aps", "raps")
ALL_CLASSES = ("the quantile of the scores is 1 or more, so that sets hold every class that is possible; there are too "
               "few examples for the coverage, or too many true classes have a probability near 0")
TOLERANCE = 1e-12  # Of cumulative sums, so that rounding leaves no class out that had the same score in calibration.


class SetRule(NamedTuple):
  """A rule that maps probabilities ``[N, K]`` to sets, bools ``[N, K]``; made by ``prediction_sets``.

  Printed, it is a sentence, which says where sets hold every possible class.

  Attributes:
    quantile: the largest score of a class in the set; ``[K]`` if ``by_class``. It is inf where there were too few
      examples for the coverage, so that the set has the class always.
    method: ``"lac"``, ``"aps"`` or ``"raps"``.
    coverage: the asked coverage.
    n: the number of calibration examples.
    penalty: of ``"raps"``, for each class beyond ``rank``.
    rank: of ``"raps"``, how many classes are not penalised.
  """

  quantile: np.ndarray
  method: str
  coverage: float
  n: int
  penalty: float = 0.0
  rank: int = 0

  def __call__(self, probs: ArrayLike, *, key: jax.Array | None = None) -> np.ndarray:
    """The sets ``[N, K]`` of probabilities ``[N, K]``; ``key`` as in ``prediction_sets``."""
    scores, above = _scores(classified(probs)[0], self, key)
    sets = scores <= self.quantile + TOLERANCE
    # The class that crosses the quantile: the scores of all more probable ones are below it.
    return sets if key is not None or above is None else sets | (above < self.quantile - TOLERANCE)

  @property
  def all_classes(self) -> bool:
    """Whether the quantile is 1 or more, of any class: sets hold every class, at least every one of p above 0."""
    return bool(np.any(self.quantile >= 1 - TOLERANCE))

  def __str__(self) -> str:
    """One sentence for people."""
    sentence = f"{self.method} sets for a coverage of {100 * self.coverage:g}%, of {self.n:,} examples"
    return f"{sentence}: {ALL_CLASSES}" if self.all_classes else sentence


def prediction_sets(probs: ArrayLike, labels: ArrayLike, *, coverage: float = 0.9, method: str = "lac",
                    by_class: bool = False, penalty: float = 0.01, rank: int = 5, key: jax.Array | None = None,
                    groups: ArrayLike | None = None) -> SetRule:
  r"""The rule whose sets hold the true class with probability ``coverage`` at least, for exchangeable examples.

  With the scores s of the true classes of n calibration examples, a set has the classes whose score is at most the k-th
  smallest of these, k the ceiling of (n + 1) ``coverage``:

  .. math:: \text{lac: } s_k = 1 - p_k, \qquad \text{aps: } s_k = \sum_{j:\, p_j > p_k} p_j + u\, p_k, \qquad
    \text{raps: } s_k = \text{aps} + \lambda \max(0, r_k - k_0)

  with u = 1, or uniform on [0, 1] if there is a ``key``, and :math:`r_k` one more than the number of classes of higher
  probability, so that equal probabilities are treated alike. A class of probability 0 has the score infinity in APS and
  RAPS: it belongs to a set only if the quantile is infinite. LAC has the smallest sets on average, and they may be
  empty; APS and RAPS adapt to the example.

  Without a key, sets of APS and RAPS also hold the class that crosses the quantile, all of whose more probable classes
  have scores below it, as in the code of Angelopoulos et al.: no set is empty, also where the model is surest, and sets
  hold the true class more often than asked. With a key the coverage is exact, and some sets of sure examples are empty.
  Coverage is that over draws of the calibration set and the new example together. A temperature changes the sets of APS
  and RAPS, and can make them larger; of LAC it changes how sizes are spread.

  Of ``groups``, whose rows depend on each other, each counts once: the quantile is the smallest score s for which

  .. math:: \sum_g \frac{1}{m_g} \, |\{i \in g: s_i \le s\}| \ge (G + 1) \text{ coverage}

  with :math:`m_g` rows in group g of G. A random row of a new group then has its true class in the set with probability
  ``coverage`` at least, for exchangeable groups (Lee et al. 2023); without groups that is the rule above.

  Args:
    probs: ``[N, K]`` probabilities of calibration examples.
    labels: ``[N]`` integers in ``[0, K)``.
    coverage: the asked coverage, in (0, 1).
    method: ``"lac"`` (Sadinle et al. 2019), ``"aps"`` (Romano et al. 2020) or ``"raps"`` (Angelopoulos et al. 2020).
    by_class: whether each class has a quantile of its own, by which the coverage holds within every class.
    penalty: λ of RAPS, at least 0.
    rank: k₀ of RAPS, the number of classes without a penalty.
    key: draws u; by default u is 1. Give rules of a key another key for new examples.
    groups: optional ``[N]`` integers; rows of one value depend on each other, such as questions about one text.

  Returns:
    The rule. A warning says if its quantile is 1 or more, so that sets hold every possible class.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  >>> probs = np.array([[0.7, 0.2, 0.1], [0.5, 0.4, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
  >>> rule = prediction_sets(probs, np.array([0, 1, 1, 2]), coverage=0.8)
  >>> rule(np.array([[0.45, 0.5, 0.05], [0.9, 0.06, 0.04]])).astype(int).tolist()
  [[1, 1, 0], [1, 0, 0]]
  """
  checks.options(coverage=(coverage, "(0, 1)"), method=(method, METHODS), penalty=(penalty, "[0, inf)"),
                 rank=(rank, "integer [0, inf)"))
  probs, labels = classified(probs, labels)
  rule = SetRule(np.array(math.inf), method, coverage, len(labels), *((penalty, rank) if method == "raps" else ()))
  scores = np.take_along_axis(_scores(probs, rule, key)[0], labels[:, None], axis=1)[:, 0]
  group, _ = group_numbers(groups, len(labels))
  parts = [labels == k for k in range(probs.shape[1])] if by_class else [slice(None)]
  quantiles = [_quantile(scores[part], coverage, None if group is None else group[part]) for part in parts]
  rule = rule._replace(quantile=np.array(quantiles if by_class else quantiles[0]))
  if rule.all_classes:
    warnings.warn(f"prediction_sets: {ALL_CLASSES}.", UserWarning, stacklevel=2)
  return rule


def classified(probs: ArrayLike, labels: ArrayLike | None = None) -> tuple[np.ndarray, np.ndarray | None]:
  """Probabilities ``[N, K]`` as float64, and labels ``[N]`` if there are any, of at least one example, checked."""
  probs = np.asarray(probs)
  if probs.ndim != 2 or not len(probs):
    raise ValueError(f"probs must have shape [N, K] with N of at least 1: got shape {probs.shape}.")
  checks.class_values(probs, np.zeros(len(probs), np.int32) if labels is None else labels)
  return probs.astype(np.float64), None if labels is None else np.asarray(labels).astype(np.int64)


def _quantile(scores: np.ndarray, coverage: float, group: np.ndarray | None) -> float:
  """The ⌈(n + 1) coverage⌉-th smallest of n scores, where each group counts once; inf if there are too few."""
  if group is None:
    place = math.ceil((len(scores) + 1) * coverage - 1e-9)
    return float(np.partition(scores, place - 1)[place - 1]) if place <= len(scores) else math.inf
  sizes, order = np.bincount(group, minlength=1), np.argsort(scores)
  counted = np.cumsum(1 / sizes[group[order]])
  place = int(np.searchsorted(counted, (np.count_nonzero(sizes) + 1) * coverage - 1e-9))
  return float(scores[order[place]]) if place < len(scores) else math.inf


def _scores(probs: np.ndarray, rule: SetRule, key: jax.Array | None) -> tuple[np.ndarray, np.ndarray | None]:
  """The score of each class ``[N, K]``, low where it belongs to the set; and of all more probable classes.

  LAC has no such order of classes, and None.
  """
  if rule.method == "lac":
    return 1 - probs, None
  order = np.argsort(-probs, axis=1, kind="stable")
  ordered = np.take_along_axis(probs, order, axis=1)
  place = np.arange(probs.shape[1])
  # The number of more probable classes, which is the place of the first class of equal probability.
  higher = np.maximum.accumulate(np.where(np.diff(ordered, axis=1, prepend=2) < 0, place, 0), axis=1)
  sums = np.concatenate([np.zeros((len(probs), 1)), np.cumsum(ordered, axis=1)], axis=1)
  mass = np.take_along_axis(sums, higher, axis=1)
  u = 1.0 if key is None else np.asarray(jax.random.uniform(key, (len(probs), 1)), np.float64)
  scores = mass + u * ordered + rule.penalty * np.maximum(higher + 1 - rule.rank, 0)
  above = mass + rule.penalty * np.maximum(higher - rule.rank, 0)
  is_possible = ordered > 0
  results = []
  for x in (scores, above):
    unordered = np.empty_like(x)
    np.put_along_axis(unordered, order, np.where(is_possible, x, math.inf), axis=1)
    results.append(unordered)
  return tuple(results)
