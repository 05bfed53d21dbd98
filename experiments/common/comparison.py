"""Compares rows of an experiment seed by seed, and formats them as Markdown and LaTeX tables."""

from collections.abc import Callable, Mapping, Sequence
import json
import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from calib_jax.evaluation.columns import COLUMNS
from calib_jax.evaluation.reports import markup
from calib_jax.intervals import banerjee
from experiments.common import markdown, scales
from experiments.common.rows import Row, Rows

LEVEL = 0.95
Key = tuple[str, str, str]  # Task, method and calibrator.
Cost = Callable[[Row], Sequence[str]]  # The texts below COST_HEADINGS of the method of a row.
COST_HEADINGS = ("times to train", "times to predict")
OTHER_ERRORS = ("ece_corrected", "marginal")  # Columns that evaluations do not have, of which lower is better.
HEADINGS = {"ece_corrected": "ECE % less its bias", "floor": "noise floor %", "p_value": "p",
            "marginal": "marginal ECE %, equal mass, norm 2", "ece_shifted": "ECE % on corrupted images",
            "accuracy_train": "train accuracy %", "ece_train": "train ECE %", "auroc_ood": "AUROC %",
            "fpr95_ood": "FPR95 %"}
DIGITS = {"nll": 4, "brier": 4, "p_value": 3}
UNIT = 1e-5  # Of the values without blocks of images that rows hold.


class Difference(NamedTuple):
  """The mean difference of two rows, its 95% interval, Cohen's d over seeds, the p-value, and the standard error."""

  mean: float
  low: float
  high: float
  effect: float
  p_value: float
  error: float

  def text(self, digits: int, scale: float = 1.0) -> str:
    """Returns the mean and the interval with their signs.

    >>> Difference(0.5, -0.25, 1.25, 1.0, 0.2, 0.3).text(1, 100)
    '+50.0 [-25.0, +125.0]'
    """
    mean, low, high = (f"{scale * x:+.{digits}f}" for x in self[:3])
    return f"{mean} [{low}, {high}]"


class BySeed(dict):
  """The values of a row by seed, and what their sum over seeds is without each block of test images."""

  blocks: np.ndarray | None = None  # ``[B]``, that sum less its mean over blocks; None if the rows do not have it.

  @property
  def mean(self) -> float:
    """The mean over seeds."""
    return float(np.mean([*self.values()]))

  @property
  def is_finite(self) -> bool:
    """Whether no seed diverged."""
    return bool(np.isfinite([*self.values()]).all())


def values(rows: Rows, column: str) -> dict[Key, BySeed]:
  """Returns the values of a column by task, method and calibrator, and by seed."""
  rows, by_key = pd.DataFrame(rows), {}
  if rows.empty:
    return by_key
  images = rows.get(f"images_{column}", pd.Series("", rows.index)).fillna("")
  for *key, seed, value, blocks in zip(rows["task"], rows["method"], rows["calibrator"], rows["seed"],
                                       rows[column].astype(float), images, strict=True):
    by_seed = by_key.setdefault(tuple(key), BySeed())
    by_seed[seed] = value
    if blocks:
      left_out = UNIT * np.array(blocks.split(), float)
      by_seed.blocks = left_out if by_seed.blocks is None else by_seed.blocks + left_out
  return by_key


def chosen(rows: pd.DataFrame) -> dict[str, dict[str, object]]:
  """Returns the settings that were tuned, by field, of each method."""
  return {method: json.loads(text) for method, text in rows.groupby("method", sort=False)["chosen"].last().items()}


def blocks_text(left_out: Sequence[np.ndarray]) -> str:
  """Returns as text what ``BySeed.blocks`` holds: the sum over the seeds of a run whose values are finite.

  >>> blocks_text([np.array([0.1, 0.102]), np.array([0.3, 0.302])])
  '-200 200'
  """
  total = np.sum([x - x.mean() for x in left_out if np.isfinite(x).all()], axis=0)
  return " ".join(f"{x:.0f}" for x in np.ravel(total) / UNIT) if np.size(total) > 1 else ""


