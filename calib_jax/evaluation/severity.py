"""Calibration errors by the severity of corruptions."""

from collections.abc import Hashable, Mapping, Sequence
import re

import numpy as np

from calib_jax import metrics

CORRUPTED = re.compile(r"(.+)_([1-5])")


def by_severity(tables: Mapping[str, Mapping[str, Mapping[str, Mapping]]], test_set: str,
                rows: Sequence[tuple[str, str]]) -> dict[Hashable, dict[int, dict[str, float]]]:
  """Averages the ECE of sets such as ``fog_1`` and ``snow_1`` over corruptions.

  Args:
    tables: ``{set: {model: {calibrator: {metric: cell}}}}``.
    test_set: the set that is not corrupted, which is severity 0.
    rows: pairs of model and calibrator; those that lack a corrupted set are left out.

  Returns:
    ``{row: {severity: {"mean", "within_subject_sem", "num_corruptions"}}}``, in which the standard error is that of
    differences between rows (corruptions are the subjects), nan if there is one corruption or one row; empty without
    such sets.
  """
  sets: dict[int, list[str]] = {}
  for name in tables:
    match = CORRUPTED.fullmatch(name)
    if match and name != test_set:
      sets.setdefault(int(match[2]), []).append(name)
  rows = [(model, label) for model, label in rows if all(
    label in tables[name].get(model, {}) for names in sets.values() for name in names)]
  found: dict[Hashable, dict[int, dict[str, float]]] = {}
  for severity in sorted(sets):
    values = np.array([[tables[name][model][label]["ece"]["estimate"] for model, label in rows]
                       for name in sets[severity]], np.float32)
    error = float(metrics.within_subject_sem(values)) if min(values.shape) > 1 else float("nan")
    for row, mean in zip(rows, values.mean(0), strict=True):
      start = {"mean": tables[test_set][row[0]][row[1]]["ece"]["estimate"], "within_subject_sem": float("nan"),
               "num_corruptions": 0}
      found.setdefault(row, {0: start})[severity] = {"mean": float(mean), "within_subject_sem": error,
                                                     "num_corruptions": len(values)}
  return found
