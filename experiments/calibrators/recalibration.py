"""Post-hoc calibration of saved predictions: temperatures, focal temperatures and class-wise loss scaling, by seeds.

Run: python -m experiments.calibrators.recalibration --workdir=out PREDICTIONS.npz RUN …

Each file holds `labels` and `logits` or `probs`: for each seed half of the rows, drawn anew, fit and the other half
test. In the directory of a run by main.py, the validation split of each seed fits and its test split tests. The files
`results.csv` and `results.md` then hold accuracy, NLL and ECE (15 equal-mass bins, norm 1), mean ± standard error over
seeds, and how nearly linear the best temperature is in γ (Komisarenko & Kull 2024, Figure 8).
"""

import csv
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import calibrators, metrics
from calib_jax._system.errors import UserError
from calib_jax.calibrators import focal_temperature
from calib_jax.cli import inputs
from calib_jax.evaluation.predictions import load
from calib_jax.evaluation.results import csv_text, markdown_text
from calib_jax.training.run_log.progress import Progress
from experiments.common import commands

BASES = ("temperature_scaling", "ensemble_temperature_scaling", "parameterized_temperature_scaling",
         "class_temperature_scaling")
METHODS = {
  "none": ("identity", {}),
  "TS (NLL)": ("temperature_scaling", {}),
  "TS-SB-ECE": ("temperature_scaling", {"objective": "soft_binned_ece"}),
  "TS-SB-ECE, label form": ("temperature_scaling", {"objective": "soft_binned_ece", "form": "label"}),
  "TS-HB-ECE": ("temperature_scaling", {"objective": "ece"}),
  **{f"FTS {search} ({objective.upper()})": ("focal_temperature_scaling", {"search": search, "objective": objective})
     for objective in ("nll", "ece") for search in ("grid", "line")},
  **{name: (name, {}) for name in BASES[1:]},
  **{f"{base} + CLS": ("classwise_loss_scaling", {"base": base}) for base in BASES},
  **{name: (name, {}) for name in ("vector_scaling", "matrix_scaling", "dirichlet", "platt", "isotonic")},
}
COLUMNS, DIGITS = ("accuracy %", "NLL", "ECE %"), (2, 4, 2)


@jax.jit
def scores(log_probs, labels):
  """Accuracy in percent, NLL, and ECE in percent, as of COLUMNS."""
  probs = jnp.exp(log_probs)
  return jnp.stack([100 * metrics.accuracy(probs, labels), metrics.nll(probs, labels),
                    100 * metrics.adaptive_calibration_error(probs, labels)])


def samples_of(path: pathlib.Path, num_seeds: int):
  """``((logits, labels) to fit, (logits, labels) to test)`` by seed, of a file of predictions or a run's directory."""
  if path.is_dir():
    files = inputs.files_of_run(path)
    if not files.get("validation") or len(files["validation"]) != len(files.get("test", ())):
      raise UserError(f"{path} must be the directory of a run, with predictions of its validation and test splits.")
    pairs = [[load(file) for file in pair] for pair in zip(files["validation"], files["test"], strict=True)]
    return [[(part.logits, part.labels) for part in pair] for pair in pairs]
  predictions = load(path)
  orders = [np.random.default_rng(seed).permutation(len(predictions.labels)) for seed in range(num_seeds)]
  return [[(predictions.logits[part], predictions.labels[part]) for part in np.array_split(order, 2)]
          for order in orders]


def linearity(logits, labels) -> tuple[np.ndarray, float]:
  """The temperature of the least ECE for each γ of the grid, ``[9]``, and R² of the line through them."""
  gammas = jnp.asarray(focal_temperature.GAMMAS)
  value = jax.jit(focal_temperature.objective_value("ece", logits, labels, jnp.ones(len(labels), bool)))
  errors = jnp.stack([value(jnp.float32(t), gammas) for t in focal_temperature.TEMPERATURES])
  best = focal_temperature.TEMPERATURES[np.argmin(errors, axis=0)]
  return best, float(np.corrcoef(focal_temperature.GAMMAS, best)[0, 1] ** 2)


def main() -> None:
  """Runs all files and writes the tables."""
  parser = commands.parser(__spec__.name, __doc__)
  parser.add_argument("predictions", nargs="+", type=pathlib.Path)
  parser.add_argument("--workdir", type=pathlib.Path, required=True)
  parser.add_argument("--seeds", type=int, default=5, help="divisions of each file; a run has its own seeds")
  args = parser.parse_args()
  args.workdir.mkdir(parents=True, exist_ok=True)
  fitters = {name: calibrators.get(kind, **options) for name, (kind, options) in METHODS.items()}
  rows, lines = [], []
  for file in args.predictions:
    try:
      samples, name_of_file = samples_of(file, args.seeds), file.resolve().stem
    except UserError as error:
      parser.error(str(error))
    progress = Progress(name_of_file, len(METHODS))
    lines += [f"\n{markdown_text(name_of_file)}, {len(samples)} seed{'s' * (len(samples) > 1)}\n",
              f"| method | {' | '.join(COLUMNS)} | converged |", "|---" * 5 + "|"]
    for step, (name, calibrator) in enumerate(fitters.items(), start=1):
      found, ended = [], []
      for seed, (fit, test) in enumerate(samples):
        params = calibrator.fit(*fit)
        found.append(np.asarray(scores(calibrator.apply(params, test[0]), test[1])))
        ended.append(bool(params.get("converged", True)))
        rows.append([csv_text(name_of_file), name, seed, *map(float, found[-1]), ended[-1]])
      mean = np.mean(found, axis=0)
      errors = [f" ± {e:.{d}f}" for e, d in zip(metrics.sem(np.stack(found)), DIGITS, strict=True)] if (
        len(found) > 1) else [""] * len(COLUMNS)
      cells = [f"{m:.{d}f}{error}" for m, error, d in zip(mean, errors, DIGITS, strict=True)]
      lines.append(f"| {name} | {' | '.join(cells)} | {sum(ended)}/{len(ended)} |")
      progress.update(step, 0, float(mean[1]))
    fits = [linearity(*fit) for fit, _ in samples]
    best = np.mean([f[0] for f in fits], axis=0)
    lines.append(f"\nBest T of gamma = {focal_temperature.GAMMAS}: {', '.join(f'{t:.2f}' for t in best)} (means); a "
                 f"line through them has R² = {np.mean([f[1] for f in fits]):.3f}.")
  (args.workdir / "results.md").write_text("\n".join(lines) + "\n")
  with open(args.workdir / "results.csv", "w", newline="") as out:
    csv.writer(out).writerows([["predictions", "method", "seed", *COLUMNS, "converged"], *rows])
  print("\n".join(lines))


if __name__ == "__main__":
  main()