def population(rows: Rows) -> str:
  """Returns what intervals of these rows are over.

  >>> of_images, alone = {"task": "", "method": "a", "images_nll": "-1 1"}, {"task": "", "method": "b", "nll": "0.3"}
  >>> population(pd.DataFrame([of_images])), population(pd.DataFrame([alone]))
  ('over seeds and test images', 'over seeds, on the same test images')
  >>> population(pd.DataFrame([of_images, alone, alone | {"method": "c"}]))
  'over seeds, and also over test images between the 1 of 3 methods whose rows have that noise'
  """
  rows = pd.DataFrame(rows).fillna("")
  methods = rows.reindex(columns=["task", "method"])
  with_images = methods[(rows.filter(regex="^images_") != "").any(axis=1)].drop_duplicates()
  methods = methods.drop_duplicates()
  if 0 < len(with_images) < len(methods):
    return (f"over seeds, and also over test images between the {len(with_images)} of {len(methods)} methods whose "
            "rows have that noise")
  return "over seeds and test images" if len(with_images) else "over seeds, on the same test images"


def image_variance(a: Mapping[str, float], b: Mapping[str, float]) -> tuple[float, int]:
  """Returns the variance of the mean of a - b that test images cause, by a jackknife, and its degrees of freedom."""
  means = [x.blocks / len(x) if isinstance(x, BySeed) and x.blocks is not None else None for x in (a, b)]
  if any(mean is None and isinstance(x, BySeed) for mean, x in zip(means, (a, b), strict=True)):
    return 0.0, 1
  left_out = np.ravel(sum(sign * mean for sign, mean in zip((1, -1), means, strict=True) if mean is not None))
  number = len(left_out)
  return float((number - 1) / number * np.sum((left_out - left_out.mean()) ** 2)), max(number - 1, 1)


def of_one_seed(a: Mapping[str, float], b: Mapping[str, float] | None = None) -> tuple[float, float, float]:
  """Returns a - b of the one seed of both, and its 95% interval over test images, which says nothing of other seeds.

  The interval is the value ± t s, with the jackknife's s and the quantile t of Student's distribution with 19 degrees
  of freedom, for 20 blocks. Of an ECE it holds what other images of the same number would show on average, which is
  above the true one by a bias. Without b it is that of a. The interval is nan where rows lack the noise of images.

  >>> a = BySeed({"0": 0.5})
  >>> a.blocks = np.array([-1e-3, 0.0, 1e-3])
  >>> [round(x, 4) for x in of_one_seed(a)]
  [0.5, 0.495, 0.505]
  """
  (seed, value), = a.items()
  value -= b[seed] if b else 0.0
  variance, freedom = image_variance(a, b or {})
  half = banerjee.half_width([(variance, freedom)], 1 - LEVEL) if variance else float("nan")
  return value, value - half, value + half


def paired(a: Mapping[str, float], b: Mapping[str, float]) -> Difference:
  """Returns the difference a - b over the seeds of both, with an interval over seeds and, if rows have it, test images.

  The interval is that of Banerjee (1960), the mean ± √(t₁² s₁² + t₂² s₂²), with the standard errors s over seeds and,
  by a jackknife over blocks of images, over images, and Student's t of the degrees of freedom of each. It holds the
  mean at least as often as it says, however far in the tail; Welch's degrees of freedom do not: of three seeds that
  happen to agree, they make equal rows differ. The p-value is the level at which the interval ends at 0. Both parts
  hold what seeds and images cause together, so that the interval is rather too wide. All but the mean is nan where
  fewer than two seeds are finite, or all of them are equal. A ``BySeed`` has the blocks of images; a plain dict as b is
  of constants.

  >>> [round(x, 3) for x in paired({"0": 1.0, "1": 2.0, "2": 4.0}, {"0": 0.0, "1": 1.0, "2": 2.0})]
  [1.333, -0.101, 2.768, 2.309, 0.057, 0.333]
  """
  differences = np.array([a[seed] - b[seed] for seed in a if seed in b])
  differences = differences[np.isfinite(differences)]
  if len(differences) < 2:
    mean = float(differences[0]) if len(differences) else float("nan")
    return Difference(mean, *5 * [float("nan")])
  mean, deviation = float(differences.mean()), float(differences.std(ddof=1))
  if not deviation:  # The same predictions differ by nothing; of equal differences no seed says how they vary.
    return Difference(0.0, 0.0, 0.0, float("nan"), 1.0, 0.0) if mean == 0 else Difference(mean, *5 * [float("nan")])
  of_images, image_freedom = image_variance(a, b)
  terms = [(deviation**2 / len(differences), len(differences) - 1), (of_images, image_freedom)]
  half = banerjee.half_width(terms, 1 - LEVEL)
  return Difference(mean, mean - half, mean + half, mean / deviation, _p_value(mean, terms),
                    sum(variance for variance, _ in terms) ** 0.5)


