"""Successive halving over a joint space of settings: many candidates on one seed, ever fewer of them on more seeds.

Jamieson & Talwalkar 2016 give survivors more epochs. Here they get more seeds: a schedule of fewer epochs is another
schedule, and what learns its images by heart late looks good early. All looks are at validation splits.
"""

from collections.abc import Callable, Mapping, Sequence
import json
import pathlib
from typing import NamedTuple

from ml_collections import ConfigDict
import numpy as np

from calib_jax._system.errors import UserError
from experiments.common import rows, settings

FIRST_SEED = 100  # The seeds of these trials are none of those that experiments report.
Scores = list[tuple[float, float]]
Space = Mapping[str, Mapping[str, Mapping[str, object]]]  # The fields of each choice, by part and by its name.


class Standing(NamedTuple):
  """A candidate: the choice of each part, and its mean loss over the seeds that it has been trained with."""

  choice: Mapping[str, str]
  loss: float  # Infinite if it cannot be trained.


def fields(space: Space, choice: Mapping[str, str]) -> dict[str, object]:
  """Returns the fields of a config that a candidate sets."""
  return {key: value for part, name in choice.items() for key, value in space[part][name].items()}


def rungs(number: int, num_left: int = 3, seeds: int = 1) -> list[tuple[int, int]]:
  """Returns how many candidates each rung has, and with how many seeds each of them is scored.

  >>> rungs(81), rungs(12, num_left=2), rungs(3, seeds=2)
  ([(81, 1), (27, 2), (9, 4), (3, 8)], [(12, 1), (4, 2), (2, 4)], [(3, 2)])
  """
  sizes = [number]
  while sizes[-1] > num_left:
    sizes.append(max(sizes[-1] // 3, num_left))
  return [(size, seeds * 2**i) for i, size in enumerate(sizes)]


def halve(config: ConfigDict, space: Space, candidates: Sequence[Mapping[str, str]],
          score: Callable[[ConfigDict], Scores], *, path: pathlib.Path, num_left: int = 3, seeds: int = 1
          ) -> list[Standing]:
  """Returns the last candidates, choices of parts that change a config, from the lowest loss on.

  ``score`` gives the loss and the accuracy of each seed; the first rung has so many ``seeds``. What ``path``, a
  ``.csv`` file of scores, holds is not trained again.
  """
  saved = {(row["config"], row["seed"]): row for row in rows.read(path)}
  remaining, standings = [*candidates], []
  for size, num_seeds in rungs(len(candidates), num_left, seeds):
    scored = [_standing(config, space, choice, num_seeds, score, saved, path) for choice in remaining[:size]]
    standings = sorted((x for x in scored if np.isfinite(x.loss)), key=lambda x: x.loss)
    if not standings:
      return []
    best = standings[0]
    print(f"{len(scored)} candidates, {num_seeds} seeds: the best is {text(best.choice)}, {best.loss:.4f}")
    remaining = [x.choice for x in standings]
  return standings


def _standing(config, space, choice, num_seeds, score, saved, path) -> Standing:
  """Scores a candidate on seeds that it has not been scored on."""
  try:
    changed = settings.changed(config, {**fields(space, choice), "num_seeds": 1})
  except UserError as error:  # Some losses do not take the labels of some augmentations.
    print(f"{text(choice)}: left out, because {error}")
    return Standing(choice, np.inf)
  keys = [(settings.digest(changed), str(seed)) for seed in range(FIRST_SEED, FIRST_SEED + num_seeds)]
  if missing := [key for key in keys if key not in saved]:
    new = [{"config": key[0], "seed": key[1], "choice": json.dumps(choice), "loss": f"{loss:.6f}",
            "accuracy": f"{accuracy:.6f}"} for key, (loss, accuracy) in zip(missing, score(settings.changed(
              changed, {"seed": int(missing[0][1]), "num_seeds": len(missing)})), strict=True)]
    rows.append(path, new)
    saved |= dict(zip(missing, new, strict=True))
  loss, accuracy = (np.mean([float(saved[key][column]) for key in keys]) for column in ("loss", "accuracy"))
  print(f"{text(choice)}, seeds {keys[0][1]} to {keys[-1][1]}: loss {loss:.4f}, accuracy {100 * accuracy:.2f}%")
  return Standing(choice, float(loss))


def text(choice: Mapping[str, str]) -> str:
  """Returns the names of the choices that do something.

  >>> text({"loss": "focal", "augmentation": "none", "weights": "SAM"})
  'focal, SAM'
  """
  return ", ".join(name for name in choice.values() if name != "none") or "none"
