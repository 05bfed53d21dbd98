"""Tables 1 and 2 of Karandikar et al. 2021: primary × secondary losses, before and after TS and TS-SB-ECE.

Run: python -m experiments.soft_calibration_tables --scale=paper --out=DIR, or --scale=laptop --data=IMAGES.npz

The paper tunes κ, T, β and λ for every cell and does not print them; these are the starting points of
configs/variants.py, from which experiments/tuning.py searches.
"""

from collections.abc import Sequence
import sys

from experiments import paper_tables, sweep

EXPERIMENT = paper_tables.declared(
  "soft_calibration_tables", "Karandikar et al. 2021, Tables 1 and 2", "soft_calibration",
  (("cifar100", "wide_resnet28_10"), ("cifar10", "wide_resnet28_10"), ("imagenet2012", "resnet50")),
  ("accuracy", "nll", "ece_equal_mass_l2"),
  {"TS": {"name": "temperature_scaling"},
   "TS-SB-ECE": {"name": "temperature_scaling", "objective": "soft_binned_ece", "form": "bin"}})


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs what is missing, and makes the tables."""
  return sweep.main(EXPERIMENT, arguments)


if __name__ == "__main__":
  sys.exit(main())
