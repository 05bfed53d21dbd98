"""Figure 1 of Karandikar et al. 2021: the effect size of secondary losses on the ECE, before and after TS."""

from collections.abc import Sequence
import pathlib

import numpy as np

from calib_jax import metrics
from calib_jax._system import files
from calib_jax.reports import style
from experiments.common import comparison
from experiments.common.rows import Row

COLUMN = "ece_equal_mass_l2"
MOST = 12  # Bars end there; longer ones have their number.


def effects(rows: Sequence[Row]) -> dict[tuple[str, str], dict[str, dict[str, float]]]:
  """Returns Cohen's d of the ECE with a primary loss alone minus that with a secondary loss, over seeds.

  Args:
    rows: the rows of soft_calibration_tables.
  Returns: ``{(task, primary): {secondary: {calibrator: d}}}`` for "none" and "TS"; above 0 if the secondary loss
    lowers the ECE. Rows with fewer than two seeds are left out.
  """
  found, values = {}, comparison.values(rows, COLUMN)
  for (task, method, calibrator), by_seed in values.items():
    primary, _, secondary = method.partition("+")
    alone = values.get((task, primary, calibrator), {})
    if secondary and calibrator in ("none", "TS") and min(len(alone), len(by_seed)) > 1:
      d = metrics.cohens_d(np.array([*alone.values()]), np.array([*by_seed.values()]))
      found.setdefault((task, primary), {}).setdefault(secondary, {})[calibrator] = float(d)
  return found


@style.styled
def figure(rows: Sequence[Row], path: pathlib.Path) -> None:
  """Draws the effect sizes in one PNG: a panel for each primary loss, and a pair of bars for each secondary loss."""
  from matplotlib.figure import Figure

  found = effects(rows)
  if not found:
    return
  drawn = Figure(figsize=(1 + 2.4 * len(found), 2.6), layout="constrained")
  panels = np.atleast_1d(drawn.subplots(1, len(found), sharey=True))
  for axes, ((task, primary), by_secondary) in zip(panels, found.items(), strict=True):
    places = np.arange(len(by_secondary))
    for i, (calibrator, label) in enumerate((("none", "as trained"), ("TS", "after TS"))):
      heights = [by_calibrator.get(calibrator, np.nan) for by_calibrator in by_secondary.values()]
      axes.bar(places + 0.4 * i - 0.2, np.clip(heights, -MOST, MOST), 0.38, color=style.COLOURS[(0, 2)[i]], label=label)
      for place, d in zip(places + 0.4 * i - 0.2, heights, strict=True):
        if abs(d) > MOST:
          axes.annotate(f"{d:.0f}", (place, np.clip(d, -MOST, MOST)), (0, 2), textcoords="offset points", fontsize=6,
                        ha="center", color="white" if d < 0 else style.INK)
    axes.axhline(0, color=style.INK, lw=0.6)
    axes.set_xticks(places, [name.replace("_", " ") for name in by_secondary], rotation=60, ha="right",
                    rotation_mode="anchor", fontsize=7)
    axes.set_title(", ".join(filter(None, (task, primary.replace("_", " ")))), fontsize=8)
  panels[0].set_ylim(-MOST - 1, MOST + 1)
  panels[0].set_ylabel("Cohen's d of the ECE\n(above 0: the ECE falls)")
  panels[0].legend(frameon=False, fontsize=7)
  files.write(path, lambda file: drawn.savefig(file, format="png", dpi=160))
