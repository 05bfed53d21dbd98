"""Compares rows of an experiment seed by seed, and formats them as Markdown and LaTeX tables."""

from collections.abc import Callable, Mapping, Sequence
import math
from typing import NamedTuple

import numpy as np
from scipy import special

from calib_jax.evaluation.measures import METRICS
from experiments.common.rows import Row

LEVEL = 0.95
Key = tuple[str, str, str]  # Task, method and calibrator.
Cost = Callable[[Row], Sequence[str]]  # The texts below COST_HEADINGS of the method of a row.
COST_HEADINGS = ("times to train", "times to predict")
OTHER_ERRORS = ("ece_corrected", "marginal")  # Columns that evaluations do not have, of which lower is better.
HEADINGS = {"ece_corrected": "ECE % less its bias", "floor": "noise floor %", "p_value": "p",
            "marginal": "marginal ECE %, equal mass, norm 2", "ece_shifted": "ECE % on corrupted images",
            "converged": "converged %", "accuracy_train": "train accuracy %", "ece_train": "train ECE %",
            "auroc_ood": "AUROC %", "fpr95_ood": "FPR95 %"}
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


class BySeed(dict):
  """The values of a row by seed, and what their sum over seeds is without each block of test images.

  Attributes:
    blocks: ``[B]``, that sum less its mean over blocks; None if the rows do not have it.
  """

  blocks: np.ndarray | None = None


def values(rows: Sequence[Row], column: str) -> dict[Key, BySeed]:
  """Returns the values of a column by task, method and calibrator, and by seed."""
  found: dict[Key, BySeed] = {}
  for row in rows:
    by_seed = found.setdefault((row["task"], row["method"], row["calibrator"]), BySeed())
    by_seed[row["seed"]] = float(row[column])
    if text := row.get(f"images_{column}"):
      blocks = UNIT * np.array(text.split(), float)
      by_seed.blocks = blocks if by_seed.blocks is None else by_seed.blocks + blocks
  return found


def blocks_text(left_out: Sequence[np.ndarray]) -> str:
  """Returns as text what ``BySeed.blocks`` holds: the sum over the seeds of a run whose values are finite.

  >>> blocks_text([np.array([0.1, 0.102]), np.array([0.3, 0.302])])
  '-200 200'
  """
  total = np.sum([x - x.mean() for x in left_out if np.isfinite(x).all()], axis=0)
  return " ".join(f"{x:.0f}" for x in np.ravel(total) / UNIT) if np.size(total) > 1 else ""


def population(rows: Sequence[Row]) -> str:
  """Returns what intervals of these rows are over.

  >>> of_images, alone = {"task": "", "method": "a", "images_nll": "-1 1"}, {"task": "", "method": "b", "nll": "0.3"}
  >>> population([of_images]), population([alone])
  ('over seeds and test images', 'over seeds, on the same test images')
  >>> population([of_images, alone, alone | {"method": "c"}])
  'over seeds, and also over test images between the 1 of 3 methods whose rows have that noise'
  """
  methods = {(row["task"], row["method"]) for row in rows}
  with_images = {(row["task"], row["method"]) for row in rows
                 if any(value for name, value in row.items() if name.startswith("images_"))}
  if with_images and with_images != methods:
    return (f"over seeds, and also over test images between the {len(with_images)} of {len(methods)} methods whose "
            "rows have that noise")
  return "over seeds and test images" if with_images else "over seeds, on the same test images"


def image_variance(a: Mapping[str, float], b: Mapping[str, float]) -> tuple[float, int]:
  """Returns the variance of the mean of a - b that test images cause, by a jackknife, and its degrees of freedom."""
  means = [x.blocks / len(x) if isinstance(x, BySeed) and x.blocks is not None else None for x in (a, b)]
  if any(mean is None and isinstance(x, BySeed) for mean, x in zip(means, (a, b), strict=True)):
    return 0.0, 1
  apart = np.ravel(sum(sign * mean for sign, mean in zip((1, -1), means, strict=True) if mean is not None))
  return float((len(apart) - 1) / len(apart) * np.sum((apart - apart.mean()) ** 2)), max(len(apart) - 1, 1)


