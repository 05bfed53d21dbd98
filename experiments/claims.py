"""What the papers claim, judged by the rows of the leaderboard: agrees, disagrees or cannot tell."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments import comparison
from experiments.rows import Row

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
_CE, _MASS = ("cross entropy", "none"), "ece_equal_mass_l2"
CLAIMS = (
  Claim(f"{SC}, Tables 1, 2", "S-AvUC lowers the ECE of cross entropy", ("S-AvUC", "none"), _CE, _MASS),
  Claim(f"{SC}, Tables 1, 2", "SB-ECE lowers the ECE of cross entropy", ("SB-ECE", "none"), _CE, _MASS),
  Claim(f"{SC}, Tables 1, 2", "S-AvUC lowers the ECE of the focal loss", ("focal + S-AvUC", "none"), ("focal", "none"),
        _MASS),
  Claim(f"{SC}, Tables 1, 2", "SB-ECE lowers the ECE of the focal loss", ("focal + SB-ECE", "none"), ("focal", "none"),
        _MASS),
  Claim(f"{SC}, Table 2", "MMCE lowers the ECE of cross entropy", ("MMCE", "none"), _CE, _MASS),
  Claim(f"{SC}, Table 2", "TS-SB-ECE has a lower ECE than TS, over all methods", ("", "TS-SB-ECE"), ("", "TS"), _MASS),
  Claim(f"{SC}, Table 2", "TS-SB-ECE has a higher NLL than TS (ImageNet), over all methods", ("", "TS-SB-ECE"),
        ("", "TS"), "nll", lower=False),
  Claim(f"{SC}, Appendix B", "interleaving lowers the ECE of S-AvUC where the network overfits",
        ("S-AvUC, interleaved", "none"), ("S-AvUC", "none"), _MASS),
  Claim(f"{SC}, Appendix B", "interleaving lowers the ECE of SB-ECE where the network overfits",
        ("SB-ECE, interleaved", "none"), ("SB-ECE", "none"), _MASS),
  Claim(f"{RR}, Table 1", "the selective-risk loss lowers the ECE of cross entropy", ("selective risk", "none"), _CE,
        "ece"),
  Claim(f"{RR}, Table 1", "the selective-risk loss has a lower ECE than the dual focal loss",
        ("selective risk", "none"), ("dual focal", "none"), "ece"),
  Claim(f"{RR}, Table 1", "the selective-risk loss has a lower ECE than AURC", ("selective risk", "none"),
        ("AURC", "none"), "ece"),
  Claim(f"{RR}, Table 1", "the selective-risk loss costs accuracy", ("selective risk", "none"), _CE, "accuracy"),
  Claim(f"{RR}, Section 3", "the inverse focal loss lowers the ECE of cross entropy", ("inverse focal", "none"), _CE,
        "ece"),
  Claim(f"{FT}, Table 1", "focal temperature scaling has a lower ECE than TS, over all methods", ("", "FTS"),
        ("", "TS"), "ece"),
  Claim(f"{FT}, Section 1", "the focal loss lowers the ECE of cross entropy", ("focal", "none"), _CE, "ece"),
  Claim(f"{FT}, Table 1", "AdaFocal lowers the ECE of cross entropy", ("AdaFocal", "none"), _CE, "ece"),
  Claim(f"{CL}, Table 2", "class-wise loss scaling lowers the ECE of TS, over all methods (balanced classes here)",
        ("", "TS + CLS"), ("", "TS"), "ece"),
  Claim(f"{CL}, Table 2", "class-wise loss scaling lowers the ECE of CTS, over all methods (balanced classes here)",
        ("", "CTS + CLS"), ("", "CTS"), "ece"),
  Claim(f"{MC}, Table 1", "MaC-Cal lowers the ECE of cross entropy", ("MaC-Cal", "none"), _CE, "ece"),
  Claim(f"{MC}, Table 1", "MaC-Cal has a lower ECE than TST", ("MaC-Cal", "none"), ("TST", "none"), "ece"),
  Claim(f"{MC}, Table 1", "MaC-Cal has a lower ECE than the focal loss", ("MaC-Cal", "none"), ("focal", "none"), "ece"),
  Claim(f"{MC}, Table 1", "MaC-Cal has a lower ECE than MIT", ("MaC-Cal", "none"), ("MIT", "none"), "ece"),
)


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


def table(rows: Sequence[Row], claims: Sequence[Claim] = CLAIMS) -> list[str]:
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
