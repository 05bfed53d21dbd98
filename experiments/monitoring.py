"""How often a monitor refutes a promise that holds, looked at after every answer, and how soon it sees a drift.

Run: python -m experiments.monitoring

The promise is at most 5% errors. The command simulates what has no row yet in results/monitoring.csv and writes the
table of docs/at_most.md. It takes four minutes on one CPU core.
"""

import zlib

import numpy as np
import pandas as pd

from calib_jax import thresholds
from experiments.common import markdown, studies

RISK, AFTER = 0.05, 4000
# Answers before the drift, their share of errors, and the points that the drift adds to 5%; 0 for none.
CASES = [(10_000, RISK, 0), (10_000, 0.04, 0), *((before, 0.04, drift) for before in (0, 1000, 5000)
                                                  for drift in (5, 10, 20))]


def _measured(before: int, share: float, drift: int) -> list[dict[str, object]]:
  """How often the promise is refuted before the drift, and after how many answers of it."""
  rng = np.random.default_rng(zlib.crc32(f"{before} {share} {drift}".encode()))
  draws, refuted, delays = 100 if drift else 400, 0, []
  for _ in range(draws):
    monitor = thresholds.update_monitor(thresholds.monitor(risk=RISK), rng.uniform(size=before) < share)
    refuted += monitor.refuted_at is not None
    if drift and monitor.refuted_at is None:
      monitor = thresholds.update_monitor(monitor, rng.uniform(size=AFTER) < RISK + drift / 100)
      delays.append((monitor.refuted_at or before + AFTER) - before)
  quantiles = np.quantile(delays, (0.5, 0.9)) if delays else (np.nan, np.nan)
  return [{"draws": draws, "refuted": refuted / draws, "median": quantiles[0], "most": quantiles[1]}]


def _table(rows: pd.DataFrame) -> str:
  """False alarms in percent, and the answers after the drift until it is seen."""
  cells = []
  for row in rows.astype(float).itertuples():
    seen = [f"{x:,.0f}" if row.drift else "" for x in (row.median, row.most)]
    cells.append([f"{row.before:,.0f}", f"{100 * row.share:g}", f"{5 + row.drift:g}" if row.drift else "none",
                  f"{100 * row.refuted:.1f}", *seen])
  return markdown.table(["answers before", "% wrong", "% wrong after the drift", "refuted before it, % of runs",
                         "answers until it is seen, median", "in 90% of runs at most"], cells)


STUDY = studies.Study("monitoring", ("before", "share", "drift"), CASES, _measured, _table)


if __name__ == "__main__":
  studies.in_docs("experiments.monitoring", __doc__, "at_most.md", STUDY)
