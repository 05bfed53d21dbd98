"""Chooses the settings of a run on its validation split, as Karandikar et al. 2021 do in Appendix G.

``one_at_a_time`` tunes one setting after another, in the order of the paper: the threshold κ and the temperature T of
the secondary loss, its weight β, and the coefficient λ of the L2 term. The best value of a setting is the one with the
lowest validation ECE (15 equal-mass bins, norm 2; mean over seeds) among those that give up less than one point of
validation accuracy to the most accurate one. It is kept while the next setting is tuned. ``grid`` tries all
combinations at once, as Zhou et al. 2025 tune κ, ν and γ, and chooses by the same rule. Test splits are not looked at.

For example::

  config = run_config.load("configs/digits_savuc.py", [])
  tuned = tuning.one_at_a_time(config, tuning.search_space(config.loss.secondary), path=pathlib.Path("trials.csv"))
  tuned.chosen   # {"loss.secondary.threshold": 0.5, "loss.secondary.temperature": 1.0, ...}
  tuned.config   # the config with these values
  tuned.trials   # everything that was tried, with its validation accuracy and ECE

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

from calib_jax import config as run_config
from calib_jax import metrics, run, training
from calib_jax._system.errors import UserError
from experiments.common import rows, settings

# The values to try of the paper's settings, in its order. The paper prints no values; these are ours.
THRESHOLDS, WEIGHTS, L2 = (0.1, 0.3, 0.5, 0.7, 0.9), (0.1, 0.3, 1.0, 3.0), (0.0, 1e-4, 5e-4, 2e-3)
TEMPERATURES = {"soft_avuc": (0.1, 0.3, 1.0, 3.0), "soft_binned_ece": (0.001, 0.003, 0.01, 0.03)}
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


def best(trials: Sequence[Trial], most_lost: float = MOST_LOST) -> Trial:
  """Returns the trial of the lowest ECE that gives up less than ``most_lost`` to the highest accuracy.

  Raises:
    UserError: if every trial diverged.
  """
  finite = [trial for trial in trials if np.isfinite(trial.ece)]
  if not finite:
    raise UserError(f"none of the {len(trials)} settings trains: " + "; ".join(_text(t.fields) for t in trials))
  most_accurate = max(trial.accuracy for trial in finite)
  allowed = [trial for trial in finite if trial.accuracy > most_accurate - most_lost]
  return min(allowed, key=lambda trial: trial.ece)


def one_at_a_time(config: ConfigDict, search: Mapping[str, Iterable], *, path: pathlib.Path | None = None,
                  validate: Callable[[ConfigDict], tuple[float, float]] | None = None, most_lost: float = MOST_LOST,
                  say: Callable[[str], object] = print) -> Tuned:
  """Tunes one field after another, each with the best values of those before.

  Args:
    config: a complete config, whose values the search starts from. They are tried too.
    search: the values to try by field, in the order in which fields are tuned.
    path: a ``.csv`` file to keep trials in; None to keep none.
    validate: ``config -> (accuracy, ECE)``; None for those of the validation splits of the config's seeds.
    most_lost: the accuracy that a setting may give up to the most accurate one.
    say: is called with a line for each trial.

  Returns:
    What the search found.

  Raises:
    UserError: if none of the values of a field trains.
  """
  chosen, trials = {}, []
  for key, values in search.items():
    start = chosen | {key: run_config.get(config, key)}
    tried = [start, *(chosen | {key: value} for value in values if value != start[key])]
    trials += (of_field := _tried(config, tried, path, validate or validation_scores, say))
    chosen = best(of_field, most_lost).fields
    say(f"{key} = {chosen[key]} is the best.")
  return Tuned(settings.changed(config, chosen), chosen, trials)


def grid(config: ConfigDict, search: Mapping[str, Iterable], *, path: pathlib.Path | None = None,
         validate: Callable[[ConfigDict], tuple[float, float]] | None = None, most_lost: float = MOST_LOST,
         say: Callable[[str], object] = print) -> Tuned:
  """Tries all combinations of the values of ``search``; the arguments are those of ``one_at_a_time``."""
  tried = [dict(zip(search, values, strict=True)) for values in itertools.product(*search.values())]
  trials = _tried(config, tried, path, validate or validation_scores, say)
  chosen = best(trials, most_lost).fields
  return Tuned(settings.changed(config, chosen), chosen, trials)


@jax.jit
def scores(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns the accuracy and the ECE (equal mass, norm 2) of predictions ``[N, K]``."""
  probs = jax.nn.softmax(logits)
  return metrics.accuracy(probs, labels), metrics.adaptive_calibration_error(probs, labels, norm=2)


def validation_scores(config: ConfigDict) -> tuple[float, float]:
  """Trains the models of a config; returns their mean accuracy and ECE (equal mass, norm 2) on validation splits.

  Both are ``(0, inf)`` if training diverges.
  """
  accuracy, ece = np.mean([scores(**part) if part else (0, np.inf) for part in validation_predictions(config)], axis=0)
  return float(accuracy), float(ece)


def validation_predictions(config: ConfigDict) -> list[dict[str, np.ndarray] | None]:
  """Trains the models of a config; returns the logits and labels of each one's validation split, or None.

  They are None for all seeds if training diverges.
  """
  seeds = tuple(range(config.seed, config.seed + config.num_seeds))
  try:
    return [of_seed["validation"] for group in ([seeds] if config.training.seeds_together else [[s] for s in seeds])
            for of_seed in training.train(config, [run.data.load_splits(config, seed) for seed in group], seeds=group,
                                          label="tuning", predicted=("validation",))[1]]
  except UserError as error:
    if not re.search(r"is (nan|-?inf) at step", str(error)):
      raise
    return [None] * len(seeds)


def _tried(config: ConfigDict, tried: Sequence[dict], path: pathlib.Path | None, validate: Callable,
           say: Callable) -> list[Trial]:
  """Returns a trial for each dict of fields; those that ``path`` holds are read from there."""
  saved = {row["config"]: row for row in rows.read(path)} if path else {}
  trials = []
  for fields in tried:
    candidate = settings.changed(config, fields)
    name = f"{settings.digest(candidate)}x{config.num_seeds}"
    if name not in saved:
      accuracy, ece = validate(candidate)
      saved[name] = {"config": name, "fields": json.dumps(fields), "accuracy": f"{accuracy:.6f}", "ece": f"{ece:.6f}"}
      if path:
        rows.append(path, [saved[name]])
    trials.append(trial := Trial(dict(fields), float(saved[name]["accuracy"]), float(saved[name]["ece"])))
    say(f"{_text(fields)}: accuracy {100 * trial.accuracy:.2f}%, ECE {100 * trial.ece:.2f}%")
  return trials


def _text(fields: Mapping[str, object]) -> str:
  return ", ".join(f"{key} = {value}" for key, value in fields.items())
