"""Table 1 of Komisarenko & Kull 2024: the focal family, before and after temperature and focal temperature scaling.

Run: python -m experiments.papers.focal_temperature.table --scale=paper --out=DIR, or --scale=laptop --data=IMAGES.npz

The paper chooses the temperature, and γ, by the log loss for the column of the log loss, and by the ECE in 15
equal-mass bins for that of the ECE (Section 5.1); here each of the two has its own row.
"""

import sys

from configs import focal_temperature
from experiments.common import paper_tables, sweep
from experiments.common.claims import FT, Claim

_MASS = "adaptive"  # Equal mass, norm 1.
CLAIMS = (
  Claim(f"{FT}, Table 1", "FTS has a lower ECE than TS, both by the ECE, over all losses", ("", "FTS by ECE"),
        ("", "TS by ECE"), _MASS),
  Claim(f"{FT}, Table 1", "FTS has a lower log loss than TS, both by the log loss, over all losses",
        ("", "FTS by log loss"), ("", "TS by log loss"), "nll"),
  Claim(f"{FT}, Section 5.2", "TS by the ECE has a lower ECE than TS by the log loss, over all losses",
        ("", "TS by ECE"), ("", "TS by log loss"), _MASS),
  *(Claim(f"{FT}, Table 1", f"the focal loss with gamma {gamma} has a lower ECE than cross entropy, both after FTS",
          (f"focal_{gamma}", "FTS by ECE"), ("cross_entropy", "FTS by ECE"), _MASS) for gamma in (1, 3, 7)),
)
EXPERIMENT = paper_tables.declared(
  "papers.focal_temperature.table", "Komisarenko & Kull 2024, Table 1", focal_temperature, ("accuracy", "nll", _MASS),
  {"TS by log loss": {"name": "temperature_scaling"},
   "TS by ECE": {"name": "temperature_scaling", "objective": "ece"},
   "FTS by log loss": {"name": "focal_temperature_scaling", "objective": "nll"},
   "FTS by ECE": {"name": "focal_temperature_scaling"}},
  rows=("cross_entropy", "focal_1", "focal_3", "focal_7", "sample_dependent_focal", "adaptive_focal"), judged=CLAIMS)

if __name__ == "__main__":
  sys.exit(sweep.main(EXPERIMENT))
