"""Why cells of Table 2 of Jung et al. 2023 differ: sentences whose numbers are read from the rows of the results."""

import textwrap

import numpy as np

from experiments.papers.classwise_loss_scaling import fits
from experiments.papers.classwise_loss_scaling.published import NETWORKS, TITLES


def sentences(cells: dict[tuple[str, str, str, str], dict]) -> list[str]:
  """Returns the lines of the section, from rows by network, calibrator, objective and fit.

  Sentences about fits of which there is no row are left out.
  """
  made = {fit for *_, fit in cells}

  def values(calibrator, objective, fit, key="ece"):
    rows = [cells.get((network, calibrator, objective, fit)) for network in NETWORKS]
    return ", ".join("-" if row is None else f"{float(row[key]):.2f}" for row in rows)

  shares = ", ".join(f"{calibrator} {share:.0%}" for calibrator in fits.BASES
                     if (share := balanced_share(cells, calibrator)) is not None)
  one_temperature = "; ".join(
    f"{objective} {values('PTS', objective, 'steps')} (published {values('PTS', objective, 'steps', 'published_ece')})"
    for objective in fits.STEPS)
  return ["## Why cells differ", "", f"Numbers are in the order {', '.join(TITLES.values())}.", "", *(
    line for fit, text in (
      ("steps", f"""
      **TS and CTS with LS or FL are not optima.** The paper's L-BFGS has steps of fixed length, 0.005, 0.003
      and 0.001, at most 1,000 from T = 1, and stops on the way. TS + LS has {values('TS', 'LS', 'steps')} by
      these steps (published {values('TS', 'LS', 'steps', 'published_ece')}) and {values('TS', 'LS', 'optimum')}
      at the optimum. What smoothing does to TS is therefore mostly an effect of the steps."""),
      ("steps", f"""
      **The focal factor has no gradient in the released code**, which the paper does not say. With it
      stopped, TS + FL has {values('TS', 'FL', 'steps')} by the paper's steps (published
      {values('TS', 'FL', 'steps', 'published_ece')}) and, as PTS + FL below, {values('PTS', 'FL', 'steps')} where
      the steps end; with its gradient, the optimum of TS + FL has {values('TS', 'FL', 'optimum')}. Smoothing
      (0.05) and gamma (3) are printed, and are what the released code has."""),
      ("steps", f"""
      **The paper's PTS has the numbers of one temperature at its optimum**: {one_temperature}. The project's
      PTS, whose temperature differs between examples, ends elsewhere. The released PTS is a network with two
      units a layer, fitted by Adam, without the weight decay that the paper states."""),
      ("steps", f"""
      **The paper's ETS mixes logits (Eq. 13)**, which is a temperature only: its base has the numbers of TS.
      It fits T by the steps above and then the weights by the same number of steps, which takes it further
      towards the optimum: with LS to {values('ETS', 'LS', 'steps')} (published
      {values('ETS', 'LS', 'steps', 'published_ece')}). The project's ETS mixes probabilities, as Zhang et al.
      2020 do."""),
      ("two rates", f"""
      **TS + FL of WRN-28 and CTS + FL have the numbers of fits without the last rate.** With 0.005 and 0.003
      alone TS + FL has {values('TS', 'FL', 'two rates')} (published
      {values('TS', 'FL', 'two rates', 'published_ece')}) and CTS + FL {values('CTS', 'FL', 'two rates')}
      (published {values('CTS', 'FL', 'two rates', 'published_ece')}); with all three rates CTS + FL has
      {values('CTS', 'FL', 'steps')}. A fit stops where the loss changes by less than 1e-9, which is less than its
      rounding in float32: whether it stops at the first step of a rate depends on how sums are rounded. CTS + LS
      (published {values('CTS', 'LS', 'steps', 'published_ece')}) has {values('CTS', 'LS', 'steps')} with three
      rates and {values('CTS', 'LS', 'two rates')} with two. That the paper's fits stopped there is inferred from
      these numbers."""),
      ("optimum", """**TS + LS of WRN-28** is printed as 2.24; the authors' released log has 2.44."""),
      ("optimum", f"""
      **A class-balanced NLL alone gives a large part of the gain of class-wise loss scaling.** The mean over
      networks of (base - balanced) / (base - CLS), in ECE at the optima, is: {shares}."""))
    if fit in made for line in wrapped(text, "- "))]


def balanced_share(cells: dict[tuple[str, str, str, str], dict], calibrator: str) -> float | None:
  """The part of class-wise loss scaling's fall in ECE that the class-balanced NLL has, mean over networks, or None."""
  shares = []
  for network in NETWORKS:
    rows = [cells.get((network, calibrator, objective, "optimum")) for objective in ("base", "balanced", "CLS")]
    if all(rows):
      base, balanced, scaled = (float(row["ece"]) for row in rows)
      shares.append((base - balanced) / (base - scaled))
  return float(np.mean(shares)) if shares else None


def wrapped(text: str, bullet: str = "") -> list[str]:
  """The lines of a paragraph, after a bullet if there is one."""
  return textwrap.wrap(" ".join(text.split()), 118, initial_indent=bullet, subsequent_indent=" " * len(bullet),
                       break_long_words=False, break_on_hyphens=False)