def paired(a: Mapping[str, float], b: Mapping[str, float]) -> Difference:
  """Returns the difference a - b over the seeds of both, with an interval over seeds and, if rows have it, test images.

  The interval is that of Banerjee (1960), the mean ± √(t₁² s₁² + t₂² s₂²), with the standard errors s over seeds and,
  by a jackknife over blocks of images, over images, and Student's t of the degrees of freedom of each. It holds the
  mean at least as often as it says, however far in the tail; Welch's degrees of freedom do not: of three seeds that
  happen to agree, they make equal rows differ. The p-value is the level at which the interval ends at 0. Both parts
  hold what seeds and images cause together, so that the interval is rather too wide. All but the mean is nan where
  fewer than two seeds are finite, or all of them are equal.

  Args:
    a: values by seed; a ``BySeed`` also has the blocks of images.
    b: those that are subtracted; a plain dict is of constants.

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
  half = _half_width(terms, 1 - LEVEL)
  return Difference(mean, mean - half, mean + half, mean / deviation, _p_value(mean, terms),
                    sum(variance for variance, _ in terms) ** 0.5)


def _half_width(terms: Sequence[tuple[float, int]], level: float) -> float:
  """The half width of Banerjee's interval for variances with their degrees of freedom, which misses ``level``."""
  return sum(variance * float(special.stdtrit(freedom, level / 2)) ** 2 for variance, freedom in terms) ** 0.5


def _p_value(mean: float, terms: Sequence[tuple[float, int]]) -> float:
  """The level at which the interval ends at 0, by bisection of its logarithm, from 1e-100 on."""
  low, high = math.log(1e-100), 0.0
  for _ in range(60):
    middle = (low + high) / 2
    low, high = (middle, high) if _half_width(terms, math.exp(middle)) > abs(mean) else (low, middle)
  return math.exp(high)


def holm(p_values: Sequence[float]) -> list[float]:
  """Returns p-values that are corrected for their number by Holm's method; those that are nan stay so and do not count.

  >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03, float("nan")])]
  [0.03, 0.06, 0.06, nan]
  """
  values = np.asarray(p_values, float)
  order = np.argsort(values)[:np.isfinite(values).sum()]
  corrected = np.full(len(values), np.nan)
  corrected[order] = np.minimum(np.maximum.accumulate(values[order] * np.arange(len(order), 0, -1)), 1)
  return corrected.tolist()


def p_text(p_value: float) -> str:
  """Returns a p-value as text; "" for nan.

  >>> p_text(0.0123), p_text(1e-9)
  ('0.012', '< 0.001')
  """
  return "" if np.isnan(p_value) else "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"


def lower_is_better(column: str) -> bool | None:
  """Returns whether a lower value of a column is better; None if neither is."""
  return METRICS[column].lower_is_better if column in METRICS else True if column in OTHER_ERRORS else None


def best(found: Mapping[Key, Mapping[str, float]], column: str) -> set[Key]:
  """Returns the rows that are better than every other of their task, by paired intervals that exclude zero."""
  lower, winners = lower_is_better(column), set()
  tasks = dict.fromkeys(key[0] for key in found)
  for task in tasks if lower is not None else ():
    means = {key: float(np.mean([*by_seed.values()])) for key, by_seed in found.items() if key[0] == task}
    means = {key: mean if lower else -mean for key, mean in means.items() if np.isfinite(mean)}
    first = min(means, key=means.get, default=None)
    apart = [paired(found[first], found[key]) for key in means if key != first]
    if apart and all(difference.high < 0 if lower else difference.low > 0 for difference in apart):
      winners.add(first)
  return winners


def settings(chosen: Mapping[str, object]) -> str:
  """Returns the fields of a config that were chosen for a row, as text."""
  return ", ".join(f"{key.rpartition('.')[2].replace('_', ' ')} {value}" for key, value in chosen.items())


def heading(column: str) -> str:
  """Returns the heading of a column."""
  return METRICS[column].heading if column in METRICS else HEADINGS[column]


