"""Is a method of the papers better than cross entropy, if both get the same search?

Run: python -m experiments.equal_search --data=IMAGES.npz --network=resnet8

Cross entropy, averages of its weights (EMA, SWA), and the seven methods of the papers whose log loss after calibration
is the lowest on validation images, each with the setting that the leaderboard chose, are searched alike. All have
RandAugment, which those that mix images apply first. Each tries the twelve pairs of `RATES` and `DECAYS`, then two
more with the best pair: the neighbours of its own setting, or the next rate and the next decay if it has none. A pair
goes on by successive halving (experiments/common/halving.py) on the log loss after calibration (`select`, out of fold)
of validation images of seeds that no row has.

What the search chose is trained with ten seeds: cross entropy, the four methods of the papers and the one average of
the lowest log loss on validation images. Cross entropy, the best of the papers and the average are also trained as
ensembles of five, with five seeds, so that one network is compared with one, and five with five; cross entropy without
each part of its setting has five seeds. The rows of the leaderboard must be there: `python -m experiments.leaderboard`
with the same `--data` and `--network` makes them.

`--only` with a word that is in no name, such as `--only=nothing`, makes the page anew, and neither searches nor trains.
"""

import argparse
from collections.abc import Mapping, Sequence
import functools
import itertools
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
from experiments.leaderboard.methods import COMBINED, METHODS, Recipe
from experiments.leaderboard.page import BASELINE

NUM_METHODS, NUM_BEST, SEEDS, MEMBERS = 7, 4, 10, 5
RATES, DECAYS = (0.05, 0.1, 0.2, 0.4), (5e-4, 2e-3, 5e-3)
NEXT = {"optimizer.learning_rate": 0.8, "optimizer.l2": 0.01}  # Tried with the best by methods without a setting.
AVERAGES = ("EMA", "SWA")
SAME = ("weight decay",)  # Methods that the search makes of cross entropy.
LABEL = "structured matrix"  # The calibrator that ``recommended`` names for 2,000 examples of 10 classes.
WITH = " with "  # Stands between a method and what the search adds to it.
ENSEMBLE = f", ensemble of {MEMBERS}"
AIM = 0.03  # The relative difference of log loss, one network against one, that is aimed at.


