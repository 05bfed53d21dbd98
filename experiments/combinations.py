"""Is there a combination that no paper tried, and that beats the best single method of the five papers?

Run: python -m experiments.combinations --data=IMAGES.npz [--network=mlp] [--candidates=81]

The space is an augmentation × a loss × an average of weights or flat minima × a weight decay × a learning rate.
Candidates take no longer to train than a plain network, by the count of experiments/common/costs.py. Successive halving
(experiments/common/halving.py) orders them by the log loss after calibration (`select`, out of fold) of validation
images, among those that are as accurate as cross entropy. The last rung has three places, of which plain cross entropy
has one. The other two are then trained with the seeds of the leaderboard, alone and as ensembles of five, and the
better of them also without each of its parts. The best method of the papers is trained with the weight decay and the
learning rate of the better one too, which the leaderboard does not give it. On the leaderboard's test images they are
compared with the method of the papers that has the lowest log loss there, beside the leaderboard's own methods beyond
the papers. The rows of the leaderboard must be there: `python -m experiments.leaderboard` with the same `--data` and
`--network` makes them.

`--only` with a word that is in no name, such as `--only=nothing`, makes the page anew, and neither searches nor trains.
"""

import argparse
import functools
import sys

import jax
from ml_collections import ConfigDict
import numpy as np

from calib_jax import calibrators
from calib_jax._system.errors import UserError
from experiments.common import halving, scales, settings, sweep, tuning
from experiments.common.declaration import Experiment, Method
from experiments.leaderboard import combination_page
from experiments.leaderboard.combination_space import (
  MEMBERS,
  MOST_LOST,
  SPACE,
  WITH,
  every_choice,
  name_of,
  one_less,
  times,
)
from experiments.leaderboard.experiment import CALIBRATORS
from experiments.leaderboard.methods import METHODS


def validated(config: ConfigDict) -> halving.Scores:
  """Trains a config; returns each seed's validation log loss of `select` and accuracy; `(inf, 0)` if it diverges."""
  try:
    return [_score(**part) if part else (float("inf"), 0.0) for part in tuning.validation_predictions(config)]
  except (UserError, ValueError, TypeError) as error:
    print(f"error: {error}")
    return [(float("inf"), 0.0)] * config.num_seeds


def _score(logits: jax.Array, labels: jax.Array) -> tuple[float, float]:
  chosen = calibrators.select(logits, labels)
  loss = next(score.score for score in chosen.scores if score.name == chosen.name)
  return loss, float(np.mean(np.argmax(logits, axis=1) == labels))


def methods(options: argparse.Namespace) -> list[Method]:
  """Returns the chosen combinations, alone and as ensembles, and the best without each of its parts."""
  names = [f"{scales.suffix(options)} {name}" for name in [
    *(name_of(choice, MEMBERS) for choice in every_choice()), *(f"{method}{WITH}" for method in METHODS)]]
  if options.only and not any(word in name for word in options.only for name in names):
    return []
  base, task = scales.base(options), scales.suffix(options)
  drawn = halving.draw(SPACE, options.candidates, lambda choice: times(choice) <= 1)
  path = sweep.path_of(sweep.stem_of(EXPERIMENT, options), suffix="_halving")
  standings = halving.halve(base, SPACE, drawn, validated, path=path, most_lost=MOST_LOST)
  best = [x.choice for x in standings if any(name != "none" for name in x.choice.values())]
  wanted = {name_of(choice, number): (choice, number) for number in (1, MEMBERS) for choice in best}
  for choice in one_less(best[0]).values() if best else ():
    wanted.setdefault(name_of(choice, 1), (choice, 1))
  made = [Method(task, name, functools.partial(settings.changed, base, halving.fields(SPACE, choice)), members=number)
          for name, (choice, number) in wanted.items()]
  if best and (changed := combination_page.papers_best_with(task, best[0])):
    name, single, fields = changed
    recipe = functools.partial(settings.changed, base, METHODS[single].at(options.scale))
    made.append(Method(task, name, lambda: settings.changed(recipe(), fields)))
  return made


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the options of this experiment."""
  scales.arguments(parser)
  parser.add_argument("--candidates", type=int, default=81, help="how many combinations are tried; 81 by default")


EXPERIMENT = Experiment(
  "combinations", "Combinations that no paper tried", methods,
  {label: CALIBRATORS[label] for label in ("TS", "structured vector", "structured matrix")},
  ("accuracy", "nll", "brier", "ece", "ece_shifted"), arguments=arguments, suffix=scales.suffix,
  cost=combination_page.cost_of, findings=combination_page.findings)


if __name__ == "__main__":
  sys.exit(sweep.main(EXPERIMENT))
