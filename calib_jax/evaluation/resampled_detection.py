"""How well a score separates two sets in many resamples of the same examples, in NumPy.

As in ``resampled_errors``, a resample is how often each example counts, and the examples are sorted once. The values
are the ones that ``metrics.auroc`` and ``metrics.fpr_at_tpr`` use.
"""

import numpy as np

from calib_jax.evaluation.resampled_errors import prefix_sums
from calib_jax.metrics import formulas

TPR = 0.95


class Separation:
  """A score of the examples of two sets; higher is meant to be inside."""

  def __init__(self, inside: np.ndarray, outside: np.ndarray):
    """Sorts the scores ``inside`` ``[N]`` and ``outside`` ``[M]``."""
    self.orders = [np.argsort(x, kind="stable") for x in (inside, outside)]
    inside, outside = (x[order] for x, order in zip((inside, outside), self.orders, strict=True))
    self.lower, self.not_higher = (outside.searchsorted(inside, side) for side in ("left", "right"))
    self.inside_not_higher = inside.searchsorted(outside, "right")

  def measures(self, inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """Returns ``[R, 3]``: AUROC, and the FPR at a TPR of 95% with either set as positives; nan if one is missing."""
    inside, outside = (x.take(order, axis=1) for x, order in zip((inside, outside), self.orders, strict=True))
    num_inside, num_outside = (prefix_sums(x, np.int32) for x in (inside, outside))
    total_inside, total_outside = num_inside[:, -1], num_outside[:, -1]
    # Each example inside contributes the examples outside that score lower, and half of those that tie with it.
    below = num_outside[:, self.lower]
    if np.any(self.lower != self.not_higher):
      below = (below + num_outside[:, self.not_higher]) / 2
    area = np.einsum("rn,rn->r", inside, below, dtype=np.float64)
    # The highest threshold with enough positives is the score of the last one before which few enough are left out.
    needed = formulas.fewest(total_inside, TPR)
    place = np.minimum((num_inside[:, 1:] <= (total_inside - needed)[:, None]).sum(1), inside.shape[1] - 1)
    row = np.arange(len(inside))
    alarms = total_outside - num_outside[row, self.lower[place]]
    needed = formulas.fewest(total_outside, TPR)
    place = np.minimum((num_outside[:, 1:] < needed[:, None]).sum(1), outside.shape[1] - 1)
    outside_alarms = num_inside[row, self.inside_not_higher[place]]
    with np.errstate(invalid="ignore", divide="ignore"):
      values = np.stack([area / (total_inside * total_outside.astype(np.float64)), alarms / total_outside,
                         outside_alarms / total_inside], axis=1)
    values[(total_inside == 0) | (total_outside == 0)] = np.nan
    return values
