"""Do importance weights calibrate for corrupted images whose labels are unknown?

Run: python -m experiments.covariate_shift --data=IMAGES.npz --network=resnet8 [--workdir=DIR]

Under a covariate shift, which changes the inputs and not P(label | input), validation examples that are weighted by
w(x) = p_target(x) / p_validation(x) stand for the target. A logistic regression tells the images of the target from
those of validation by their sorted and unsorted log probabilities and their entropy; w = p / (1 - p), each example by
the four fifths without it. The temperature that is fitted with these weights, and the ECE that they predict, are
compared with those without weights and with the truth. Cross entropy, five seeds, as on the leaderboard of `--network`.
"""

import argparse
from collections.abc import Sequence
import functools
import pathlib
import sys

import jax
import ml_collections
import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

from calib_jax import calibrators, metrics
from calib_jax._system.errors import UserError
from calib_jax.intervals.calibration_tests import holm
from calib_jax.training import run
from experiments.common import commands, comparison, markdown, scales, settings, studies

SEEDS, SEVERITIES = 5, (1, 3, 5)


def weights_of(validation: np.ndarray, target: np.ndarray) -> np.ndarray:
  """Returns the weights ``[N]`` of validation logits ``[N, K]``, whose mean is 1, for target logits ``[M, K]``."""
  log_probs = np.asarray(jax.nn.log_softmax(np.concatenate([validation, target])), np.float64)
  entropy = -np.sum(np.exp(log_probs) * log_probs, axis=1, keepdims=True)
  features = np.concatenate([log_probs, np.sort(log_probs, axis=1), entropy], axis=1)
  features = (features - features.mean(0)) / features.std(0)
  is_target = np.arange(len(features)) >= len(validation)
  p = cross_val_predict(LogisticRegression(max_iter=2000), features, is_target, cv=5, method="predict_proba")
  odds = p[:len(validation), 1] / p[:len(validation), 0]
  return odds / odds.mean()


def measured_set(validation: tuple[np.ndarray, np.ndarray], target: tuple[np.ndarray, np.ndarray]) -> dict[str, float]:
  """Returns what temperatures with and without weights, and one that knows the labels, give on a target."""
  scaling, weights = calibrators.temperature_scaling(), weights_of(validation[0], target[0])
  fits = {"plain": scaling.fit(*validation), "weighted": scaling.fit(*validation, weights=weights.astype(np.float32)),
          "known": scaling.fit(*target)}
  row = {"effective": weights.sum() ** 2 / (weights ** 2).sum()}
  for name, params in fits.items():
    probs = jax.nn.softmax(scaling.apply(params, target[0]))
    row |= {f"temperature_{name}": float(params["temperature"]), f"nll_{name}": float(metrics.nll(probs, target[1])),
            f"ece_{name}": float(metrics.expected_calibration_error(probs, target[1]))}
  predicted = jax.nn.softmax(scaling.apply(fits["plain"], validation[0]))
  return row | {"predicted": float(metrics.expected_calibration_error(predicted, validation[1], weights=weights))}


def _trained(config: ml_collections.ConfigDict, folder: pathlib.Path, seed: int) -> list[dict[str, object]]:
  """Trains a seed and measures its test images and each corrupted set."""
  config = settings.changed(config, {"seed": seed, "num_seeds": 1})
  folder /= f"seed{seed}_{settings.digest(config)}"
  run.execute(config, folder, reports=False)
  finished = run.Run(config, folder)
  finished.predict_sets()
  names = ["test", *(f"{name}_{severity}" for name in scales.SHIFTS for severity in SEVERITIES)]
  validation, *targets = ((part.logits, part.labels) for name in ("validation", *names)
                          for part in finished.saved(name))
  return [{"set": name} | measured_set(validation, target) for name, target in zip(names, targets, strict=True)]


def page(data: str, network: str, rows: pd.DataFrame) -> str:
  """Returns the page: one line a set, and what is shown by Holm's method over them."""
  sets = list(dict.fromkeys(rows["set"]))
  values = {name: rows[rows["set"] == name].set_index("seed").astype(float, errors="ignore") for name in sets}
  changes = [comparison.paired(*(comparison.BySeed(of_set[column]) for column in ("nll_weighted", "nll_plain")))
             for of_set in values.values()]
  p_values = holm([change.p_value for change in changes])
  is_shown = {name: p < 1 - comparison.LEVEL and np.sign(change.mean)
              for name, change, p in zip(sets, changes, p_values, strict=True)}
  shown = {word: [name for name in sets if is_shown[name] == sign] for word, sign in (("lower", -1), ("higher", 1))}
  cells = []
  for (name, of_set), change, p in zip(values.items(), changes, p_values, strict=True):
    mean = of_set.mean(numeric_only=True)
    cells.append([name, *(f"{mean[f'temperature_{x}']:.2f}" for x in ("plain", "weighted", "known")),
                  f"{mean['nll_plain']:.4f}", change.text(4), comparison.p_text(p),
                  f"{mean['nll_known'] - mean['nll_plain']:+.4f}", f"{100 * mean['ece_plain']:.1f}",
                  f"{100 * mean['predicted']:.1f}", f"{mean['effective']:,.0f}"])
  words = "; ".join(f"shown to have a {word} log loss with weights: {', '.join(names) or 'none'}"
                    for word, names in shown.items())
  return "\n".join([
    f"# Importance weights for corrupted images: {scales.named(data, network)}", "",
    f"Made by `python -m experiments.covariate_shift --data={pathlib.Path(data).name} --network={network}`. "
    f"Means of {SEEDS} seeds; the temperature is fitted to {len(sets)} targets in turn, without weights, with weights "
    "by a classifier, and, which is the best that can be, to the labels of the target. Differences are paired by seed, "
    "with 95% intervals over seeds, and p is by Student's t and Holm's method over the rows. The effective number of "
    "validation images is (Σw)² / Σw².", "",
    f"{words[0].upper()}{words[1:]}.", "",
    markdown.table(["target", "T", "T, weighted", "T, labels known", "log loss", "weighted less that", "p",
                    "labels known less that", "ECE %", "ECE % that weights predict", "effective number"], cells), ""])


def main(arguments: Sequence[str] | None = None) -> int:
  """Is the command."""
  parser = commands.parser("experiments.covariate_shift", __doc__, results=True)
  scales.arguments(parser)
  options = parser.parse_args(arguments, argparse.Namespace(scale="laptop"))
  try:
    config = settings.changed(scales.base(options), {"evaluation.severities": SEVERITIES})
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  name = f"covariate_shift_{scales.suffix(options)}"
  study = studies.Study(name, ("seed",), [(seed,) for seed in range(SEEDS)], functools.partial(
    _trained, config, options.workdir / "runs" / name), functools.partial(
      page, options.data, options.network), options.workdir)
  study.publish()
  return 0


if __name__ == "__main__":
  sys.exit(main())
