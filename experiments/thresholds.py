"""How often guarantees of cuts, sets and intervals of costs are broken, and what a temperature does to sets.

Run: python -m experiments.thresholds [PREDICTIONS.npz …]

Each simulation of cuts draws confidences and whether the answer was right, chooses a cut, and compares the exact risk
above it with the one that was asked for. Confidences are of a grid, so that risks are exact sums. Files of predictions,
with logits or probabilities and labels, are what a temperature is fitted to; without them their rows stay. In the end
the tables of docs/thresholds.md and of experiments/results/thresholds.md are written. Everything takes about half an
hour on one CPU core.
"""

import functools
import itertools
import pathlib
import zlib

import jax
import numpy as np
import pandas as pd
from scipy import stats

from calib_jax import calibrators
from calib_jax.evaluation.predictions.loading import load
from calib_jax.thresholds import decision_threshold, prediction_sets, selective_threshold
from calib_jax.thresholds import sets as set_methods
from experiments import threshold_fits
from experiments.common import commands, markdown, studies

REPEATS = 2000
PAGE = commands.RESULTS / "thresholds.md"
SIZES, RISKS = (100, 300, 1000, 10_000), (0.01, 0.05, 0.2)
MODELS = {"two classes": (0.5, 4.0, 1.0), "ten classes": (0.1, 8.0, 1.0)}  # Lowest confidence, and its beta law.
KINDS = ("calibrated", "overconfident", "ties", "groups of five", "large groups are wrong", "bounded losses")


