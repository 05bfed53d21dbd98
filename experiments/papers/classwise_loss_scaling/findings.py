"""Why cells of Table 2 of Jung et al. 2023 differ: sentences whose numbers are read from the rows of the results.

The sentences stand in why_cells_differ.md, a paragraph each, which begins with the fit that it is about. A field such
as ``{TS LS steps published}`` has the published ECE of a calibrator, an objective and a fit; without the last word,
ours.
"""

import pathlib
import re

import numpy as np

from experiments.common import markdown
from experiments.papers.classwise_loss_scaling import fits
from experiments.papers.classwise_loss_scaling.published import NETWORKS, TITLES

SENTENCES = pathlib.Path(__file__).parent / "why_cells_differ.md"


def sentences(cells: dict[tuple[str, str, str, str], dict]) -> list[str]:
  """Returns the lines of the section, from rows by network, calibrator, objective and fit.

  Sentences about fits of which there is no row are left out.
  """
  def numbers(field: re.Match) -> str:
    calibrator, objective, fit, published = field.groups()
    rows = [cells.get((network, calibrator, objective, fit)) for network in NETWORKS]
    return ", ".join("-" if row is None else f"{row['published_ece' if published else 'ece']:.2f}"
                     for row in rows)

  shares = ", ".join(f"{calibrator} {share:.0%}" for calibrator in fits.BASES
                     if (share := balanced_share(cells, calibrator)) is not None)
  lines = ["## Why cells differ", "", f"Numbers are in the order {', '.join(TITLES.values())}.", ""]
  for paragraph in SENTENCES.read_text(encoding="utf-8").split("\n\n"):
    fit, text = paragraph.split(": ", 1)
    if fit in {made for *_, made in cells}:
      text = re.sub(r"\{(\w+)\s(\w+)\s([\w ]+?)( published)?\}", numbers, text).replace("{shares}", shares)
      lines += markdown.wrapped(text, "- ")
  return lines


def balanced_share(cells: dict[tuple[str, str, str, str], dict], calibrator: str) -> float | None:
  """The part of class-wise loss scaling's fall in ECE that the class-balanced NLL has, mean over networks, or None."""
  shares = []
  for network in NETWORKS:
    rows = [cells.get((network, calibrator, objective, "optimum")) for objective in ("base", "balanced", "CLS")]
    if all(rows):
      base, balanced, scaled = (row["ece"] for row in rows)
      shares.append((base - balanced) / (base - scaled))
  return float(np.mean(shares)) if shares else None
