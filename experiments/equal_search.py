"""Is a method of the papers better than cross entropy, if both get the same search?

Run: python -m experiments.equal_search --data=IMAGES.npz [--network=mlp]

Cross entropy and the ten methods of the lowest log loss after calibration on validation images take part, each with the
setting that the leaderboard chose. All are searched alike: a weight decay and a learning rate, with and without
RandAugment, twelve candidates each (for a method with an augmentation of its own: further rates), by successive halving
(experiments/common/halving.py). Candidates are ordered by the log loss after calibration (`select`, out of fold) of
validation images of seeds that no row has. The best candidate of each method is then trained with the seeds of the
leaderboard; so is that of cross entropy without each of its parts. Cross entropy and the three methods of the lowest
log loss on validation images are also trained as ensembles of five, so that one network is compared with one, and five
with five. The rows of the leaderboard must be there: `python -m experiments.leaderboard` with the same `--data` and
`--network` makes them.

`--only` with a word that is in no name, such as `--only=nothing`, makes the page anew, and neither searches nor trains.
"""

import argparse
from collections.abc import Mapping, Sequence
import functools
import sys

import jax
from ml_collections import ConfigDict
import numpy as np
import pandas as pd

from calib_jax import calibrators
from calib_jax._system.errors import UserError
from calib_jax.intervals.calibration_tests import holm
from experiments.common import comparison, halving, markdown, ranking, rows, scales, settings, sweep, tuning
from experiments.common.commands import RESULTS
from experiments.common.declaration import Experiment, Method
from experiments.leaderboard.experiment import CALIBRATORS
from experiments.leaderboard.methods import COMBINED, METHODS
from experiments.leaderboard.page import BASELINE

NUM_METHODS, NUM_ENSEMBLES, MEMBERS = 10, 3, 5
LABEL = "structured matrix"  # The calibrator that ``recommended`` names for 2,000 examples of 10 classes.
WITH = " with "  # Stands between a method and what the search adds to it.
ENSEMBLE = f", ensemble of {MEMBERS}"
AIMS = {"one network": 0.05, f"ensembles of {MEMBERS}": 0.10}  # The relative differences of log loss that are aimed at.


def methods(options: argparse.Namespace) -> list[Method]:
  """Returns the best candidate of each method, alone and in part as ensembles, and cross entropy without each part."""
  if options.only and not any(word in name for word in options.only for name in METHODS):
    return []
  board = rows.texts(RESULTS / f"leaderboard_{scales.suffix(options)}.csv")
  if BASELINE not in set(board.get("method", ())):
    raise UserError("the rows of the leaderboard on these images and this network are missing: run "
                    "`python -m experiments.leaderboard` with the same --data and --network first.")
  base, chosen = scales.base(options), comparison.chosen(board)
  own = {name: {**recipe.at(options.scale), **chosen.get(name, {})} for name, recipe in METHODS.items()}
  augmentation = {**COMBINED["RandAugment"].at(options.scale), **chosen.get("RandAugment", {})}
  path = sweep.stem_of(EXPERIMENT, options)
  search = functools.partial(halving.halve, base, score=validated, path=path.with_name(f"{path.name}_halving.csv"))

  every = {"method": {BASELINE: own[BASELINE], **own}}
  lowest = search(every, halving.draw(every, len(own)), num_left=NUM_METHODS + 1)
  searched = {}
  for name in dict.fromkeys([BASELINE, *(x.choice["method"] for x in lowest)]):
    space = space_of(name, own[name], augmentation, settings.changed(base, own[name]).optimizer.learning_rate)
    searched[name] = space, search(space, halving.draw(space, 12))[0]
  wanted = {}
  order = sorted(searched, key=lambda name: searched[name][1].loss)
  five = {BASELINE, *[name for name in order if name != BASELINE][:NUM_ENSEMBLES]}
  for name, (space, best) in searched.items():
    for members in (1, MEMBERS) if name in five else (1,):
      wanted[named(best.choice) + (ENSEMBLE if members > 1 else "")] = space, best.choice, members
  space, best = searched[BASELINE]
  for part in [part for part, value in best.choice.items() if value != "none" and part != "method"]:
    choice = {**best.choice, part: "none"}
    wanted.setdefault(named(choice), (space, choice, 1))
  return [Method(scales.suffix(options), name,
                 functools.partial(settings.changed, base, halving.fields(space, choice)), members=members)
          for name, (space, choice, members) in wanted.items()]


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