@functools.cache
def _grid(model: str, kind: str, steps: int = 2000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The confidences, from the largest on, their probabilities, and how often the answer is right at each."""
  low, a, b = MODELS[model]
  grid = np.linspace(0, 1, steps + 1)
  mass = np.diff(stats.beta(a, b).cdf(grid))
  confidence = low + (1 - low) * (grid[1:] + grid[:-1]) / 2
  right = confidence**1.5 if kind == "overconfident" else confidence
  if kind == "ties":
    confidence = np.ceil(20 * confidence) / 20
  return confidence[::-1], mass[::-1], right[::-1]


def _measured(model: str, kind: str, size: int, risk: float) -> list[dict[str, object]]:
  """How often the risk is above the asked one, the mean coverage, and that of the best cut."""
  confidence, mass, right = _grid(model, kind)
  coverage = np.cumsum(mass)
  risks = np.cumsum(mass * (1 - right)) / coverage
  last = np.append(confidence[1:] != confidence[:-1], True)  # The last of those of equal confidence.
  best = np.max(coverage[(risks <= risk) & last], initial=0.0)
  rng = np.random.default_rng(zlib.crc32(f"{model} {kind} {size} {risk}".encode()))
  broken, covered, reached = 0, [], 0
  for _ in range(REPEATS):
    index = rng.choice(len(mass), -(-size // 5) if kind == "groups of five" else size, p=mass / mass.sum())
    if kind == "bounded losses":
      correct, method = rng.beta(2 * right[index], 2 - 2 * right[index]), "hoeffding_bentkus"
    else:
      correct, method = rng.uniform(size=len(index)) < right[index], "binomial"
    groups = None
    if "groups" in kind:  # Those of a group are copies: they depend as much as they can.
      rows_of_group = 5 if kind == "groups of five" else np.where(correct, 1, 20)
      groups = np.repeat(np.arange(len(index)), rows_of_group)
      index, correct = index[groups], correct[groups]
    cut = selective_threshold(confidence[index], correct, risk=risk, method=method, groups=groups).cut
    place = int(np.sum(confidence >= cut)) - 1
    reached += place >= 0
    broken += place >= 0 and risks[place] > risk
    covered.append(coverage[place] if place >= 0 else 0.0)
  return [{"repeats": REPEATS, "broken": broken / REPEATS, "reached": reached / REPEATS, "coverage": np.mean(covered),
           "best": best}]


def _table(rows: pd.DataFrame) -> str:
  """The highest share of broken guarantees of the three risks in percent, and the mean coverage at 5%, by size."""
  lines = []
  for model, kind in itertools.product(MODELS, KINDS):
    part = rows[(rows.model == model) & (rows.kind == kind)]
    at = part[part.risk == 0.05].set_index("size")
    broken = part.groupby("size").broken.max()
    lines.append([model, kind, f"{100 * at.best.iloc[0]:.0f}",
                  *(f"{100 * broken[size]:.1f} ({100 * at.coverage[size]:.0f})" for size in sorted(at.index))])
  return markdown.table(["model", "rows", "best cut accepts %", *(f"n = {size:,}" for size in SIZES)], lines)


def _table_of_risks(rows: pd.DataFrame) -> str:
  """The share of broken guarantees in percent and the mean coverage by risk and size."""
  lines = []
  for (model, kind, risk), part in rows.groupby(["model", "kind", "risk"], sort=False):
    cells = (f"{100 * row.broken:.1f} ({100 * row.coverage:.0f})" for row in part.sort_values("size").itertuples())
    lines.append([model, kind, f"{100 * risk:g}", f"{100 * part.best.iloc[0]:.0f}", *cells])
  return markdown.table(["model", "rows", "risk %", "best cut accepts %", *(f"n = {size:,}" for size in SIZES)], lines)


STUDY = studies.Study("thresholds", ("model", "kind", "size", "risk"),
                      [(model, kind, size, risk) for model, kind, risk, size in itertools.product(
                        MODELS, KINDS, RISKS, SIZES)], _measured, _table)


def _costs(miss: int, size: int) -> list[dict[str, object]]:
  """How often the intervals of a cost, and of what it is less than those of one act, hold the exact values."""
  rng = np.random.default_rng(zlib.crc32(f"{miss} {size}".encode()))
  costs, law = np.array([[0.0, miss], [1.0, 0.0]]), stats.beta(0.5, 20)
  grid = law.ppf((np.arange(200_000) + 0.5) / 200_000)
  cost = np.where(grid * miss > 1 - grid, 1 - grid, miss * grid).mean()
  truth = np.array([cost, (miss * grid).mean() - cost, (1 - grid).mean() - cost])
  covered = np.zeros(3)
  for _ in range(REPEATS):
    p = law.rvs(size, random_state=rng)
    decision = decision_threshold(np.stack([1 - p, p], 1), costs, (rng.uniform(size=size) < p).astype(int))
    ends = np.array([decision.interval, *decision.saved_interval])
    covered += (ends[:, 0] <= truth) & (truth <= ends[:, 1])
  return [{"repeats": REPEATS, "cost": covered[0] / REPEATS, "less_than_never": covered[1] / REPEATS,
           "less_than_always": covered[2] / REPEATS}]


def _costs_table(rows: pd.DataFrame) -> str:
  """How often the interval that does so least often of the three holds the exact value, in percent."""
  least = rows.set_index(["miss", "size"])[["cost", "less_than_never", "less_than_always"]].min(axis=1).unstack()
  return markdown.table(["a miss costs", *(f"n = {size:,}" for size in least)],
                        [[miss, *studies.percent(row)] for miss, row in least.iterrows()])


COSTS = studies.Study("thresholds_costs", ("miss", "size"), [*itertools.product((10, 100), (100, 1000, 10_000))],
                      _costs, _costs_table)


RULES = {"LAC": {"method": "lac"}, "APS": {"method": "aps"}, "RAPS": {"method": "raps"},
         "LAC by class": {"method": "lac", "by_class": True}}


def _coverage(model: str, kind: str, size: int) -> list[dict[str, object]]:
  """How often sets hold the true class, 90% being asked, and by class the class for which they do so least often."""
  confidence, mass, right = _grid(model, kind, 40)
  classes = round(1 / MODELS[model][0])
  predicted = np.eye(classes, dtype=bool)
  # By confidence, predicted class and class: what the model says, and what is true.
  probs, true = (np.where(predicted, top[:, None, None], (1 - top[:, None, None]) / (classes - 1))
                 for top in (confidence, right))
  share_predicted = np.arange(1, classes + 1) / np.arange(1, classes + 1).sum()
  joint = (mass / mass.sum())[:, None, None] * share_predicted[:, None] * true
  rng, rows = np.random.default_rng(zlib.crc32(f"{model} {kind} {size}".encode())), probs.reshape(-1, classes)
  hits, sizes = np.zeros((len(RULES), REPEATS, classes)), np.zeros(len(RULES))
  for repeat in range(REPEATS):
    place = rng.choice(joint.size, size, p=joint.ravel())
    keys = [jax.random.key(2 * repeat + i) for i in range(2)]
    for i, options in enumerate(RULES.values()):
      rule = prediction_sets(rows[place // classes], place % classes, key=keys[0], **options)
      sets = rule(rows, key=keys[1]).reshape(joint.shape)
      hits[i, repeat] = (joint * sets).sum((0, 1))
      sizes[i] += (joint.sum(2) * sets.sum(2)).sum() / REPEATS
  result = []
  for name, of_rule, mean_size in zip(RULES, hits, sizes, strict=True):
    shares = of_rule / joint.sum((0, 1)) if "by_class" in RULES[name] else of_rule.sum(1, keepdims=True)
    least = np.argmin(shares.mean(0))
    result.append({"rule": name, "repeats": REPEATS, "coverage": shares.mean(0)[least],
                   "error": shares.std(0)[least] / REPEATS**0.5, "set_size": mean_size})
  return result


def _coverage_table(rows: pd.DataFrame) -> str:
  """Coverages in percent and mean sizes by rule and size; bold if below 90% by more than three standard errors."""
  is_low = rows.coverage + 3 * rows.error < 0.9
  shares = studies.percent(rows.coverage)
  cells = shares.mask(is_low, "**" + shares + "**") + rows.set_size.map(" ({:.2f})".format)
  table = rows.assign(cell=cells).set_index(["model", "kind", "rule", "size"]).cell
  return markdown.table(["model", "rows", "rule", *(f"n = {size:,}" for size in SIZES)], [
    [*key, *(table[(*key, size)] for size in SIZES)] for key in itertools.product(MODELS, KINDS[:3], RULES)])


COVERAGE = studies.Study("thresholds_coverage", ("size", "model", "kind"), [
  *itertools.product(SIZES, MODELS, KINDS[:3])], lambda size, *law: _coverage(*law, size), _coverage_table)
SPLITS, FITTED = 20, ("nothing", "other examples", "the same examples")


def _sets(files: dict[str, pathlib.Path], name: str, method: str) -> list[dict[str, object]]:
  """Sets of half of the examples: a quarter fits the temperature and a quarter, or the same one, chooses the rule."""
  part, fitted = load(files[name]), calibrators.temperature_scaling()
  sums = {name: np.zeros(3) for name in FITTED}
  for split in range(SPLITS):
    order = np.random.default_rng(split).permutation(len(part.labels))
    fits, chooses, tests = np.split(order, [len(order) // 4, len(order) // 2])
    for source, rows in zip(FITTED, (None, fits, chooses), strict=True):
      logits, temperature = part.logits, 1.0
      if rows is not None:
        params = fitted.fit(part.logits[rows], part.labels[rows])
        logits, temperature = fitted.apply(params, part.logits), float(params["temperature"])
      probs = np.asarray(jax.nn.softmax(logits), np.float64)
      probs /= probs.sum(1, keepdims=True)
      rule = prediction_sets(probs[chooses], part.labels[chooses], method=method, key=jax.random.key(2 * split))
      sets = rule(probs[tests], key=jax.random.key(2 * split + 1))
      sums[source] += [temperature, sets[np.arange(len(tests)), part.labels[tests]].mean(), sets.sum(1).mean()]
  return [{"temperature_fitted_to": source, "splits": SPLITS,
           **dict(zip(("temperature", "coverage", "size"), total / SPLITS, strict=True))}
          for source, total in sums.items()]


def _sets_table(rows: pd.DataFrame) -> str:
  """The mean sizes of sets without and with a temperature of other examples, and the coverages in percent."""
  lines = []
  for name, part in rows.groupby("predictions", sort=False):
    sizes, coverages = (part.set_index(["method", "temperature_fitted_to"])[key] for key in ("size", "coverage"))
    cells = [f"{' → '.join(f'{sizes[method, source]:.2f}' for source in FITTED[:2])} "
             f"({', '.join(f'{100 * coverages[method, source]:.1f}' for source in FITTED)})"
             for method in set_methods.METHODS]
    lines.append([name, f"{part[part.temperature_fitted_to == FITTED[1]].temperature.mean():.2f}", *cells])
  return markdown.table(["predictions", "T", *map(str.upper, set_methods.METHODS)], lines)


def sets_study(files: list[pathlib.Path]) -> studies.Study:
  """Returns what is measured on files of predictions."""
  by_name = {file.stem: file for file in files}
  return studies.Study("thresholds_sets", ("predictions", "method"), [*itertools.product(by_name, set_methods.METHODS)],
                       functools.partial(_sets, by_name), _sets_table)


def main(arguments: list[str] | None = None) -> None:
  """Runs what has no rows yet, and writes the tables of the guide."""
  parser = commands.parser("experiments.thresholds", __doc__)
  parser.add_argument("predictions", nargs="*", type=pathlib.Path)
  sets = sets_study(parser.parse_args(arguments).predictions)
  for study in (STUDY, threshold_fits.STUDY, COVERAGE, COSTS, sets):
    study.run()
  studies.write("thresholds.md", "experiments.thresholds", STUDY.page(), sets.page())
  by_risk = STUDY._replace(table=_table_of_risks)
  studies.write(PAGE, "experiments.thresholds", *(study.page() for study in (
    by_risk, threshold_fits.STUDY, COVERAGE, COSTS)))


if __name__ == "__main__":
  main()