def methods(options: argparse.Namespace) -> list[Method]:
  """Returns what the search chose: the best alone and in part as ensembles, and cross entropy without each part."""
  recipes = {name: recipe for name, recipe in METHODS.items() if name not in SAME}
  if options.only and not any(word in name for word in options.only for name in recipes):
    return []
  board = rows.texts(RESULTS / f"leaderboard_{scales.suffix(options)}.csv")
  if BASELINE not in set(board.get("method", ())):
    raise UserError("the rows of the leaderboard on these images and this network are missing: run "
                    "`python -m experiments.leaderboard` with the same --data and --network first.")
  base = scales.base(options)
  tuned = {name: {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
           for name, fields in comparison.chosen(board).items()}
  path = sweep.stem_of(EXPERIMENT, options)
  search = functools.partial(halving.halve, base, score=validated, path=path.with_name(f"{path.name}_halving.csv"))

  every = {name: {**recipe.at(options.scale), **tuned.get(name, {})} for name, recipe in recipes.items()}
  lowest = [x.choice["method"] for x in search({"method": every}, [{"method": name} for name in every],
                                               num_left=NUM_METHODS + 1)]
  names = [BASELINE, *[name for name in lowest if name != BASELINE][:NUM_METHODS], *AVERAGES]
  magnitude = tuned["RandAugment"]["augmentation.magnitude"]
  found = {}
  for name in names:
    recipe = {**METHODS, **COMBINED}[name]
    space = space_of(name, recipe, {**recipe.at(options.scale), **tuned.get(name, {})}, magnitude)
    pairs = [{"method": name, "own": "none", "augmentation": "RandAugment", "decay": decay, "rate": rate}
             for decay, rate in itertools.product(_of("decay", DECAYS), _of("rate", RATES))]
    standings = search(space, pairs, num_left=2)
    if not standings:
      continue  # A method that cannot be trained on augmented images.
    best = standings[0].choice
    more = [{**best, part: choice} for part, choices in further(space).items() for choice in choices]
    found[name] = space, search(space, [best, *more], seeds=2)[0]
  return [Method(scales.suffix(options), name, functools.partial(settings.changed, base, fields), members=members)
          for name, fields, members in _trained(found)]


def _of(part: str, values: Sequence[float]) -> dict[str, float]:
  """The names of the values of a part.

  >>> _of("decay", (5e-4, 0.01))
  {'decay 5e-4': 0.0005, 'decay 0.01': 0.01}
  """
  return {f"{part} {value:g}" if value >= 0.01 else f"{part} {value:.0e}".replace("e-0", "e-"): value
          for value in values}


def space_of(name: str, recipe: Recipe, own: Mapping[str, object], magnitude: float) -> halving.Space:
  """Returns the fields of each choice: what the search adds to a method's own fields, ``own``, and what it leaves out.

  The choice "none" of a part stands for cross entropy without it, and is no candidate.
  """
  mixes = any(key.partition(".")[0] == "augmentation" for key in own)
  augment = {"augmentation.magnitude": magnitude} if mixes else {
    "augmentation": {"name": "randaugment", "padding": 0, "flip": False, "magnitude": magnitude}}
  key = next((key for key in recipe.search if key not in NEXT), "")
  values = list(tuning.LADDERS.get(key, recipe.search.get(key, ())))
  beside = [values[i] for i in (values.index(own[key]) - 1, values.index(own[key]) + 1) if 0 <= i < len(values)
            ] if key else []
  return {"method": {name: own}, "own": {"none": {}} | {f"{key.rpartition('.')[2].replace('_', ' ')} {value}": {
    key: value} for value in beside}, "augmentation": {"none": {}, "RandAugment": augment},
    **{part: {"none": {}} | {text: {key: value} for text, value in _of(part, values).items()} for part, key, values in (
      ("decay", "optimizer.l2", (*DECAYS, NEXT["optimizer.l2"])),
      ("rate", "optimizer.learning_rate", (*RATES, NEXT["optimizer.learning_rate"])))}}


def further(space: halving.Space) -> dict[str, list[str]]:
  """Returns, by part, the choices that are tried with the best pair: at most two."""
  own = [choice for choice in space["own"] if choice != "none"]
  return {"own": own} if own else {part: list(space[part])[-1:] for part in ("decay", "rate")}


def _trained(found: Mapping[str, tuple[halving.Space, halving.Standing]]) -> list[tuple[str, dict[str, object], int]]:
  """Returns the name, the fields and the number of networks of each row."""
  order = sorted((name for name in found if name != BASELINE), key=lambda name: found[name][1].loss)
  best, averages = ([name for name in order if (name in AVERAGES) == is_average] for is_average in (False, True))
  alone, five = [BASELINE, *best[:NUM_BEST], *averages[:1]], [BASELINE, *best[:1], *averages[:1]]
  space, standing = found[BASELINE]
  parts = ["augmentation", "decay"] + ["rate"] * (standing.choice["rate"] != f"rate {RATES[0]:g}")  # The default.
  wanted = [(*found[name], 1, SEEDS) for name in alone] + [(*found[name], MEMBERS, 5) for name in five]
  wanted = [(space, standing.choice, *more) for space, standing, *more in wanted]
  wanted += [(space, {**standing.choice, part: "none"}, 1, 5) for part in parts]
  return [(named(choice) + (ENSEMBLE if members > 1 else ""), {**halving.fields(space, choice), "num_seeds": seeds},
           members) for space, choice, members, seeds in wanted]


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


def named(choice: Mapping[str, str]) -> str:
  """Returns the name of a candidate in tables.

  >>> named({"method": "focal", "augmentation": "RandAugment", "decay": "none", "rate": "rate 0.2"})
  'focal with RandAugment, rate 0.2'
  >>> named({"method": "focal", "augmentation": "none", "decay": "none", "rate": "none"})
  'focal'
  """
  added = halving.text({part: value for part, value in choice.items() if part != "method"})
  return choice["method"] + (WITH + added if added != "none" else "")


def parts_of(name: str) -> list[str]:
  """Returns what the search added to the method of a row.

  >>> parts_of("focal with RandAugment, rate 0.2, ensemble of 5"), parts_of("focal")
  (['RandAugment', 'rate 0.2'], [])
  """
  return list(filter(None, name.removesuffix(ENSEMBLE).partition(WITH)[2].split(", ")))


def method_of(name: str) -> str:
  """Returns the method of a row.

  >>> method_of("focal with RandAugment, ensemble of 5"), method_of("focal, ensemble of 5")
  ('focal', 'focal')
  """
  return name.partition(WITH)[0].removesuffix(ENSEMBLE)


def findings(table_rows: pd.DataFrame, name: str = "") -> list[str]:
  """Returns the lines of Markdown that compare methods with cross entropy, one network with one and five with five.

  ``shown`` stands on the intervals, as on all pages.
  """
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
           f"{comparison.population(table_rows)}, and p is theirs. Exact sign flips over seeds, which need no normal "
           "distribution, give the second p. Both are corrected by Holm's method within each table.", "",
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
  flips = [comparison.sign_flips(by_name[name], by_name[reference]) for name in others]
  shown = {sign: [method_of(name) for name, change, p in zip(
    others, changes, p_values, strict=True) if p < 1 - comparison.LEVEL and sign * change.mean > 0] for sign in (-1, 1)}
  cells = [line(reference, "", "", "", "")]
  cells += [line(name, change.text(4), f"{100 * change.mean / by_name[reference].mean:+.1f}%",
                 *map(comparison.p_text, both))
            for name, change, *both in zip(others, changes, p_values, holm(flips), strict=True)]
  undecided = len(others) - sum(map(len, shown.values()))
  same = [method_of(name) for name in others if dict(by_name[name]) == dict(by_name[reference])]
  same_text = f" ({'; '.join(same)}: the same training as cross entropy's)" if same else ""
  words = [f"Shown to have a {word} log loss than cross entropy with the same search: "
           f"{'; '.join(shown[sign]) or 'none'}." for sign, word in ((-1, "lower"), (1, "higher"))]
  by_flips = [method_of(name) for name, p in zip(others, holm(flips), strict=True) if p < 1 - comparison.LEVEL]
  num_seeds = min(len(by_name[name]) for name in by_name)
  least = f"; no p of {num_seeds} seeds is below {2.0 ** (1 - num_seeds):.2g}" if num_seeds < 8 else ""
  return [markdown.table(["trained with", "log loss", "less that of cross entropy", "relative", "p", "p by sign flips",
                          "accuracy %", "ECE %", "noise floor %"], cells), "",
          f"{' '.join(words)} Not shown to differ: {undecided} of {len(others)}{same_text}. Shown to differ by sign "
          f"flips: {'; '.join(by_flips) or 'none'}{least}. "
          + _lowest(others, by_name, by_name[reference], None if title != "one network" else AIM)]


def _lowest(others: Sequence[str], by_name: Mapping[str, comparison.BySeed], reference: comparison.BySeed,
            aim: float | None) -> str:
  """Names the lowest of the others, and says whether it reaches 1 - aim of the reference, corrected for the choice."""
  change = comparison.paired(by_name[others[0]], reference)
  mean, low, high = (f"{100 * x / reference.mean:+.1f}" for x in change[:3])
  sentence = f"The lowest mean is that of {others[0]}: {mean}% [{low}, {high}]"
  if aim is None:
    return sentence + "."
  factor = 1 - aim
  target = comparison.BySeed({seed: factor * value for seed, value in reference.items()})
  target.blocks = None if reference.blocks is None else factor * reference.blocks
  beyond = comparison.paired(by_name[others[0]], target)
  is_shown = beyond.p_value * len(others) < 1 - comparison.LEVEL
  reached = "not shown to be met or missed" if not is_shown else "met" if beyond.mean < 0 else "missed"
  return f"{sentence}; the aim of {100 * aim:.0f}% less than cross entropy with the same search is {reached}."


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
