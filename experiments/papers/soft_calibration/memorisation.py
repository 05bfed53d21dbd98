"""Interleaved training where the network memorises its training set (Karandikar et al. 2021, Appendix B and Table 3).

Run: python -m experiments.papers.soft_calibration.memorisation --workdir=out

An over-parameterised network (784-512-512-10 on Fashion-MNIST) trains on few examples until it knows them by heart. Its
calibration error on them then tends to 0, so a soft calibration loss on the same examples has no effect; on examples
that the primary loss does not train on it can have one. Joint and interleaved training are compared with plain cross
entropy, five seeds each. The weight of a secondary loss (joint), or the rate of the second phase (interleaved), is the
one of the lowest validation ECE among those that give up less than a point of validation accuracy to plain cross
entropy, as in Appendix G; other seeds choose it. The results are written to `results.csv` and `results.md`.
"""

import csv
import pathlib

import jax
import numpy as np

from calib_jax import config as run_config
from calib_jax import data, metrics, training
from calib_jax._system.errors import UserError
from calib_jax._system.files import write_text
from experiments.common import commands

SECONDARY = {
  "soft_avuc": {"threshold": 0.5, "temperature": 0.1},
  "soft_binned_ece": {"temperature": 0.01},
}
STRENGTHS = (0.03, 0.1, 0.3, 1.0)
COLUMNS = ("train accuracy", "train ECE", "test accuracy", "test ECE", "test NLL")


def configured(options, schedule: str, secondary: str, strength: float):
  """The config of one method."""
  interleaved = schedule == "interleaved"
  settings = {
    "data.name": "npz" if options.images else "digits", "data.path": options.images or "", "loss.weight": strength,
    "model.hidden": "(512, 512)", "loss.primary.name": "cross_entropy", "loss.secondary.name": secondary,
    **{f"loss.secondary.{key}": value for key, value in SECONDARY.get(secondary, {}).items()},
    "training.schedule": schedule, "training.num_epochs": options.num_epochs, "data.held_out_fraction": 0.1,
    "training.evaluate_every_epochs": options.num_epochs,
  }
  if interleaved:
    settings |= {"loss.weight": 1.0, "training.secondary_rate": strength}
  return run_config.load("configs/digits_savuc.py", [f"--config.{k}={v}" for k, v in settings.items()])


def subset(splits: data.Splits, number: int, seed: int) -> data.Splits:
  """The splits with ``number`` of the training examples, drawn by seed and stratified."""
  if number >= len(splits.train.labels):
    return splits
  _, kept = data.stratified(splits.train.labels, number / len(splits.train.labels), seed, salt=9)
  return splits._replace(train=splits.train.take(kept))


def measured(config, splits: list[data.Splits], seeds: list[int], label: str) -> dict[str, np.ndarray]:
  """Scores ``[S]`` by name of the models of ``seeds``, on the splits train, validation and test."""
  names = ("train", "validation", "test")
  _, found = training.train(config, splits, seeds=seeds, label=label, predicted=names)
  scored = {}
  for split in names:
    labels = [of_seed[split]["labels"] for of_seed in found]
    probs = [jax.nn.softmax(of_seed[split]["logits"]) for of_seed in found]
    for name, metric in (("accuracy", metrics.accuracy), ("ECE", metrics.expected_calibration_error),
                         ("NLL", metrics.nll)):
      scored[f"{split} {name}"] = np.array([float(metric(p, y)) for p, y in zip(probs, labels, strict=True)])
  return scored


def main() -> None:
  """Searches, trains and writes the table."""
  parser = commands.parser(__spec__.name, __doc__)
  parser.add_argument("--workdir", required=True, type=pathlib.Path, help="where the results go")
  parser.add_argument("--images", help="an .npz of images and labels; scikit-learn's digits by default")
  parser.add_argument("--num_examples", type=int, default=5000, help="the number of training examples")
  parser.add_argument("--num_epochs", type=int, default=60)
  parser.add_argument("--num_seeds", type=int, default=5)
  options = parser.parse_args()
  seeds, tuning = list(range(options.num_seeds)), [100, 101, 102]
  plain = configured(options, "joint", "", 1.0)
  splits = {seed: subset(data.load(seed=seed, **run_config.data_options(plain)), options.num_examples, seed)
            for seed in seeds + tuning}

  def run(config, chosen, label):
    return measured(config, [splits[seed] for seed in chosen], chosen, label)

  floor = run(plain, tuning, "tuning, cross entropy")["validation accuracy"].mean() - 0.01
  rows = {"cross entropy": ("", run(plain, seeds, "cross entropy"))}
  for secondary in SECONDARY:
    for schedule in ("joint", "interleaved"):
      tried = {}
      for strength in STRENGTHS:
        label = f"{schedule} {secondary}, {strength:g}"
        try:
          tried[strength] = run(configured(options, schedule, secondary, strength), tuning, f"tuning, {label}")
        except UserError as error:  # It diverged: too strong.
          print(f"{label}: {error}", flush=True)
      allowed = {x: found["validation ECE"].mean() for x, found in tried.items()
                 if found["validation accuracy"].mean() > floor}
      best = min(allowed or {min(STRENGTHS): 0}, key=allowed.get)
      found = run(configured(options, schedule, secondary, best), seeds, f"{schedule} {secondary}, {best:g}")
      rows[f"{schedule} {secondary}"] = (f"{best:g}", found)
  write(options, rows)


def write(options, rows: dict[str, tuple[str, dict[str, np.ndarray]]]) -> None:
  """``results.csv``, one row a method and seed, and ``results.md``, means and standard errors; prints the latter."""
  options.workdir.mkdir(parents=True, exist_ok=True)
  with (options.workdir / "results.csv").open("w", newline="", encoding="utf-8") as file:
    writer = csv.writer(file)
    writer.writerow(["method", "strength", "seed", *COLUMNS])
    for method, (strength, found) in rows.items():
      for i in range(options.num_seeds):
        writer.writerow([method, strength, i, *(f"{found[name][i]:.6f}" for name in COLUMNS)])
  lines = ["| trained with | strength | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 2) + "|"]
  for method, (strength, found) in rows.items():
    cells = []
    for name in COLUMNS:
      scale, digits = (1, 4) if "NLL" in name else (100, 2)
      error = scale * found[name].std(ddof=1) / np.sqrt(options.num_seeds) if options.num_seeds > 1 else 0.0
      cells.append(f"{scale * found[name].mean():.{digits}f} ± {error:.{digits}f}")
    lines.append(f"| {method} | {strength} | " + " | ".join(cells) + " |")
  note = (f"Mean ± standard error over {options.num_seeds} seeds; accuracy and ECE (15 equal-width bins, norm 1) in %; "
          f"{options.num_epochs} epochs.")
  text = note + "\n\n" + "\n".join(lines) + "\n"
  write_text(options.workdir / "results.md", text)
  print(text)


if __name__ == "__main__":
  main()
