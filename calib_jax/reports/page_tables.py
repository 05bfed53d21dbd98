"""The tables of the page after the first two, each ``{"title", "head", "rows"}``; one without rows is not shown."""

from collections.abc import Mapping
from typing import Any

from calib_jax import evaluation
from calib_jax.evaluation import choice
from calib_jax.evaluation import class_groups as groups_of_classes
from calib_jax.evaluation.results import FLOORED, format_cell

PLAIN = {"loses": False}  # A row that is not marked as losing accuracy.


def selection(results: evaluation.Results) -> dict[str, Any]:
  """Returns the scores by which ``auto`` chose a calibrator."""
  rows = []
  for model, of_seeds in results.selection.items():
    for seed, found in enumerate(of_seeds):
      for name, score in found[choice.SCORES].items():
        mark = "chosen" if name == found[choice.CHOSEN] else ""
        rows.append(PLAIN | {"cells": [model, str(seed), name, f"{score['score']:.4f}", f"{score['excess']:.4f}",
                                       f"{score['standard_error']:.4f}", mark]})
  return {"title": "What auto chose: NLL out of fold on the data that it was fitted to; the simplest candidate within "
          "one standard error of the lowest", "head": ["model", "seed", "candidate", "NLL", "above the lowest",
                                                       "standard error", "choice"], "rows": rows}


def seeds(results: evaluation.Results) -> dict[str, Any]:
  """Returns means over seeds with their standard errors, and Cohen's d against the first model."""
  shown = {key: metric for key, metric in evaluation.METRICS.items() if metric.is_main}
  rows = []
  for set_name, effects in results.effects.items():
    for name, found in effects.items():
      cells = [set_name, name]
      for key, metric in shown.items():
        digits, cell = 2 if metric.scale == 100 else 4, found[key]
        effect = f", d = {cell['cohens_d']:.1f}" if "cohens_d" in cell else ""
        cells.append(f"{metric.scale * cell['mean']:.{digits}f} ± {metric.scale * cell['sem']:.{digits}f}{effect}")
      rows.append(PLAIN | {"cells": cells})
  baseline = next(iter(next(iter(results.tables.values()))))
  return {"title": f"Over seeds: mean ± standard error, and Cohen's d against {baseline}",
          "head": ["evaluated on", "row", *(metric.heading for metric in shown.values())], "rows": rows}


def severity(results: evaluation.Results) -> dict[str, Any]:
  """Returns the ECE by the severity of corruptions."""
  levels = list(next(iter(results.severity.values()), {}))
  rows = [PLAIN | {"cells": [row, *(_with_error(found[level]) for level in levels)]}
          for row, found in results.severity.items()]
  return {"title": "ECE % by severity: mean over corruption types ± within-subject standard error",
          "head": ["row", *(f"severity {level}" if level else "test set" for level in levels)], "rows": rows}


def _with_error(found: Mapping[str, float]) -> str:
  error = found["within_subject_sem"]
  return f"{100 * found['mean']:.2f}" + ("" if error != error else f" ± {100 * error:.2f}")


def class_groups(results: evaluation.Results) -> dict[str, Any]:
  """Returns the scores of head, medium and tail classes."""
  rows = []
  for set_name, found in results.class_groups.items():
    for row, by_group in found.items():
      for group, cells in by_group.items():
        rows.append(PLAIN | {"cells": [set_name, row, group, *(
          format_cell(cells[key], evaluation.METRICS[key].scale) for key in groups_of_classes.MEASURED)]})
  return {"title": "Head, medium and tail classes: thirds of the classes by their number of training examples. The ECE "
          "of a group is above 0 for a calibrated model too, because groups are chosen by the label",
          "head": ["evaluated on", "row", "classes", "accuracy %", "NLL", "ECE %"], "rows": rows}


def conventions(results: evaluation.Results) -> dict[str, Any]:
  """Returns the calibration errors as other tools compute them."""
  found = next(iter(results.stability.values()), {})
  names = list(next(iter(found.values()), {}))
  rows = [PLAIN | {"cells": [name, min(errors, key=errors.get), *(f"{100 * errors[row]:.2f}" for row in names)]}
          for name, errors in found.items()]
  return {"title": f"Calibration error in %, by the conventions of other tools ({FLOORED.upper()} as each computes it)",
          "head": ["convention", "lowest", *names], "rows": rows}


def detection(results: evaluation.Results) -> dict[str, Any]:
  """Returns how well confidence scores detect out-of-distribution sets."""
  rows, keys = [], ("auroc", "fpr_at_95_tpr", "auroc_outside", "fpr_at_95_tpr_outside")
  for set_name, models in results.detection.items():
    for model, table in models.items():
      for label, scores in table.items():
        rows += [PLAIN | {"cells": [set_name, model, label, score, *(format_cell(found[key], 100) for key in keys)]}
                 for score, found in scores.items()]
  return {"title": "Detection of out-of-distribution sets",
          "head": ["set", "trained with", "calibrated by", "score", "AUROC %", "FPR95 %", "AUROC %, outside positive",
                   "FPR95 %, outside positive"], "rows": rows}
