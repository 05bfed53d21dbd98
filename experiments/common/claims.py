"""Claims of the papers, judged by the rows of an experiment: seen here, not seen here or cannot tell, and why."""

from collections.abc import Mapping, Sequence
import json
from typing import NamedTuple

import numpy as np
import pandas as pd

from calib_jax.intervals.calibration_tests import holm
from experiments.common import comparison, ranking

Pair = tuple[str, str]  # A method and a calibrator.


class Claim(NamedTuple):
  """A claim that one row has a lower or a higher value than another."""

  paper: str  # Who says it, and where.
  text: str
  row: Pair  # An empty method stands for every one.
  other: Pair
  column: str
  lower: bool = True
  # The fields of a config, or their first parts, in which the two rows may differ; rows that differ in another one are
  # not comparable. None if the claim is about the methods as a whole.
  about: tuple[str, ...] | None = None
  # The experiment that has the paper's own table. Where it has run on the same data and network, its page judges the
  # claim, and no other does.
  table: str = ""


SC, RR, FT, CL, MC = ("Karandikar et al. 2021", "Zhou et al. 2025", "Komisarenko & Kull 2024", "Jung et al. 2023",
                      "Ni et al.")


def sides(rows: pd.DataFrame, claim: Claim) -> list[comparison.BySeed]:
  """Returns the values of the two rows of a claim, empty for a missing row; of all methods, means by seed."""
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

  ``search`` has the values that a search begins with, by field, and ``tried`` all of them, in their order, where they
  are more. Names have no order, and nothing lies below 0.

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


def judged(change: comparison.Difference, p_value: float, claim: Claim, num_seeds: int, published: bool = False
           ) -> tuple[str, str]:
  """Returns the verdict on a claim and its reason.

  Where Holm's p-value is below 5% the verdict is "seen here" or "not seen here", and of ``published`` data, network and
  schedule "agrees" or "disagrees"; else it is "cannot tell".

  >>> judged(comparison.Difference(-0.058, -0.063, -0.053, -9.0, 0.001, 0.002), 0.004, Claim("", "", "", "", "ece"), 10)
  ('seen here', 'lower by 5.80 points [5.30, 6.30] in 10 seeds')
  """
  if np.isnan(change.p_value):
    return "cannot tell", (
      "no seed of both has a finite value" if not num_seeds else "one seed has no interval" if num_seeds == 1 else
      f"all {num_seeds} seeds have the same difference, which has no interval")
  if change.low <= 0 <= change.high:
    return "cannot tell", "the interval holds 0"
  direction = "lower" if change.mean < 0 else "higher"
  if not p_value < 1 - comparison.LEVEL:
    return "cannot tell", f"{direction} before Holm's correction, not after it"
  scale, digits = comparison.unit(claim.column)
  mean, low, high = (f"{scale * x:.{digits}f}" for x in (abs(change.mean), *sorted(map(abs, change[1:3]))))
  is_so = (change.mean < 0) == claim.lower
  words = ("agrees" if is_so else "disagrees") if published else "seen here" if is_so else "not seen here"
  return (words,
          f"{direction} by {mean}{' points' if scale == 100 else ''} [{low}, {high}] in {num_seeds} seeds")


def table(rows: pd.DataFrame, claims: Sequence[Claim], settings: Mapping[str, Mapping[str, object]] = {},
          searches: Mapping[str, Mapping[str, Sequence]] = {}, *, published: bool = False) -> list[list[str]]:
  """Returns the cells of the table of claims. Claims that cannot be judged do not count for Holm's method.

  A tuned row that is worse than its own setting with a weight near 0 is no evidence against a claim. ``settings`` are
  the fields that each method sets, by which ``unlike`` tells whether two rows can be compared, and ``searches`` the
  values that its search began with: no claim about one ``at_edge`` is judged. ``published`` says whether the rows are
  of the paper's data, network and schedule.
  """
  pairs = [sides(rows, claim) for claim in claims]
  differences = [comparison.paired(*pair) if all(pair) else None for pair in pairs]
  collapsed = {method for _, method in ranking.collapsed(rows)}
  edge = methods_at_edge(rows, searches) if searches else set()

  def doubt(claim: Claim, pair: Sequence[comparison.BySeed]) -> tuple[str, str] | None:
    methods = claim.row[0], claim.other[0]
    if missing := [method or "any method" for method, by_seed in zip(methods, pair, strict=True) if not by_seed]:
      return "not run yet", f"no rows of {' and '.join(dict.fromkeys(missing))}"
    if out := [method for method in methods if method in collapsed]:
      return "cannot tell", f"{' and '.join(out)} collapsed"
    if difference := unlike(claim, settings):
      return "not comparable", difference
    out = [method for method in methods if method in edge]
    return ("cannot tell", f"{' and '.join(out)} at the edge of the grid") if out else None

  doubts = [doubt(claim, pair) for claim, pair in zip(claims, pairs, strict=True)]
  p_values = holm([change.p_value if change and not doubted else np.nan
                              for change, doubted in zip(differences, doubts, strict=True)])
  lines = []
  for claim, pair, change, doubted, p_value in zip(claims, pairs, differences, doubts, p_values, strict=True):
    scale, digits = comparison.unit(claim.column)
    numbers = [change.text(digits, scale), f"{change.effect:+.1f}", comparison.p_text(p_value)] if change else [""] * 3
    num_seeds = sum(np.isfinite(pair[0][i] - pair[1][i]) for i in pair[0].keys() & pair[1].keys())
    verdict, reason = doubted or judged(change, p_value, claim, num_seeds, published)
    # A loss that is added has a weight near 0 in reach, with which its row would be that without it.
    if verdict in ("not seen here", "disagrees") and (claim.about or ("",))[0] == "loss.secondary":
      verdict, reason = "cannot tell", f"{reason}, but a weight near 0 would not be: the search missed it"
    lines.append([claim.text, claim.paper, comparison.marked(rows, claim.column), *numbers, verdict, reason])
  return lines
