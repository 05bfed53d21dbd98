"""Tables 1, 2, 4, 5 and 6 and Figure 1 of Karandikar et al. 2021: primary × secondary losses, and calibrators.

Run: python -m experiments.papers.soft_calibration.tables --scale=paper --out=DIR, or --scale=laptop --data=IMAGES.npz

Tables 4 to 6 are other columns and calibrators of the same networks: KS and sweep errors, Dirichlet calibration, and
the marginal ECE, which is that of all classes. The paper tunes κ, T, β and λ for every cell and does not print them;
these are the starting points of configs/soft_calibration.py, from which experiments/common/tuning.py searches.
"""

import sys

from configs import soft_calibration
from experiments.common import paper_tables, sweep
from experiments.common.claims import SC, Claim
from experiments.papers.soft_calibration import figure as soft_calibration_figure

_MASS = soft_calibration_figure.COLUMN
CLAIMS = (
  *(Claim(f"{SC}, Tables 1, 2", f"{short} lowers the ECE of {primary}", (f"{primary}+{secondary}", "none"),
          (primary, "none"), _MASS)
    for primary in ("cross_entropy", "focal", "brier")
    for short, secondary in (("S-AvUC", "soft_avuc"), ("SB-ECE", "soft_binned_ece"), ("MMCE", "mmce"))),
  *(Claim(f"{SC}, Figure 1", f"{short} lowers the ECE of {primary} after TS, too", (f"{primary}+{secondary}", "TS"),
          (primary, "TS"), _MASS)
    for primary in ("cross_entropy", "focal", "brier")
    for short, secondary in (("S-AvUC", "soft_avuc"), ("SB-ECE", "soft_binned_ece"))),
  Claim(f"{SC}, Table 2", "TS-SB-ECE has a lower ECE than TS, over all rows", ("", "TS-SB-ECE"), ("", "TS"), _MASS),
  Claim(f"{SC}, Appendix F", "AvUC with the gradient stopped has a lower ECE than AvUC, cross entropy",
        ("cross_entropy+avuc_gs", "none"), ("cross_entropy+avuc", "none"), _MASS),
  *(Claim(f"{SC}, Table 5", f"{short} has a lower ECE than Dirichlet calibration of {primary}",
          (f"focal+{secondary}", "none"), (primary, "Dirichlet"), _MASS)
    for primary in ("cross_entropy", "focal", "brier")
    for short, secondary in (("focal + S-AvUC", "soft_avuc"), ("focal + SB-ECE", "soft_binned_ece"))),
  *(Claim(f"{SC}, Table 6", f"{short} lowers the marginal ECE of focal", (f"focal+{secondary}", "none"),
          ("focal", "none"), "marginal")
    for short, secondary in (("S-AvUC", "soft_avuc"), ("SB-ECE", "soft_binned_ece"))),
)
EXPERIMENT = paper_tables.declared(
  "papers.soft_calibration.tables", "Karandikar et al. 2021, Tables 1, 2, 4, 5 and 6", soft_calibration,
  ("accuracy", "nll", _MASS, "ks", "sweep", "marginal"),
  {"TS": {"name": "temperature_scaling"},
   "TS-SB-ECE": {"name": "temperature_scaling", "objective": "soft_binned_ece", "form": "bin"},
   "Dirichlet": {"name": "dirichlet"}},
  judged=CLAIMS, figure=soft_calibration_figure.figure)

if __name__ == "__main__":
  sys.exit(sweep.main(EXPERIMENT))
