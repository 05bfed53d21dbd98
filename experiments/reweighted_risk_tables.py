"""Tables 1, 2 and 4 of Zhou et al. 2025: losses of selective classification on ten networks, before and after TS.

Run: python -m experiments.reweighted_risk_tables --scale=paper --out=DIR, or --scale=laptop --data=IMAGES.npz

Their post-hoc methods MetaMis and MetaAcc are `meta_calibration`, whose targets are not printed; they are left out.
"""

from collections.abc import Sequence
import sys

from configs import variants
from experiments import paper_tables, sweep

EXPERIMENT = paper_tables.declared(
  "reweighted_risk_tables", "Zhou et al. 2025, Tables 1, 2 and 4", "reweighted_risk", tuple(variants._RR),
  ("accuracy", "ece", "adaptive", "classwise"), {"TS": {"name": "temperature_scaling"}})


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs what is missing, and makes the tables."""
  return sweep.main(EXPERIMENT, arguments)


if __name__ == "__main__":
  sys.exit(main())
