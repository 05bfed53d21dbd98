"""Claims of the papers, judged by the rows of an experiment: agrees, disagrees or cannot tell, and why."""

from collections.abc import Callable, Mapping, Sequence
import json
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments.common import comparison, markdown, ranking

Pair = tuple[str, str]  # A method and a calibrator.


class Claim(NamedTuple):
  """A claim that one row has a lower or a higher value than another.

  Attributes:
    paper: who says it, and where.
    text: what is said.
    row: the row that it is said of; an empty method or calibrator stands for every one.
    other: the row that it is compared with, likewise.
    column: the value that is compared.
    lower: whether the claim is that it is lower.
    about: the fields of a config, or their first parts, in which the two rows may differ; None if the claim is about
      the methods as a whole. Rows that differ in another field are not comparable.
  """

  paper: str
  text: str
  row: Pair
  other: Pair
  column: str
  lower: bool = True
  about: tuple[str, ...] | None = None


SC, RR, FT, CL, MC = ("Karandikar et al. 2021", "Zhou et al. 2025", "Komisarenko & Kull 2024", "Jung et al. 2023",
                      "Ni et al.")


def sides(rows: pd.DataFrame, claim: Claim) -> list[comparison.BySeed]:
  """Returns the values of the two rows of a claim; empty for a row that is missing.

  Of all methods they are the means, seed by seed, without methods that have collapsed.
  """
  pair = []
  for method, calibrator in (claim.row, claim.other):
    part = rows[rows["method"] == method] if method else ranking.trained(rows)
    every = list(comparison.values(part[part["calibrator"] == calibrator], claim.column).values())
    seeds = [seed for seed in every[0] if all(seed in by_seed for by_seed in every)] if every else []
    side = comparison.BySeed({seed: float(np.mean([by_seed[seed] for by_seed in every])) for seed in seeds})
    blocks = [by_seed.blocks for by_seed in every]
    side.blocks = np.mean(blocks, axis=0) if blocks and all(x is not None for x in blocks) else None
    pair.append(side)
  return pair


def unlike(claim: Claim, settings: Mapping[str, Mapping[str, object]]) -> str:
  """Returns the first field that differs and that the claim is not about, with both values; "" if there is none.

  Args:
    claim: the claim.
    settings: the fields that each method sets.

  >>> focal, loss = {"loss.primary.gamma": 2.0}, {"loss.primary.gamma": 1.0, "loss.weight": 0.3}
  >>> unlike(Claim("", "", ("a", "TS"), ("b", "TS"), "ece", about=("loss.weight",)), {"a": loss, "b": focal})
  'gamma 1.0 against 2.0'
  """
  if claim.about is None or not all(method in settings for method, _ in (claim.row, claim.other)):
    return ""
  own, other = settings[claim.row[0]], settings[claim.other[0]]
  for field in sorted({*own, *other}):
    if own.get(field) != other.get(field) and not field.startswith(claim.about):
      values = (str(x.get(field, "none")) for x in (own, other))
      return f"{field.rpartition('.')[2].replace('_', ' ')} {' against '.join(values)}"
  return ""


def at_edge(search: Mapping[str, Sequence], chosen: Mapping[str, object],
            tried: Mapping[str, Sequence] | None = None) -> bool:
  """Returns whether a chosen value is the first or the last that was tried: nobody knows what the next one would do.

  Names have no order, and nothing lies below 0.

  Args:
    search: the values that a search begins with, by field.
    chosen: the values that it found.
    tried: the values that it tried, in their order; of fields that are not there, those that it began with.

  >>> at_edge({"weight": (0.1, 0.3, 1.0)}, {"weight": 1.0}), at_edge({"l2": (0.0, 1e-4, 1e-3)}, {"l2": 0.0})
  (True, False)
  >>> at_edge({"weight": (0.1, 0.3, 1.0)}, {"weight": 1.0}, {"weight": [0.1, 0.3, 1.0, 3.0]})
  False
  """
  values = {**search, **(tried or {})}
  return any(not isinstance(values[key][0], str) and chosen.get(key) != 0
             and chosen.get(key) in json.loads(json.dumps([values[key][0], values[key][-1]])) for key in search)


def methods_at_edge(rows: pd.DataFrame, searches: Mapping[str, Mapping[str, Sequence]]) -> set[str]:
  """Returns the methods of which a chosen value is ``at_edge``; ``searches`` has the values that each began with."""
  tried = rows.get("tried", pd.Series("{}", rows.index))
  return {name for name, chosen, values in rows.assign(tried=tried)[["method", "chosen", "tried"]].drop_duplicates(
    "method", keep="last").itertuples(index=False)
          if name in searches and at_edge(searches[name], json.loads(chosen), json.loads(values or "{}"))}


