"""The columns of the calibration and the refinement part of the log loss, which are computed on request."""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from calib_jax.evaluation.columns import LossPart, computed_by
from calib_jax.evaluation.results import Estimate, Values
from calib_jax.intervals import resamples
from calib_jax.metrics import decomposition
from calib_jax.predictions.calibrated import Calibrated
from calib_jax.predictions.predictions import Predictions


def removed(parts: Sequence[Predictions | Calibrated]) -> np.ndarray | None:
  """What recalibration removes of the log loss of each example and seed, for ``Values.removed``, float32 ``[N, S, 3]``.

  None if there are fewer examples or groups than folds. All probabilities of a seed are in memory at once, because
  recalibrations are fitted to them.
  """
  groups = Calibrated.of(parts[0]).part.groups
  columns = []
  for source in map(Calibrated.of, parts):
    labels = source.part.labels
    if len(labels if groups is None else np.unique(groups)) < decomposition.NUM_FOLDS:
      return None
    probs = np.empty(source.part.logits.shape, np.float32)
    for rows, _, log_probs in source.chunks():
      probs[rows] = source.probs(rows, log_probs)
    columns.append(decomposition.of_examples(probs, labels, np.ones(len(labels), np.float32), groups)["nll"])
  return np.stack(columns, axis=1)


def estimates(rows: Mapping[Hashable, Values], *, key, num_resamples: int, block: np.ndarray | None = None
              ) -> dict[Hashable, dict[str, Estimate]]:
  """Estimates the two parts, as ``metrics.calibration_refinement`` does; with several seeds, of the mean over them.

  ``block`` is what ``resamples.blocks_of`` returns. Rows without ``Values.removed`` have no estimates.
  """
  rows = {row: values for row, values in rows.items() if values.removed is not None}
  if not rows:
    return {}
  means = np.stack([values.removed.mean(axis=1, dtype=np.float64) for values in rows.values()])  # [rows, N, 3]
  *sums, sizes = resamples.summed(block, means.transpose(0, 2, 1).reshape(-1, means.shape[1]))
  sums = np.stack(sums, axis=1).reshape(len(sizes), len(rows), -1).swapaxes(0, 1).copy()  # [rows, N or blocks, 3]
  groups = next(iter(rows.values())).groups if block is None else None

  def of_resamples(counts):
    counts = counts.astype(np.float64)
    return decomposition.five_means(np.einsum("rn,mnk->rmk", counts, sums) / (counts @ sizes)[:, None, None])

  ends = resamples.percentile(of_resamples, len(sizes), key=key, num_resamples=num_resamples, groups=groups)
  tables = {}
  for (row, values), *of_row in zip(rows.items(), *ends, strict=True):
    _, *parts = decomposition.parts(*of_row)
    of_seeds = decomposition.five_means(values.removed.mean(axis=0, dtype=np.float64))[:, (1, 3)].T
    tables[row] = {name: Estimate.around(parts[place].estimate, *parts[place], per_seed=of_seeds[place].tolist())
                   for name, (place,) in ((name, column.compute) for name, column in computed_by(LossPart).items())}
  return tables