def sign_flips(a: Mapping[str, float], b: Mapping[str, float]) -> float:
  """Returns the two-sided p-value of a - b by exact sign flips over the seeds of both (Fisher 1935, Section 21).

  It is the share of the 2ⁿ ways to choose the signs of n differences whose sum is at least as far from 0. It needs no
  normal distribution, only differences whose sign is as likely either way, and is never below 2¹⁻ⁿ: 0.0625 with five
  seeds, 0.002 with ten. Test images are taken as they are. It is nan with fewer than two seeds.

  >>> sign_flips({"0": 1.0, "1": 2.0, "2": 4.0}, {"0": 0.0, "1": 1.0, "2": 2.0})
  0.25
  """
  differences = np.array([a[seed] - b[seed] for seed in a if seed in b])
  if len(differences) < 2 or not np.isfinite(differences).all():
    return float("nan")
  sums = np.zeros(1)
  for difference in differences:
    sums = np.concatenate([sums + difference, sums - difference])
  return float(np.mean(np.abs(sums) >= abs(differences.sum()) - 1e-12 * np.abs(differences).sum()))


def _p_value(mean: float, terms: Sequence[tuple[float, int]]) -> float:
  """The level at which the interval ends at 0, by bisection of its logarithm, from 1e-100 on."""
  low, high = math.log(1e-100), 0.0
  for _ in range(60):
    middle = (low + high) / 2
    low, high = (middle, high) if banerjee.half_width(terms, math.exp(middle)) > abs(mean) else (low, middle)
  return math.exp(high)


def p_text(p_value: float) -> str:
  """Returns a p-value as text; "" for nan.

  >>> p_text(0.0123), p_text(1e-9)
  ('0.012', '< 0.001')
  """
  return "" if np.isnan(p_value) else "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"


def best(by_key: Mapping[Key, BySeed], column: str) -> set[Key]:
  """Returns the rows that are better than every other of their task, by paired intervals that exclude zero."""
  # None if neither a lower nor a higher value is better.
  lower = COLUMNS[column].lower_is_better if column in COLUMNS else True if column in OTHER_ERRORS else None
  tasks, winners = dict.fromkeys(key[0] for key in by_key), set()
  for task in tasks if lower is not None else ():
    means = {key: by_seed.mean for key, by_seed in by_key.items() if key[0] == task}
    means = {key: mean if lower else -mean for key, mean in means.items() if np.isfinite(mean)}
    first = min(means, key=means.get, default=None)
    differences = [paired(by_key[first], by_key[key]) for key in means if key != first]
    if differences and all(x.high < 0 if lower else x.low > 0 for x in differences):
      winners.add(first)
  return winners


def settings(chosen: Mapping[str, object]) -> str:
  """Returns the fields of a config that were chosen for a row, as text."""
  return ", ".join(f"{key.rpartition('.')[2].replace('_', ' ')} {value}" for key, value in chosen.items())


def heading(column: str) -> str:
  """Returns the heading of a column."""
  return COLUMNS[column].heading if column in COLUMNS else HEADINGS[column]


