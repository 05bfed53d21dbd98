"""Figures 2, 7, 8 and 9 of Karandikar et al. 2021: the ECE on corrupted images, by severity, of all methods.

Run: python -m experiments.papers.soft_calibration.severities --data=IMAGES.npz [--seeds=5] [--out=DIR] [--only WORD …]

The rows of tables.py have corrupted images of severity 5 alone, and their ECE with equal-width bins. This command
trains its methods again with the settings that are chosen there, and predicts the corruptions of `scales.SHIFTS` at all
severities. The calibrators are those of tables.py, fitted to validation images. A row has the ECE (15 equal-mass bins,
norm 2, as in the paper) and the accuracy for each method, calibrator, seed, corruption and severity; severity 0 is the
test images. Methods of which the file holds the rows of the same config are not trained again. figures.py draws the
rows.
"""

from collections.abc import Iterator, Sequence
import pathlib

from ml_collections import ConfigDict

from calib_jax import calibrators
from calib_jax.evaluation.predictions.fitting import UNCALIBRATED
from calib_jax.training import run
from experiments.common import commands, comparison, rows, scales, settings, tuning
from experiments.papers.soft_calibration import tables

SEVERITIES = (1, 2, 3, 4, 5)
SHOWN = ("TS", "TS-SB-ECE")  # The calibrators of the figures.


def measured(finished: run.Run, method: str, parts: Sequence[tuple[str, int, str]]) -> Iterator[rows.Row]:
  """Yields the rows of a finished run of a method; ``parts`` are corruption, severity and name of each set."""
  validation = finished.saved("validation")
  sections = {UNCALIBRATED: {"name": "identity"}, **{name: tables.EXPERIMENT.calibrators[name] for name in SHOWN}}
  for label, section in sections.items():
    calibrator = calibrators.get(**section)
    fitted = [calibrator.fit(part.logits, part.labels) for part in validation]
    for corruption, severity, name in parts:
      for seed, params, part in zip(finished.seeds, fitted, finished.saved(name), strict=True):
        accuracy, error = tuning.scores(calibrator.apply(params, part.logits), part.labels)
        yield {"method": method, "calibrator": label, "seed": str(seed), "corruption": corruption,
               "severity": str(severity), "config": settings.digest(finished.config),
               "accuracy": f"{float(accuracy):.6g}",
               "ece_equal_mass_l2": f"{float(error):.6g}"}


def trained(config: ConfigDict, folder: pathlib.Path) -> run.Run:
  """Trains a config, and predicts the corrupted images."""
  run.execute(config, folder / settings.digest(config), reports=False)
  finished = run.Run(config, folder / settings.digest(config))
  finished.predict_sets()
  return finished


def main(arguments: Sequence[str] | None = None) -> None:
  """Trains every method that has no rows yet."""
  parser = commands.parser(__spec__.name, __doc__)
  parser.add_argument("--out", type=pathlib.Path, default=commands.RESULTS, help="where the results go")
  parser.add_argument("--seeds", type=int, default=5, help="how many seeds; 5 by default")
  parser.add_argument("--only", nargs="+", help="only methods whose names hold one of these words")
  scales.arguments(parser)
  options = parser.parse_args(arguments)
  options.scale, name = "laptop", f"{pathlib.Path(options.data).stem}_{options.network}"
  of_tables = rows.texts(commands.RESULTS / f"{tables.EXPERIMENT.files()}_{name}.csv")
  if of_tables.empty:
    raise SystemExit(f"there are no rows of {tables.EXPERIMENT.files()}_{name}: run tables.py with the same --data.")
  path = options.out / f"soft_calibration_severities_{name}.csv"
  chosen = comparison.chosen(of_tables)
  done = dict(rows.keys(rows.texts(path), ("method", "config")))
  parts = [("none", 0, "test"), *((corruption, severity, f"{corruption}_{severity}")
                                  for corruption in scales.SHIFTS for severity in SEVERITIES)]
  for method in tables.EXPERIMENT.methods(options):
    if method.name not in chosen or not any(word in method.name for word in options.only or ("",)):
      continue
    config = settings.changed(method.config(), {**chosen[method.name], "evaluation.severities": SEVERITIES,
                                                "num_seeds": options.seeds})
    if done.get(method.name) != settings.digest(config):  # Settings may have been chosen anew.
      finished = trained(config, options.out / "runs" / path.stem)
      rows.append(path, list(measured(finished, method.name, parts)), replacing=["method"])
      print(f"{method.name} is measured.", flush=True)
  rows.pack(path)


if __name__ == "__main__":
  main()
