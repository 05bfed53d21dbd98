"""Is an ensemble better calibrated jointly, by its members, than by the mean of their probabilities?

Run: python -m experiments.calibrators.members --runs DIR/runs … [--workdir=DIR]

The directories hold ensembles of five networks, which `python -m experiments.leaderboard --data=IMAGES.npz
[--network=resnet8] --only "ensemble of 5" --out=DIR` trains. All four ways are fitted to the validation images, and
judged by the log loss of the same test images: the pooled probabilities with a temperature, one temperature for all
members before they are pooled, the mean logits with a temperature, and `calibrators.joint_ensemble_scaling`.
"""

from collections.abc import Sequence
import pathlib
import re
import sys

import jax
import numpy as np
import pandas as pd

from calib_jax import calibrators
from calib_jax.evaluation.predictions.loading import load
from calib_jax.intervals.calibration_tests import holm
from experiments.common import commands, comparison, markdown, scales, studies

BASELINE, JOINT, MEAN = "pooled, then a temperature", "`joint_ensemble_scaling`", "mean logits, then a temperature"
SETS = {"test": "test images", "shot_noise_5": "shot noise", "gaussian_blur_5": "blur", "contrast_5": "low contrast"}


def measured(task: str, method: str, ensemble: str, folder: pathlib.Path) -> list[dict[str, object]]:
  """Returns the log loss of each way of an ensemble, on each set."""
  def members(name):
    parts = [load(path) for path in sorted((folder / "predictions").glob(f"{name}_seed*.npz"))]
    return jax.nn.log_softmax(np.stack([part.logits for part in parts])), parts[0].labels

  logits, labels = members("validation")
  joint, scaling = calibrators.joint_ensemble_scaling(), calibrators.temperature_scaling()
  pool = lambda z: jax.nn.logsumexp(z, axis=0) - np.log(len(z))  # noqa: E731
  ways = {BASELINE: (pool, scaling), MEAN: (lambda z: z.mean(0), scaling), JOINT: (lambda z: z, joint)}
  new = []
  for way, (of_members, calibrator) in ways.items():
    params = calibrator.fit(of_members(logits), labels)
    for name in SETS:
      z, y = members(name)
      log_probs = np.asarray(calibrator.apply(params, of_members(z)))
      new.append({"task": task, "method": method, "seed": ensemble, "set": name, "calibrator": way,
                  "disagreement": f"{float(params.get('disagreement', np.nan)):.3f}",
                  "nll": f"{-log_probs[np.arange(len(y)), y].mean(dtype=np.float64):.6f}"})
  return new


def page(rows: pd.DataFrame) -> str:
  """Returns the page: the log loss of each way less that of the pooled probabilities, and what is shown by it."""
  lines, changes = [], {}
  for (task, method), of_method in rows.groupby(["task", "method"], sort=False):
    for way in (MEAN, JOINT):
      for name in SETS:
        by_way = {label: {str(row.seed): row.nll for row in part.itertuples()} for label, part in
                  of_method[of_method["set"] == name].groupby("calibrator")}
        changes[task, method, way, name] = comparison.paired(by_way[way], by_way[BASELINE])
      lines.append([scales.described(task), method, str(of_method.seed.nunique()), way,
                    *(changes[task, method, way, name].text(1, 1000) for name in SETS)])
  joint = [change for (*_, way, name), change in changes.items() if (way, name) == (JOINT, "test")]
  p_values = holm([change.p_value for change in joint])
  lower, higher = (sum(p < 1 - comparison.LEVEL and sign * change.mean > 0 for change, p in zip(
    joint, p_values, strict=True)) for sign in (-1, 1))
  head = ["networks", "trained with", "ensembles", "calibrated by", *SETS.values()]
  return markdown.filled("calibrators/members.md.jinja", lower=lower, higher=higher, number=len(joint),
                         rows=markdown.table(head, lines))


def main(arguments: Sequence[str] | None = None) -> int:
  """Judges the ensembles that have no rows yet, and writes the page."""
  parser = commands.parser(__spec__.name, __doc__, results=True)
  parser.add_argument("--runs", nargs="*", type=pathlib.Path, default=[], help="directories of runs of the leaderboard")
  options = parser.parse_args(arguments)
  folders = {}
  for run in (run for folder in options.runs for run in sorted(folder.glob("leaderboard_*/*_ensemble_of_5_*"))):
    method, ensemble = re.fullmatch(r"(.+)_ensemble_of_5_(\w+)", run.name).groups()
    task = run.parent.name.removeprefix("leaderboard_")
    folders[task, method.removeprefix(f"{task}_"), ensemble] = run
  study = studies.Study("ensemble_members", ("task", "method", "seed"), [*folders], lambda *cell: measured(
    *cell, folders[cell]), page, options.workdir)
  study.publish()
  return 0


if __name__ == "__main__":
  sys.exit(main())
