"""Post-hoc calibration of saved predictions: temperatures, focal temperatures and class-wise loss scaling, by seeds.

Run: python -m experiments.calibrators.recalibration [--workdir=DIR] PREDICTIONS.npz RUN …

Each file holds `labels` and `logits` or `probs`: for each of `--seeds` seeds half of the rows, drawn anew, fit and the
other half test. In the directory of a run by main.py, the validation split of each seed fits and its test split tests.
The table has NLL and ECE (15 equal-mass bins, norm 1), mean ± standard error over seeds, and how many fits did not
reach their tolerance.
"""

from collections.abc import Sequence
import hashlib
import pathlib

import numpy as np
import pandas as pd

from calib_jax import calibrators
from calib_jax._system.errors import UserError
from calib_jax.cli.inputs import files_of_run
from calib_jax.evaluation import Predictions, load
from experiments.calibrators import set_size
from experiments.common import commands, markdown, studies

BASES = ("temperature_scaling", "ensemble_temperature_scaling", "parameterized_temperature_scaling",
         "class_temperature_scaling")
CALIBRATORS = {
  "none": {"name": "identity"},
  "TS (NLL)": {"name": "temperature_scaling"},
  "TS-SB-ECE": {"name": "temperature_scaling", "objective": "soft_binned_ece"},
  "TS-SB-ECE, label form": {"name": "temperature_scaling", "objective": "soft_binned_ece", "form": "label"},
  "TS-HB-ECE": {"name": "temperature_scaling", "objective": "ece"},
  **{f"FTS {search} ({objective.upper()})": {"name": "focal_temperature_scaling", "search": search,
                                             "objective": objective}
     for objective in ("nll", "ece") for search in ("grid", "line")},
  **{name: {"name": name} for name in BASES[1:]},
  **{f"{base} + CLS": {"name": "classwise_loss_scaling", "base": base} for base in BASES},
  **{name: {"name": name} for name in ("vector_scaling", "matrix_scaling", "dirichlet", "platt", "isotonic",
                                       "spline_calibration", "smart")},
}


def divided(path: pathlib.Path, num_seeds: int) -> list[tuple[Predictions, ...]]:
  """Returns the predictions to fit to and to test on, a pair a seed.

  Raises:
    UserError: if a directory is not that of a run with predictions of its validation and test splits.
  """
  if path.is_dir():
    files = files_of_run(path)
    if not files.get("validation") or len(files["validation"]) != len(files.get("test", ())):
      raise UserError(f"{path} must be the directory of a run, with predictions of its validation and test splits.")
    return [tuple(map(load, pair)) for pair in zip(files["validation"], files["test"], strict=True)]
  whole = load(path)
  orders = [np.random.default_rng(seed).permutation(len(whole.labels)) for seed in range(num_seeds)]
  return [tuple(Predictions(whole.logits[half], whole.labels[half]) for half in np.array_split(order, 2))
          for order in orders]


def table(rows: pd.DataFrame) -> str:
  """Returns the Markdown table: a row for each calibrator, a column for each file or run."""
  cells = rows.groupby(["calibrator", "predictions"], sort=False).agg(
    nll=("nll", "mean"), ece=("ece", "mean"), error=("ece", "sem"), converged=("converged", "mean"))
  texts = cells.apply(lambda x: f"{x.nll:.3f}, {x.ece:.2f} ± {x.error:.2f}" + (
    f" ({x.converged:.0%} converged)" if x.converged < 1 else ""), axis=1).unstack(sort=False)
  return markdown.table(["NLL, ECE %", *texts], texts.itertuples()) + "\n"


def study(paths: Sequence[pathlib.Path], num_seeds: int, folder: pathlib.Path) -> studies.Study:
  """Returns what is run on files and runs; rows of other predictions under the same name do not count."""
  pairs = {(path.resolve().stem, seed): pair for path in paths for seed, pair in enumerate(divided(path, num_seeds))}
  digests = {key: hashlib.sha256(b"".join(x.tobytes() for part in pair for x in part[:2])).hexdigest()[:12]
             for key, pair in pairs.items()}

  def measured(name: str, seed: int, digest: str, label: str) -> list[dict[str, object]]:
    (fit, test), calibrator = pairs[name, seed], calibrators.get(**CALIBRATORS[label])
    params = calibrator.fit(fit.logits, fit.labels)
    values = set_size.measured(calibrator.apply(params, test.logits), test.labels)
    return [{**{key: f"{float(x):.6g}" for key, x in values.items()}, "converged": int(params.get("converged", True))}]

  return studies.Study("calibrators_recalibration", ("predictions", "seed", "digest", "calibrator"), [
    (*key, digests[key], label) for label in CALIBRATORS for key in pairs], measured,
    lambda rows: table(rows[rows.digest.isin(digests.values())]), folder)


def main(arguments: Sequence[str] | None = None) -> None:
  """Fits what has no row yet, and writes the table."""
  parser = commands.parser(__spec__.name, __doc__, results=True)
  parser.add_argument("predictions", nargs="+", type=pathlib.Path)
  commands.add_numbers(parser, {"seeds": 5})
  options = parser.parse_args(arguments)
  try:
    study(options.predictions, options.seeds, options.workdir).publish()
  except UserError as error:
    raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
  main()