def cell(by_seed: Mapping[str, float], column: str) -> str:
  """Returns the mean of a column and its standard error, of the seeds whose values are finite."""
  scale = 1 if column in DIGITS else 100
  digits, finite = DIGITS.get(column, 2), [x for x in by_seed.values() if np.isfinite(x)]
  lost, apart = len(by_seed) - len(finite), paired(by_seed, dict.fromkeys(by_seed, 0.0))
  text = f"{scale * np.mean(finite):.{digits}f}" if finite else ""
  if len(finite) > 1:
    text += f" ± {scale * (0.0 if np.isnan(apart.error) else apart.error):.{digits}f}"
  return (text + (f" ({lost} of {len(by_seed)} diverged)" if lost else "")).strip()


def mean_text(values: Sequence[float], digits: int, sign: str = "") -> str:
  """Returns the mean of values and, of several, its standard error; ``sign`` is "+" for a mean with its sign.

  >>> mean_text([1.0, 2.0, 3.0], 2, "+")
  '+2.00 ± 0.58'
  """
  text = f"{np.mean(values):{sign}.{digits}f}" if len(values) else ""
  return text + (f" ± {np.std(values, ddof=1) / len(values) ** 0.5:.{digits}f}" if len(values) > 1 else "")


def cells(rows: Sequence[Row], columns: Sequence[str], cost: Cost | None = None
          ) -> list[tuple[Key, list[tuple[str, bool]]]]:
  """Returns the table of rows as ``(key, [(text, whether it is best)])``, in their order; costs are the first texts."""
  found = {column: values(rows, column) for column in columns}
  winners = {column: best(by_key, column) for column, by_key in found.items()}
  costs = {row["method"]: [(text, False) for text in cost(row)] for row in rows} if cost else {}
  return [(key, costs.get(key[1], []) + [(cell(found[column][key], column), key in winners[column])
                                         for column in columns])
          for key in next(iter(found.values()), {})]


def headings(columns: Sequence[str], cost: Cost | None = None) -> list[str]:
  """Returns the first line of a table of ``cells``."""
  return ["trained with", "calibrated by", *(COST_HEADINGS if cost else ()), *map(heading, columns)]


def markdown(rows: Sequence[Row], columns: Sequence[str], cost: Cost | None = None) -> str:
  """Returns the Markdown tables, one a task; bold is better than every other row of its table."""
  lines: list[str] = []
  task, first = None, headings(columns, cost)
  for (of_task, method, calibrator), texts in cells(rows, columns, cost):
    if of_task != task:
      task = of_task
      lines += ["", *([f"## {task}", ""] if task else []), f"| {' | '.join(first)} |", "|---" * len(first) + "|"]
    shown = [f"**{text}**" if is_best else text for text, is_best in texts]
    lines.append(" | ".join([f"| {method}", calibrator, *shown]) + " |")
  return "\n".join(lines[1:]) + "\n"


def latex(rows: Sequence[Row], columns: Sequence[str], cost: Cost | None = None) -> str:
  """Returns the same as LaTeX, for the package booktabs."""
  first = headings(columns, cost)
  lines = [f"\\begin{{tabular}}{{ll{'r' * (len(first) - 2)}}}", "\\toprule",
           " & ".join(first).replace("%", "\\%") + " \\\\"]
  task = None
  for (of_task, method, calibrator), texts in cells(rows, columns, cost):
    if of_task != task:
      task = of_task
      lines.append("\\midrule")
      lines += [f"\\multicolumn{{{len(first)}}}{{l}}{{{_escaped(task)}}} \\\\"] if task else []
    shown = [text.replace(" ± ", " \\pm ") for text, _ in texts]
    shown = [f"$\\mathbf{{{text}}}$" if is_best else f"${text}$" if text and "diverged" not in text else text
             for text, (_, is_best) in zip(shown, texts, strict=True)]
    lines.append(" & ".join([_escaped(method), _escaped(calibrator), *shown]) + " \\\\")
  return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _escaped(text: str) -> str:
  return text.replace("_", "\\_").replace("%", "\\%").replace("&", "\\&")
