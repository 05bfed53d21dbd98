"""Tables 1, 2 and 4 of Zhou et al. 2025: losses of selective classification, before and after three calibrators.

Run: python -m experiments.papers.reweighted_risk.tables --scale=paper --out=DIR, or --scale=laptop --data=IMAGES.npz

`selective_risk` is Algorithm 1 as the released code computes it, with msp or margin, because its negative entropy is a
constant there; `selective_risk_clamped` is Eq. 17 with scores of p, clamped; `selective_risk_no_gradient`, without a
gradient of the weights, is the default of `losses.selective_risk`. The targets of MetaMis and MetaAcc are not printed.
A miscoverage of 0.1 loses as much accuracy as MetaMis does in Table 4; the accuracy of 0.98 is ours. The last
calibrators are those of the released code, which fits them to the logits of the training images: T as
`released_temperature` says, a miscoverage of 0.05, and accuracies of 0.97, 0.87 and 0.85 for CIFAR-10, CIFAR-100 and
Tiny ImageNet. Where an accuracy is out of reach, that code has no MetaAcc, and here all predictions or the bin of
lowest entropy are kept.
"""

import sys

from configs import reweighted_risk
from experiments.common import paper_tables, sweep
from experiments.common.claims import RR, Claim

_XE = ("cross_entropy", "none")
_RISK, _OF = ("selective_risk", "none"), "the selective-risk loss, as released with msp or margin,"
_OTHERS = {"cross entropy": "cross_entropy", "FL-53": "sample_dependent_focal",
           "KDE-XE as printed (the released one is cross entropy)": "kde_ece",
           "the inverse focal loss": "inverse_focal", "the dual focal loss": "dual_focal", "AURC": "aurc"}
CLAIMS = (
  *(Claim(f"{RR}, Table 1", f"{_OF} has a lower ECE than {name}", _RISK, (row, "none"), "ece")
    for name, row in _OTHERS.items()),
  Claim(f"{RR}, Table 1", f"{_OF} costs accuracy", _RISK, _XE, "accuracy"),
  Claim(f"{RR}, Table 2", f"{_OF} lowers the classwise ECE of cross entropy", _RISK, _XE, "classwise"),
  *(Claim(f"{RR}, Table 4", f"{name} costs accuracy, over all losses", ("", name), ("", "none"), "accuracy")
    for name in ("MetaMis", "MetaAcc")),
)
_TEMPERATURE, _TO_TRAIN = "experiments.papers.reweighted_risk.released_temperature", {"fitted_to": "train"}
EXPERIMENT = paper_tables.declared(
  "papers.reweighted_risk.tables", "Zhou et al. 2025, Tables 1, 2 and 4", reweighted_risk,
  ("accuracy", "ece", "adaptive", "classwise"), {
    "TS": {"name": "temperature_scaling"},
    "MetaMis": {"name": "meta_calibration", "constraint": "miscoverage", "target": 0.1},
    "MetaAcc": {"name": "meta_calibration", "constraint": "accuracy", "target": 0.98},
    "TS, 50 L-BFGS steps from 1.5, fitted to train": {"name": f"{_TEMPERATURE}:temperature_scaling", **_TO_TRAIN},
    "MetaMis, released": {"name": f"{_TEMPERATURE}:meta_calibration", "constraint": "miscoverage", "target": 0.05,
                          **_TO_TRAIN},
    **{f"MetaAcc {target:g}, released": {"name": f"{_TEMPERATURE}:meta_calibration", "constraint": "accuracy",
                                         "target": target, **_TO_TRAIN} for target in (0.97, 0.87, 0.85)}},
  judged=CLAIMS, always={"evaluation.predict_train": True})

if __name__ == "__main__":
  sys.exit(sweep.main(EXPERIMENT))