def space_of(name: str, own: Mapping[str, object], augmentation: Mapping[str, object], rate: float) -> halving.Space:
  """Returns the twelve candidates of a method: the choices of each part that the search adds to its own fields."""
  has_augmentation = any(key.partition(".")[0] == "augmentation" for key in own)
  factors = {"twice the rate": 2} | ({"half the rate": 0.5, "four times the rate": 4} if has_augmentation else {})
  return {"method": {name: own},
          "augmentation": {"none": {}} | ({} if has_augmentation else {"RandAugment": augmentation}),
          "decay": {"none": {}, "decay 5e-4": {"optimizer.l2": 5e-4}, "decay 2e-3": {"optimizer.l2": 2e-3}},
          "rate": {"none": {}} | {text: {"optimizer.learning_rate": factor * rate} for text, factor in factors.items()}}


def named(choice: Mapping[str, str]) -> str:
  """Returns the name of a candidate in tables.

  >>> named({"method": "focal", "augmentation": "RandAugment", "decay": "none", "rate": "twice the rate"})
  'focal with RandAugment, twice the rate'
  >>> named({"method": "focal", "augmentation": "none", "decay": "none", "rate": "none"})
  'focal'
  """
  added = halving.text({part: value for part, value in choice.items() if part != "method"})
  return choice["method"] + (WITH + added if added != "none" else "")


def parts_of(name: str) -> list[str]:
  """Returns what the search added to the method of a row.

  >>> parts_of("focal with RandAugment, twice the rate, ensemble of 5"), parts_of("focal")
  (['RandAugment', 'twice the rate'], [])
  """
  return list(filter(None, name.removesuffix(ENSEMBLE).partition(WITH)[2].split(", ")))


def method_of(name: str) -> str:
  """Returns the method of a row.

  >>> method_of("focal with RandAugment, ensemble of 5"), method_of("focal, ensemble of 5")
  ('focal', 'focal')
  """
  return name.partition(WITH)[0].removesuffix(ENSEMBLE)


def findings(table_rows: pd.DataFrame, name: str = "") -> list[str]:
  """Returns the lines of Markdown that compare methods with cross entropy, one network with one and five with five."""
  del name
  nll = ranking.of_methods(table_rows, "nll", LABEL)
  of_baseline = [name for name in nll if name.partition(WITH)[0] == BASELINE and not name.endswith(ENSEMBLE)]
  if not of_baseline:
    return [f"The comparison needs the rows of {BASELINE}."]
  whole = max(of_baseline, key=lambda name: len(parts_of(name)))
  alone = {name: values for name, values in nll.items()
           if not name.endswith(ENSEMBLE) and (name == whole or name not in of_baseline)}
  together = {name: nll[name] for name in nll if name.endswith(ENSEMBLE)}
  lines = [f"All are calibrated by {LABEL} scaling. Differences are paired by seed; brackets are 95% intervals "
           f"{comparison.population(table_rows)}; p is corrected by Holm's method within each table.", "",
           _chosen(alone), ""]
  for title, by_name, reference in (("one network", alone, whole), (f"ensembles of {MEMBERS}", together,
                                                                   whole + ENSEMBLE)):
    if reference in by_name and len(by_name) > 1:
      lines += [f"## {title.capitalize()}", "", *_compared(title, by_name, reference, table_rows), ""]
  return [*lines, *_parts(whole, nll, of_baseline, table_rows)]


def _chosen(alone: Mapping[str, comparison.BySeed]) -> str:
  """Says how often the search chose each part."""
  counts = pd.Series([part for name in alone for part in parts_of(name)], dtype=str).value_counts()
  return (f"Of {len(alone)} methods, the search chose " + ", ".join(f"{part} for {n}" for part, n in counts.items())
          if len(counts) else f"The search added nothing to any of {len(alone)} methods") + "."