def verdict(change: comparison.Difference, p_value: float, lower: bool) -> str:
  """Returns "agrees" or "disagrees" where the corrected p-value is below 5%, and else "cannot tell".

  >>> verdict(comparison.Difference(-0.02, -0.03, -0.01, -2.0, 0.01, 0.004), 0.04, lower=True)
  'agrees'
  """
  if not p_value < 1 - comparison.LEVEL:
    return "cannot tell"
  return "agrees" if (change.mean < 0) == lower else "disagrees"


def reason(change: comparison.Difference, p_value: float, column: str, num_seeds: int) -> str:
  """Returns the reason of a verdict: the direction, the size and the interval of the difference, or what is missing.

  Args:
    change: the difference.
    p_value: its p-value, after Holm's correction.
    column: the value that is compared.
    num_seeds: the number of seeds that the difference is over.

  >>> reason(comparison.Difference(-0.058, -0.063, -0.053, -9.0, 0.001, 0.002), 0.004, "ece", 10)
  'lower by 5.80 points [5.30, 6.30] in 10 seeds'
  """
  if np.isnan(change.p_value):
    return ("no seed of both has a finite value" if not num_seeds else "one seed has no interval" if num_seeds == 1 else
            f"all {num_seeds} seeds have the same difference, which has no interval")
  if change.low <= 0 <= change.high:
    return "the interval holds 0"
  direction = "lower" if change.mean < 0 else "higher"
  if not p_value < 1 - comparison.LEVEL:
    return f"{direction} before Holm's correction, not after it"
  scale, digits, unit = (1, 4, "") if column in comparison.DIGITS else (100, 2, " points")
  mean, low, high = (f"{scale * x:.{digits}f}" for x in (abs(change.mean), *sorted(map(abs, change[1:3]))))
  return f"{direction} by {mean}{unit} [{low}, {high}] in {num_seeds} seeds"


def table(rows: pd.DataFrame, claims: Sequence[Claim], doubt: Callable[[Claim], str] = lambda claim: "") -> list[str]:
  """Returns the lines of the Markdown table of claims.

  Args:
    rows: the rows of the experiment.
    claims: the claims. Those whose rows are not there have not been run yet.
    doubt: says why a claim cannot be judged, as "VERDICT: REASON", or "". Such a claim does not count for Holm's
      method; nor does one about a method that has collapsed.
  """
  pairs = [sides(rows, claim) for claim in claims]
  differences = [comparison.paired(*pair) if all(pair) else None for pair in pairs]
  collapsed = {method for _, method in ranking.collapsed(rows)}

  def doubt_of(claim: Claim, pair: Sequence[comparison.BySeed]) -> str:
    methods = claim.row[0], claim.other[0]
    missing = [method or "any method" for method, by_seed in zip(methods, pair, strict=True) if not by_seed]
    return (f"not run yet: no rows of {' and '.join(dict.fromkeys(missing))}" if missing else
            f"cannot tell: {' and '.join(x for x in methods if x in collapsed)} collapsed"
            if collapsed.intersection(methods) else doubt(claim))

  doubts = [doubt_of(claim, pair) for claim, pair in zip(claims, pairs, strict=True)]
  p_values = comparison.holm([change.p_value if change and not text else np.nan
                              for change, text in zip(differences, doubts, strict=True)])
  lines = []
  for claim, pair, change, text, p_value in zip(claims, pairs, differences, doubts, p_values, strict=True):
    judged, _, why = text.partition(": ")
    digits, scale = (4, 1) if claim.column in comparison.DIGITS else (2, 100)
    numbers = [change.text(digits, scale), f"{change.effect:+.1f}", comparison.p_text(p_value)] if change else [""] * 3
    if not text:
      num_seeds = sum(np.isfinite(pair[0][i] - pair[1][i]) for i in pair[0].keys() & pair[1].keys())
      judged, why = verdict(change, p_value, claim.lower), reason(change, p_value, claim.column, num_seeds)
    lines.append([claim.text, claim.paper, comparison.heading(claim.column), *numbers, judged, why])
  return markdown.table(["claim", "of", "column", "difference [95%]", "Cohen's d", "p (Holm)", "verdict", "reason"],
                        lines).split("\n")
