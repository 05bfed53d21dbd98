"""Chooses the settings of a run on its validation split, as Karandikar et al. 2021 do in Appendix G.

``tuned`` tunes one setting after another, in the order of the paper: the threshold κ and the temperature T of the
secondary loss, its weight β, and the coefficient λ of the L2 term. The best value of a setting is the one with the
lowest validation ECE (15 equal-mass bins, norm 2; mean over seeds) among those that give up less than one point of
validation accuracy to the most accurate one. It is kept while the next setting is tuned. Or it tries all combinations
at once, as Zhou et al. 2025 tune κ, ν and γ, and chooses by the same rule. While the best value of a
setting is the first or the last that was tried, the next one of its ladder (``LADDERS``) is tried too: so the best lies
between two others, unless the ladder ends. Test splits are not looked at.

Every model of a config's seeds counts, so ``settings.changed(config, {"num_seeds": 10})`` makes the choice less noisy.
The trials that the file ``path`` holds are not trained again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import itertools
import json
import pathlib
import re
from typing import NamedTuple

import jax
from ml_collections import ConfigDict
import numpy as np

from calib_jax import metrics, training
from calib_jax._system.errors import UserError
from calib_jax.training import config as run_config
from calib_jax.training import run
from experiments.common import rows, settings

# The values to try of the paper's settings, in its order. The paper prints no values; these are ours.
THRESHOLDS, WEIGHTS, L2 = (0.1, 0.3, 0.5, 0.7, 0.9), (0.1, 0.3, 1.0, 3.0), (0.0, 1e-4, 5e-4, 2e-3)
RATES = (0.03, 0.1, 0.3)  # Of the steps of the second phase of interleaved training.
TEMPERATURES = {"soft_avuc": (0.1, 0.3, 1.0, 3.0), "soft_binned_ece": (0.001, 0.003, 0.01, 0.03)}
# What these losses have where only their weight or the rate of their steps is tuned.
SECONDARY = {"soft_avuc": {"threshold": 0.5, "temperature": 0.1}, "soft_binned_ece": {"temperature": 0.01}}
# The values of each field from the smallest on, of which searches begin with a few and go on where the best lies.
LADDERS: Mapping[str, Sequence] = {
  "loss.primary.gamma": (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0, 10.0),
  "loss.primary.gammas": ((1.0, 0.5), (2.0, 1.0), (3.0, 2.0), (5.0, 3.0), (7.0, 5.0), (10.0, 7.0), (14.0, 10.0)),
  "loss.primary.rate": (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
  "loss.primary.margin": (0.3, 1.0, 2.0, 3.0, 6.0, 10.0, 15.0, 20.0),
  "loss.primary.label_smoothing": (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4),
  "loss.primary.discrimination_weight": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
  "loss.primary.low_confidence_coverage": (0.03, 0.1, 0.25, 0.5, 0.9, 0.95, 0.98),
  "loss.primary.smoothing": (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8),
  "loss.secondary.threshold": (0.01, 0.02, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998),
  "loss.secondary.temperature": (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
  "loss.weight": (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
  "optimizer.l2": (0.0, 1e-5, 1e-4, 5e-4, 2e-3, 5e-3, 0.01, 0.02),
  "optimizer.learning_rate": (0.006, 0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8),
  "optimizer.sharpness": (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0),
  "stage2.optimizer.learning_rate": (3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
  "augmentation.alpha": (0.03, 0.1, 0.3, 0.5, 1.0, 2.0, 4.0, 8.0),
  "augmentation.largest": (0.03, 0.05, 0.1, 0.2, 0.33, 0.5, 0.7),
  "augmentation.magnitude": (1.0, 2.0, 3.0, 6.0, 9.0, 12.0, 15.0, 20.0),
  "augmentation.severity": (0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0, 10.0),
  "schedule.secondary_rate": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
  "schedule.peeling_exponent": (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
  "training.average_decay": (0.5, 0.8, 0.9, 0.97, 0.99, 0.995, 0.998),
  "training.average_fraction": (0.1, 0.25, 0.5, 0.75, 0.9),
  "model.dropout": (0.03, 0.05, 0.1, 0.2, 0.5, 0.7, 0.8, 0.9),
  "head.discount": (0.1, 0.3, 0.5, 0.9, 1.0),
  "head.members": (2, 3, 5, 10, 20, 40),
}
MOST_LOST = 0.01  # The accuracy that a setting may give up if it is chosen for its ECE.


class Trial(NamedTuple):
  """One setting that was tried: its fields, and the validation accuracy and ECE of its models, as fractions."""

  fields: dict[str, object]
  accuracy: float
  ece: float


class Tuned(NamedTuple):
  """What a search found: the config with the chosen values, these values by field, and all trials."""

  config: ConfigDict
  chosen: dict[str, object]
  trials: list[Trial]

  @property
  def tried(self) -> dict[str, list]:
    """The values of each field that were tried, in their order if they have one."""
    return {key: _values(self.trials, key) for key in self.chosen}


def search_space(secondary: Mapping[str, object]) -> dict[str, tuple[float, ...]]:
  """Returns the values to try of the paper's settings, in its order, beside a secondary loss: a section of a config."""
  name, space = secondary["name"], {}
  if "threshold" in secondary and name != "avuc":  # That of avuc is an entropy, and not a fraction.
    space["loss.secondary.threshold"] = THRESHOLDS
  if name in TEMPERATURES:
    space["loss.secondary.temperature"] = TEMPERATURES[name]
  if name:
    space["loss.weight"] = WEIGHTS
  return space | {"optimizer.l2": L2}


