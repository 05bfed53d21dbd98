"""Tables 1, 2, 3 and 5 and Figure 5 of Ni et al.: losses, heads of a second stage, both, and the parts of MaC-Cal.

Run: python -m experiments.papers.mac_cal.tables --scale=paper --out=DIR, or --scale=laptop --data=IMAGES.npz

The rows of Table 5 begin with "part: "; the paper has them for DenseNet-121 on CIFAR-10 and CIFAR-100. At paper scale
the page has Table 2 too, each network by itself. The rows of Table 3 end in "_masked": as in Algorithm 1, the first
stage has a loss or an augmentation of Table 1, and the second one has cross entropy. classifier_level.py makes Tables 2
and 3 of small networks that know their images by heart. figures.py draws Figures 5 and 6 from the rows of both.
"""

import itertools
import sys

from configs import mac_cal
from experiments.common import paper_tables, sweep
from experiments.common.claims import MC, Claim


def _part(**options) -> dict[str, object]:
  printed = mac_cal.losses("cifar10", "resnet50")["masked_printed"]
  return printed | {"head": {**printed["head"], **options}}


PARTS = {  # Each adds one part to the one before; the last is the row "masked_printed".
  "part: masked retraining": _part(bottleneck=False, adaptive=False, updates="all"),
  "part: gradient restriction": _part(bottleneck=False, adaptive=False),
  "part: classifier restructure": _part(adaptive=False),
  "part: static adaptive sparsity": _part(decaying=False),
}
OTHERS = {"cross_entropy": "cross entropy", "label_smoothing": "label smoothing", "margin_label_smoothing": "MbLS",
          "adaptive_conditional_label_smoothing": "ACLS", "mixup": "mixup", "mixup_inference": "MIT", "focal": "focal",
          "sample_dependent_focal": "FLSD", "dual_focal": "dual focal", "mmce": "MMCE", "pairwise_constraints": "CPC",
          "two_stage": "TST", "variational": "V-TST", "two_stage_released": "TST, released",
          "variational_released": "V-TST, released", "simplex_etf": "BalCAL",
          "simplex_etf_released": "BalCAL, released", "layer_peeled": "PLP"}
CLAIMS = (
  *(Claim(f"{MC}, {place}", f"MaC-Cal has a lower ECE{where} than {name}", ("masked", "none"), (other, "none"), column)
    for place, where, column in (("Table 1", "", "ece"), ("Figure 5", " on corrupted images", "ece_shifted"))
    for other, name in OTHERS.items()),
  *(Claim(f"{MC}, Table 3", f"MaC-Cal after {OTHERS[name]} has a lower ECE than {OTHERS[name]} alone",
          (f"{name}_masked", "none"), (name, "none"), "ece") for name in mac_cal.FOLLOWED),
  *(Claim(f"{MC}, Table 5", f"{part[6:]} lowers the ECE of the part before", (part, "none"), (before, "none"), "ece")
    for before, part in itertools.pairwise(PARTS)),
  Claim(f"{MC}, Table 5", "the decaying bound lowers the ECE of the static one", ("masked_printed", "none"),
        ("part: static adaptive sparsity", "none"), "ece"),
)
# Those of blur, noise, compression and lighting in Figure 5, at all severities.
CORRUPTIONS = ("gaussian_blur", "shot_noise", "jpeg_compression", "brightness")
OUTSIDE = {"cifar10": ("cifar100", "svhn_cropped"), "cifar100": ("cifar10", "svhn_cropped")}  # Section 5.3.


def sets(data: str) -> dict[str, object]:
  """Returns the fields of the corruptions of Figure 5, and of the sets of other images of Table 2, which has CIFAR."""
  return {"evaluation.corruptions": CORRUPTIONS, "evaluation.ood": OUTSIDE.get(data, ())}


EXPERIMENT = paper_tables.declared(
  "papers.mac_cal.tables", "Ni et al., Tables 1, 3 and 5", mac_cal, ("accuracy", "ece", "adaptive", "mce"),
  {"TS": {"name": "temperature_scaling"}}, extra=PARTS, judged=CLAIMS, at_paper_scale=sets,
  note=" MaC-Cal sets q on the validation images, which as trained no other row has seen but those that stop at the "
       "lowest validation loss.")

if __name__ == "__main__":
  sys.exit(sweep.main(EXPERIMENT))
