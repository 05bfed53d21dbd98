"""Claims of the papers, judged by the rows of an experiment: agrees, disagrees or cannot tell."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.common import comparison
from experiments.common.rows import Row

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
  """

  paper: str
  text: str
  row: Pair
  other: Pair
  column: str
  lower: bool = True


SC, RR, FT, CL, MC = ("Karandikar et al. 2021", "Zhou et al. 2025", "Komisarenko & Kull 2024", "Jung et al. 2023",
                      "Ni et al.")


def difference(rows: Sequence[Row], claim: Claim) -> comparison.Difference | None:
  """Returns the difference of the two rows of a claim over seeds; None if either is missing.

  Over all methods it is the difference of their means, seed by seed.
  """
  sides = [_by_seed(rows, pair, claim.column) for pair in (claim.row, claim.other)]
  return comparison.paired(*sides) if all(sides) else None


def _by_seed(rows: Sequence[Row], pair: Pair, column: str) -> dict[str, float]:
  found = [by_seed for (_, method, calibrator), by_seed in comparison.values(rows, column).items()
           if calibrator == pair[1] and pair[0] in ("", method)]
  seeds = [seed for seed in found[0] if all(seed in by_seed for by_seed in found)] if found else []
  return {seed: float(np.mean([by_seed[seed] for by_seed in found])) for seed in seeds}


def verdict(apart: comparison.Difference, lower: bool) -> str:
  """Returns "agrees" or "disagrees" where the interval excludes zero, and else "cannot tell".

  >>> verdict(comparison.Difference(-0.02, -0.03, -0.01, -2.0), lower=True)
  'agrees'
  """
  if apart.low <= 0 <= apart.high or not np.isfinite(apart.low + apart.high):
    return "cannot tell"
  return "agrees" if (apart.high < 0) == lower else "disagrees"


def table(rows: Sequence[Row], claims: Sequence[Claim]) -> list[str]:
  """Returns the lines of the Markdown table of those claims whose rows are there."""
  lines = ["| claim | of | column | difference [95%] | Cohen's d | verdict |", "|---" * 6 + "|"]
  for claim in claims:
    apart = difference(rows, claim)
    if apart is None:
      continue
    scale, digits = (1, 4) if claim.column in comparison.DIGITS else (100, 2)
    mean, low, high = (f"{scale * x:+.{digits}f}" for x in apart[:3])
    lines.append(f"| {claim.text} | {claim.paper} | {comparison.heading(claim.column)} | {mean} [{low}, {high}] | "
                 f"{apart.effect:+.1f} | {verdict(apart, claim.lower)} |")
  return lines