def _compared(title: str, by_name: Mapping[str, comparison.BySeed], reference: str, table_rows: pd.DataFrame
              ) -> list[str]:
  """The table of methods with the same number of networks, and what it shows."""
  by_column = {column: ranking.of_methods(table_rows, column, LABEL) for column in ("nll", "accuracy", "ece", "floor")}

  def line(name: str, *compared: str) -> list[str]:
    nll, *scores = (comparison.cell(values[name], column) for column, values in by_column.items())
    return [name, nll, *compared, *scores]

  others = sorted((name for name in by_name if name != reference), key=lambda name: by_name[name].mean)
  changes = [comparison.paired(by_name[name], by_name[reference]) for name in others]
  p_values = holm([change.p_value for change in changes])
  shown = {sign: [method_of(name) for name, change, p in zip(
    others, changes, p_values, strict=True) if p < 1 - comparison.LEVEL and sign * change.mean > 0] for sign in (-1, 1)}
  cells = [line(reference, "", "", "")]
  cells += [line(name, change.text(4), f"{100 * change.mean / by_name[reference].mean:+.1f}%", comparison.p_text(p))
            for name, change, p in zip(others, changes, p_values, strict=True)]
  undecided = len(others) - sum(map(len, shown.values()))
  same = [method_of(name) for name in others if dict(by_name[name]) == dict(by_name[reference])]
  same_text = f" ({'; '.join(same)}: the same training as cross entropy's)" if same else ""
  words = [f"Shown to have a {word} log loss than cross entropy with the same search: "
           f"{'; '.join(shown[sign]) or 'none'}." for sign, word in ((-1, "lower"), (1, "higher"))]
  return [markdown.table(["trained with", "log loss", "less that of cross entropy", "relative", "p", "accuracy %",
                          "ECE %", "noise floor %"], cells), "",
          f"{' '.join(words)} Not shown to differ: {undecided} of {len(others)}{same_text}. "
          + _aim(title, others, by_name, by_name[reference])]


def _aim(title: str, others: Sequence[str], by_name: Mapping[str, comparison.BySeed], reference: comparison.BySeed
         ) -> str:
  """Says whether the lowest of the others reaches 1 less the aim times the reference, corrected for the choice."""
  factor, change = 1 - AIMS[title], comparison.paired(by_name[others[0]], reference)
  target = comparison.BySeed({seed: factor * value for seed, value in reference.items()})
  target.blocks = None if reference.blocks is None else factor * reference.blocks
  beyond = comparison.paired(by_name[others[0]], target)
  is_shown = beyond.p_value * len(others) < 1 - comparison.LEVEL
  reached = "not shown to be met or missed" if not is_shown else "met" if beyond.mean < 0 else "missed"
  mean, low, high = (f"{100 * x / reference.mean:+.1f}" for x in change[:3])
  return (f"The lowest mean is that of {others[0]}: {mean}% [{low}, {high}]; the aim of {100 * AIMS[title]:.0f}% less "
          f"than cross entropy with the same search is {reached}.")


def _parts(whole: str, nll: Mapping[str, comparison.BySeed], of_baseline: list[str], table_rows: pd.DataFrame
           ) -> list[str]:
  """What each part gives to cross entropy."""
  without = {part: [x for x in parts_of(whole) if x != part] for part in parts_of(whole)}
  fewer = {part: name for part, parts in without.items() for name in of_baseline if parts_of(name) == parts}
  if not fewer:
    return []
  accuracy = ranking.of_methods(table_rows, "accuracy", LABEL)
  changes = {part: comparison.paired(nll[whole], nll[name]) for part, name in fewer.items()}
  p_values = dict(zip(changes, holm([change.p_value for change in changes.values()]), strict=True))
  gains = [part for part, change in changes.items() if change.mean < 0 and p_values[part] < 1 - comparison.LEVEL]
  cells = [[part, comparison.cell(nll[fewer[part]], "nll"), change.text(4),
            f"{100 * change.mean / nll[fewer[part]].mean:+.1f}%", comparison.p_text(p_values[part]),
            comparison.paired(accuracy[whole], accuracy[fewer[part]]).text(2, 100)] for part, change in changes.items()]
  return ["## What each part gives to cross entropy", "",
          f"*{whole}* less the same without one part. Shown to lower the log loss: {', '.join(gains) or 'none'}.", "",
          markdown.table(["part", "log loss without it", "change of the log loss", "relative", "p",
                          "of the accuracy, points"], cells)]


EXPERIMENT = Experiment("equal_search", "Cross entropy and the papers' methods, with the same search", methods,
                        {label: CALIBRATORS[label] for label in ("TS", LABEL)},
                        ("accuracy", "nll", "brier", "ece", "ece_shifted"), arguments=scales.arguments,
                        suffix=scales.suffix, findings=findings)


if __name__ == "__main__":
  sys.exit(sweep.main(EXPERIMENT))
