"""Table 2 of Jung et al. 2023, the CIFAR-10-LT half: ECE (15 equal-width bins) and accuracy in percent.

Page 8 of the paper (ICML 2023, PMLR 202). The networks are in the order of ``NETWORKS``.
"""

NETWORKS = ("densenet40", "wide_resnet28", "resnet110", "resnet110_stochastic_depth")
TITLES = dict(zip(NETWORKS, ("DenseNet-40", "WRN-28", "ResNet-110", "ResNet-110-SD"), strict=True))
UNCALIBRATED = ((21.08, 72.11), (9.11, 85.38), (19.14, 75.97), (14.43, 64.90))
# By calibrator and objective: the mean NLL, the NLL with smoothed labels, the focal loss, class-wise loss scaling.
TABLE = {
  ("TS", "base"): ((6.16, 72.11), (4.47, 85.38), (5.94, 75.97), (6.84, 64.90)),
  ("ETS", "base"): ((6.15, 72.11), (4.46, 85.38), (5.93, 75.97), (6.84, 64.90)),
  ("PTS", "base"): ((6.10, 72.11), (4.43, 85.38), (5.90, 75.97), (6.76, 64.90)),
  ("CTS", "base"): ((6.02, 72.37), (4.16, 86.42), (5.74, 76.17), (7.36, 64.10)),
  ("TS", "LS"): ((8.16, 72.11), (2.24, 85.38), (8.99, 75.97), (2.90, 64.90)),
  ("ETS", "LS"): ((0.74, 72.11), (1.54, 85.38), (1.49, 75.97), (1.63, 64.90)),
  ("PTS", "LS"): ((1.02, 72.11), (1.67, 85.38), (1.12, 75.97), (1.50, 64.90)),
  ("CTS", "LS"): ((8.13, 72.00), (2.59, 86.03), (8.94, 76.08), (4.59, 63.76)),
  ("TS", "FL"): ((7.24, 72.11), (1.68, 85.38), (8.45, 75.97), (4.33, 64.90)),
  ("ETS", "FL"): ((9.57, 72.11), (11.69, 85.38), (9.51, 75.97), (9.85, 64.90)),
  ("PTS", "FL"): ((10.52, 72.11), (12.42, 85.38), (10.20, 75.97), (10.24, 64.90)),
  ("CTS", "FL"): ((9.82, 72.12), (1.35, 86.01), (10.58, 76.16), (2.60, 65.26)),
  ("TS", "CLS"): ((3.22, 72.11), (3.19, 85.38), (3.53, 75.97), (2.53, 64.90)),
  ("ETS", "CLS"): ((3.08, 72.11), (3.17, 85.38), (3.40, 75.97), (2.39, 64.90)),
  ("PTS", "CLS"): ((3.13, 72.11), (3.16, 85.38), (3.47, 75.97), (2.40, 64.90)),
  ("CTS", "CLS"): ((2.79, 74.99), (1.99, 88.00), (2.96, 78.55), (2.19, 67.43)),
}


def published(network: str, calibrator: str, objective: str) -> tuple[float, float] | None:
  """ECE and accuracy in percent, or None for what the paper's table does not have.

  >>> published("densenet40", "TS", "CLS")
  (3.22, 72.11)
  """
  cells = UNCALIBRATED if calibrator == "none" else TABLE.get((calibrator, objective))
  return None if cells is None else cells[NETWORKS.index(network)]
