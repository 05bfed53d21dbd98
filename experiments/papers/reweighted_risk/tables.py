"""Tables 1, 2 and 4 of Zhou et al. 2025: losses of selective classification, before and after three calibrators.

Run: python -m experiments.papers.reweighted_risk.tables --scale=paper --out=DIR, or --scale=laptop --data=IMAGES.npz

`selective_risk` is Algorithm 1 as the released code has it; `selective_risk_clamped` is the same without a gradient
through τ, and `selective_risk_no_gradient`, without any through the weights, is the default of `losses.selective_risk`.
The targets of MetaMis and MetaAcc are not printed. A miscoverage of 0.1 loses as much accuracy
as MetaMis does in Table 4; the accuracy of 0.98 is ours. The calibrators named "released" are those of the released
code, which fits them to the logits of the training images: T by the ECE, a miscoverage of 0.05, and accuracies of 0.97,
0.87 and 0.85 for CIFAR-10, CIFAR-100 and Tiny ImageNet.
"""

import sys

from configs import reweighted_risk
from experiments.common import paper_tables, sweep
from experiments.common.claims import RR, Claim

_XE = ("cross_entropy", "none")
CLAIMS = (
  *(Claim(f"{RR}, Table 1", f"the selective-risk loss{reading} has a lower ECE than {name}", (row, "none"),
          (other, "none"), "ece")
    for reading, row in (("", "selective_risk"), (", no gradient of τ,", "selective_risk_clamped"))
    for name, other in (("cross entropy", "cross_entropy"), ("FL-53", "sample_dependent_focal"), ("KDE-XE", "kde_ece"),
                        ("the inverse focal loss", "inverse_focal"), ("the dual focal loss", "dual_focal"),
                        ("AURC", "aurc"))),
  Claim(f"{RR}, Table 1", "the selective-risk loss costs accuracy", ("selective_risk", "none"), _XE, "accuracy"),
  Claim(f"{RR}, Table 2", "the selective-risk loss lowers the classwise ECE of cross entropy",
        ("selective_risk", "none"), _XE, "classwise"),
  *(Claim(f"{RR}, Table 4", f"{name} costs accuracy, over all losses", ("", name), ("", "none"), "accuracy")
    for name in ("MetaMis", "MetaAcc")),
)
EXPERIMENT = paper_tables.declared(
  "papers.reweighted_risk.tables", "Zhou et al. 2025, Tables 1, 2 and 4", reweighted_risk,
  ("accuracy", "ece", "adaptive", "classwise"), {
    "TS": {"name": "temperature_scaling"},
    "MetaMis": {"name": "meta_calibration", "constraint": "miscoverage", "target": 0.1},
    "MetaAcc": {"name": "meta_calibration", "constraint": "accuracy", "target": 0.98},
    "TS, released": {"name": "temperature_scaling", "objective": "ece", "fitted_to": "train"},
    "MetaMis, released": {"name": "meta_calibration", "constraint": "miscoverage", "target": 0.05,
                          "fitted_to": "train"},
    **{f"MetaAcc {target:g}, released": {"name": "meta_calibration", "constraint": "accuracy", "target": target,
                                         "fitted_to": "train"} for target in (0.97, 0.87, 0.85)}},
  judged=CLAIMS, always={"evaluation.predict_train": True})

if __name__ == "__main__":
  sys.exit(sweep.main(EXPERIMENT))
