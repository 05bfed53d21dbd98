"""Tables 1, 2, 4, 5 and 6 and Figure 1 of Karandikar et al. 2021: primary × secondary losses, and calibrators.

Run: python -m experiments.papers.soft_calibration.tables --scale=paper --out=DIR, or --scale=laptop --data=IMAGES.npz

Tables 4 to 6 are other columns and calibrators of the same networks: KS and sweep errors, Dirichlet calibration, and
the marginal ECE, which is that of all classes. The paper tunes κ, T, β and λ for every cell and does not print them; so
does experiments/common/tuning.py, from the starting points of configs/soft_calibration.py.
"""

import pathlib
import sys

import numpy as np
import pandas as pd

from calib_jax import metrics
from calib_jax.evaluation.reports import style
from configs import soft_calibration
from experiments.common import comparison, paper_tables, sweep
from experiments.common.claims import SC, Claim
from experiments.common.figures import png

_MASS = "ece_equal_mass_l2"
MOST = 12  # Bars end there; longer ones have their number.
_SECONDARY = ("loss.secondary", "loss.weight")
# With cross entropy these two train interleaved, and interleaving with them is what the paper compares (Appendix B).
_INTERLEAVED = (*_SECONDARY, "schedule.name", "data.held_out_fraction")


def _secondary(paper: str, what: str, primary: str, short: str, secondary: str, calibrator: str, column: str) -> Claim:
  """The claim that a secondary loss lowers an error of a primary one."""
  is_interleaved = primary == "cross_entropy" and secondary in ("soft_avuc", "soft_binned_ece")
  name = f"{short}, interleaved," if is_interleaved else short
  return Claim(f"{SC}, {paper}", f"{name} lowers the {what.format(primary)}", (f"{primary}+{secondary}", calibrator),
               (primary, calibrator), column, about=_INTERLEAVED if is_interleaved else _SECONDARY)


CLAIMS = (
  *(_secondary("Tables 1, 2", "ECE of {}", primary, short, secondary, "none", _MASS)
    for primary in ("cross_entropy", "focal", "brier")
    for short, secondary in (("S-AvUC", "soft_avuc"), ("SB-ECE", "soft_binned_ece"), ("MMCE", "mmce"))),
  *(_secondary("Figure 1", "ECE of {} after TS, too", primary, short, secondary, "TS", _MASS)
    for primary in ("cross_entropy", "focal", "brier")
    for short, secondary in (("S-AvUC", "soft_avuc"), ("SB-ECE", "soft_binned_ece"))),
  Claim(f"{SC}, Table 2", "TS-SB-ECE has a lower ECE than TS, over all rows", ("", "TS-SB-ECE"), ("", "TS"), _MASS),
  Claim(f"{SC}, Appendix F", "AvUC with the gradient stopped has a lower ECE than AvUC, cross entropy",
        ("cross_entropy+avuc_gs", "none"), ("cross_entropy+avuc", "none"), _MASS, about=("loss.secondary",)),
  *(Claim(f"{SC}, Table 5", f"{short} has a lower ECE than Dirichlet calibration of {primary}",
          (f"focal+{secondary}", "none"), (primary, "Dirichlet"), _MASS)
    for primary in ("cross_entropy", "focal", "brier")
    for short, secondary in (("focal + S-AvUC", "soft_avuc"), ("focal + SB-ECE", "soft_binned_ece"))),
  *(_secondary("Table 6", "marginal ECE of {}", "focal", short, secondary, "none", "marginal")
    for short, secondary in (("S-AvUC", "soft_avuc"), ("SB-ECE", "soft_binned_ece"))),
)


def effects(rows: pd.DataFrame) -> dict[tuple[str, str], dict[str, dict[str, float]]]:
  """Returns Cohen's d over seeds of the ECE without minus with a secondary loss, by task, losses and calibrator."""
  by_cell, values = {}, comparison.values(rows, _MASS)
  for (task, method, calibrator), by_seed in values.items():
    primary, _, secondary = method.partition("+")
    alone = values.get((task, primary, calibrator), {})
    if secondary and calibrator in ("none", "TS") and min(len(alone), len(by_seed)) > 1:
      d = metrics.cohens_d(np.array([*alone.values()]), np.array([*by_seed.values()]))
      by_cell.setdefault((task, primary), {}).setdefault(secondary, {})[calibrator] = float(d)
  return by_cell


def figure(rows: pd.DataFrame, path: pathlib.Path) -> None:
  """Draws Figure 1 in one PNG: a panel for each primary loss, and a pair of bars for each secondary loss."""
  by_cell = effects(rows)
  if not by_cell:
    return
  with png(path, 1 + 2.4 * len(by_cell), 2.6) as drawn:
    panels = np.atleast_1d(drawn.subplots(1, len(by_cell), sharey=True))
    for axes, ((task, primary), by_secondary) in zip(panels, by_cell.items(), strict=True):
      places = np.arange(len(by_secondary))
      for i, (calibrator, label) in enumerate((("none", "as trained"), ("TS", "after TS"))):
        heights = [by_calibrator.get(calibrator, np.nan) for by_calibrator in by_secondary.values()]
        axes.bar(places + 0.4 * i - 0.2, np.clip(heights, -MOST, MOST), 0.38, color=style.COLOURS[2 * i], label=label)
        for place, d in zip(places + 0.4 * i - 0.2, heights, strict=True):
          if abs(d) > MOST:
            axes.annotate(f"{d:.0f}", (place, np.clip(d, -MOST, MOST)), (0, 2), textcoords="offset points", fontsize=6,
                          ha="center", color="white" if d < 0 else style.INK)
      axes.axhline(0, color=style.INK, lw=0.6)
      axes.set_xticks(places, [name.replace("_", " ") for name in by_secondary], rotation=60, ha="right",
                      rotation_mode="anchor", fontsize=7)
      axes.set_title(", ".join(filter(None, (task, primary.replace("_", " ")))), fontsize=8)
    panels[0].set_ylim(-MOST - 1, MOST + 1)
    panels[0].set_ylabel("Cohen's d of the ECE, deviations\n(above 0: the ECE falls)")
    panels[0].legend(frameon=False, fontsize=7)


EXPERIMENT = paper_tables.declared(
  "papers.soft_calibration.tables", "Karandikar et al. 2021, Tables 1, 2, 4, 5 and 6", soft_calibration,
  ("accuracy", "nll", _MASS, "ks", "sweep", "marginal"),
  {"TS": {"name": "temperature_scaling"},
   "TS-SB-ECE": {"name": "temperature_scaling", "objective": "soft_binned_ece", "form": "bin"},
   "Dirichlet": {"name": "dirichlet"}},
  judged=CLAIMS, tuned=True, figure=figure)

if __name__ == "__main__":
  sys.exit(sweep.main(EXPERIMENT))
