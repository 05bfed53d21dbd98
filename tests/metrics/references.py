"""Calibration errors in float64, plain loops over bins, written from their definitions."""

import numpy as np


def groups(confidence, num_bins, binning="equal_width", closed="right"):
  """The members of each bin, as arrays of indices; edges compared in the precision of the data."""
  if binning == "equal_mass":
    return np.array_split(np.argsort(confidence, kind="stable"), num_bins)
  found = []
  for j in range(num_bins):
    low, high = (confidence.dtype.type(e / num_bins) for e in (j, j + 1))
    if closed == "right":
      member = (confidence > low) & (confidence <= high) | ((j == 0) & (confidence == 0))
    else:
      member = (confidence >= low) & (confidence < high) | ((j == num_bins - 1) & (confidence == 1))
    found.append(np.flatnonzero(member))
  return found


def calibration_error(confidence, correct, num_bins=15, binning="equal_width", norm=1, form="bin", debias=False,
                      closed="right"):
  n, total, worst = len(confidence), 0.0, 0.0
  for index in groups(confidence, num_bins, binning, closed):
    if len(index) == 0:
      continue
    c, a = confidence[index].astype(np.float64), correct[index].astype(np.float64)
    gaps = np.abs(a.mean() - c) if form == "label" else np.full(len(c), abs(a.mean() - c.mean()))
    worst = max(worst, gaps.max())
    if debias:
      if len(c) > 1:
        total += len(c) / n * (gaps[0]**2 - a.mean() * (1 - a.mean()) / (len(c) - 1))
    elif norm != "max":
      total += np.sum(gaps**norm) / n
  return worst if norm == "max" else max(total, 0.0)**(1 / norm)