def best(trials: Sequence[Trial]) -> Trial:
  """Returns the trial of the lowest ECE that loses less than ``MOST_LOST`` of the highest accuracy, or a UserError."""
  finite = [trial for trial in trials if np.isfinite(trial.ece)]
  if not finite:
    raise UserError(f"none of the {len(trials)} settings trains: " + "; ".join(_text(t.fields) for t in trials))
  most_accurate = max(trial.accuracy for trial in finite)
  allowed = [trial for trial in finite if trial.accuracy > most_accurate - MOST_LOST]
  return min(allowed, key=lambda trial: trial.ece)


def tuned(config: ConfigDict, search: Mapping[str, Iterable], *, one_at_a_time: bool, path: pathlib.Path | None = None,
          validate: Callable[[ConfigDict], tuple[float, float]] | None = None,
          ladders: Mapping[str, Sequence] = LADDERS) -> Tuned:
  """Tunes one field after another, each with the best values of those before, or tries all combinations.

  ``ladders`` has further values, from the smallest on, for where the best is the first or the last. What ``path``, a
  ``.csv`` file of trials, holds is not trained again.
  """
  saved = {row["config"]: row for row in rows.read(path)} if path else {}
  chosen, every_trial = {}, []
  for keys in [[key] for key in search] if one_at_a_time else [list(search)]:
    tried = [chosen | dict(zip(keys, values, strict=True))
             for values in itertools.product(*(search[key] for key in keys))]
    if one_at_a_time:
      start = chosen | {key: run_config.get(config, key) for key in keys}
      tried = [start, *(fields for fields in tried if fields != start)]
    trials: list[Trial] = []
    while tried:
      for fields in tried:
        candidate = settings.changed(config, fields)
        name = f"{settings.digest(candidate)}x{config.num_seeds}"
        if name not in saved:
          accuracy, ece = (validate or validation_scores)(candidate)
          saved[name] = {"config": name, "fields": json.dumps(fields), "accuracy": f"{accuracy:.6f}",
                         "ece": f"{ece:.6f}"}
          if path:
            rows.append(path, [saved[name]])
        trials.append(trial := Trial(dict(fields), float(saved[name]["accuracy"]), float(saved[name]["ece"])))
        print(f"{_text(fields)}: accuracy {100 * trial.accuracy:.2f}%, ECE {100 * trial.ece:.2f}%")
      tried = beyond(trials, best(trials).fields, {key: ladders.get(key, ()) for key in keys})
    chosen, every_trial = best(trials).fields, every_trial + trials
    if one_at_a_time:
      print(f"{keys[0]} = {chosen[keys[0]]} is the best.")
  return Tuned(settings.changed(config, chosen), chosen, every_trial)


@jax.jit
def scores(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns the accuracy and the ECE (equal mass, norm 2) of predictions ``[N, K]``."""
  probs = jax.nn.softmax(logits)
  return metrics.accuracy(probs, labels), metrics.adaptive_calibration_error(probs, labels, norm=2)


def validation_scores(config: ConfigDict) -> tuple[float, float]:
  """Trains a config; returns the mean validation accuracy and ECE of its models, ``(0, inf)`` if training diverges."""
  accuracy, ece = np.mean([scores(**part) if part else (0, np.inf) for part in validation_predictions(config)], axis=0)
  return float(accuracy), float(ece)


def validation_predictions(config: ConfigDict) -> list[dict[str, np.ndarray] | None]:
  """Trains models; returns the logits and labels of each one's validation split, None for all if training diverges."""
  seeds = tuple(range(config.seed, config.seed + config.num_seeds))
  try:
    return [of_seed["validation"] for group in ([seeds] if config.training.seeds_together else [[s] for s in seeds])
            for of_seed in training.train(config, [run.data.load_splits(config, seed) for seed in group], seeds=group,
                                          label="tuning", predicted=("validation",))[1]]
  except UserError as error:
    if not re.search(r"is (nan|-?inf) at step", str(error)):
      raise
    return [None] * len(seeds)


def beyond(trials: Sequence[Trial], chosen: Mapping[str, object], ladders: Mapping[str, Sequence]) -> list[dict]:
  """Returns the chosen fields with the next value of each field that is the first or the last tried of its ladder.

  >>> trials = [Trial({"weight": weight}, 0.9, 0.1) for weight in (0.1, 0.3, 1.0)]
  >>> beyond(trials, {"weight": 1.0}, {"weight": (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)})
  [{'weight': 3.0}]
  >>> beyond(trials, {"weight": 0.3}, {"weight": (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)})
  []
  """
  further = []
  for key, ladder in ladders.items():
    values = _values(trials, key) if ladder else []
    if values and chosen[key] == values[0]:
      further += [dict(chosen) | {key: x} for x in [x for x in ladder if x < values[0]][-1:]]
    if values and chosen[key] == values[-1]:
      further += [dict(chosen) | {key: x} for x in [x for x in ladder if x > values[-1]][:1]]
  return further


def _values(trials: Sequence[Trial], key: str) -> list:
  values = list(dict.fromkeys(trial.fields[key] for trial in trials if key in trial.fields))
  return values if any(isinstance(x, str) for x in values) else sorted(values)


def _text(fields: Mapping[str, object]) -> str:
  return ", ".join(f"{key} = {value}" for key, value in fields.items())