def marked(rows: Rows, column: str) -> str:
  """Returns the heading of a column of rows, with a ° if others have the noise of test images and it has not.

  >>> rows = pd.DataFrame([{"nll": "0.3", "images_nll": "-1 1", "ks": "0.1"}])
  >>> marked(rows, "nll"), marked(rows, "ks")
  ('NLL', 'KS %°')
  """
  with_images = (pd.DataFrame(rows).filter(regex="^images_").fillna("") != "").any()
  return heading(column) + "°" * bool(with_images.any() and not with_images.get(f"images_{column}", False))


def unit(column: str) -> tuple[float, int]:
  """Returns by what the values of a column are multiplied in tables, and their digits."""
  return (1, DIGITS[column]) if column in DIGITS else (100, 2)


def cell(by_seed: Mapping[str, float], column: str) -> str:
  """Returns the mean of a column and its standard error, of the seeds whose values are finite.

  Of one seed it is the standard error that test images cause; none where rows lack it.
  """
  (scale, digits), finite = unit(column), [x for x in by_seed.values() if np.isfinite(x)]
  diverged, error = len(by_seed) - len(finite), paired(by_seed, dict.fromkeys(by_seed, 0.0)).error
  text = f"{scale * np.mean(finite):.{digits}f}" if finite else ""
  if len(finite) > 1:
    text += f" ± {scale * (0.0 if np.isnan(error) else error):.{digits}f}"
  elif finite and len(by_seed) == 1 and (variance := image_variance(by_seed, {})[0]):
    text += f" ± {scale * variance**0.5:.{digits}f}"
  return (text + (f" ({diverged} of {len(by_seed)} diverged)" if diverged else "")).strip()


def _by_task(rows: pd.DataFrame, columns: Sequence[str], cost: Cost | None
             ) -> dict[str, list[tuple[list[str], list[tuple[str, bool]]]]]:
  """The names, and the texts with whether they are the best, of each row of the table of a task."""
  by_column = {column: values(rows, column) for column in columns}
  winners = {column: best(by_key, column) for column, by_key in by_column.items()}
  costs = {row["method"]: list(cost(row)) for row in rows.drop_duplicates("method").to_dict("records")} if cost else {}
  by_task: dict = {}
  for key in next(iter(by_column.values()), {}):
    task, method, calibrator = key
    texts = [(cell(by_column[column][key], column), key in winners[column]) for column in columns]
    by_task.setdefault(task, []).append(([method, calibrator, *costs.get(method, [])], texts))
  return by_task


def headings(rows: pd.DataFrame, columns: Sequence[str], cost: Cost | None = None) -> list[str]:
  """Returns the first line of a table."""
  return ["trained with", "calibrated by", *(COST_HEADINGS if cost else ()), *(marked(rows, x) for x in columns)]


def markdown_tables(rows: pd.DataFrame, columns: Sequence[str], cost: Cost | None = None) -> str:
  """Returns the Markdown tables, one a task; bold is better than every other row of its table."""
  tables = []
  for task, lines in _by_task(rows, columns, cost).items():
    cells = [[*names, *(f"**{text}**" if is_best else text for text, is_best in texts)] for names, texts in lines]
    heading = f"## {scales.described(task) or task}\n\n" if task else ""
    tables.append(heading + markdown.table(headings(rows, columns, cost), cells) + "\n")
  return "\n".join(tables)


def latex(rows: pd.DataFrame, columns: Sequence[str], cost: Cost | None = None) -> str:
  """Returns the same as LaTeX, for the package booktabs; the task is a comment above its table."""
  tables, first = [], headings(rows, columns, cost)
  for task, lines in _by_task(rows, columns, cost).items():
    cells = [[*names, *(text for text, _ in texts)] for names, texts in lines]
    best_cells = [[*[False] * len(names), *(is_best for _, is_best in texts)] for names, texts in lines]
    tables.append((f"% {task}\n" if task else "") + markup.booktabs([first, *cells], 2, best_cells))
  return "\n".join(tables)
