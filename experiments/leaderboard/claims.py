"""What the papers claim of the methods and calibrators of the leaderboard."""

from experiments.common.claims import CL, FT, MC, RR, SC, Claim

_CE, _MASS = ("cross entropy", "none"), "ece_equal_mass_l2"
# The authors' code with a score that is not a constant there.
_RISK, _OF = ("selective risk, released, msp", "none"), "the selective-risk loss, as released with msp,"
_SECONDARY = ("loss.secondary", "loss.weight")
# Interleaved steps have a rate where joint ones have a weight; each is tuned by the same rule.
_INTERLEAVED = ("schedule.name", "schedule.secondary_rate", "data.held_out_fraction", "loss.weight")
_SC, _RR, _MC = ("soft_calibration_tables", "reweighted_risk_tables", "mac_cal_tables")
CLAIMS = (
  *(Claim(f"{SC}, Tables 1, 2", f"{name} lowers the ECE of {of}", (before + name, "none"), (other, "none"),
          _MASS, about=_SECONDARY, table=_SC)
    for before, other, of in (("", "cross entropy", "cross entropy"),
                              ("focal + ", "focal, gamma 1", "the focal loss with gamma 1"))
    for name in ("S-AvUC", "SB-ECE")),
  Claim(f"{SC}, Table 2", "MMCE lowers the ECE of cross entropy", ("MMCE", "none"), _CE, _MASS, about=_SECONDARY,
        table=_SC),
  Claim(f"{SC}, Table 2", "TS-SB-ECE has a lower ECE than TS, over all methods", ("", "TS-SB-ECE"), ("", "TS"), _MASS,
        table=_SC),
  Claim(f"{SC}, Table 2", "TS-SB-ECE has a higher NLL than TS (ImageNet), over all methods", ("", "TS-SB-ECE"),
        ("", "TS"), "nll", lower=False),
  *(Claim(f"{SC}, Appendix B", f"interleaving (10% held out, a rate for the weight) lowers the ECE of {name} where "
          "the network overfits", (f"{name}, interleaved", "none"), (name, "none"), _MASS, about=_INTERLEAVED)
    for name in ("S-AvUC", "SB-ECE")),
  *(Claim(f"{RR}, Table 1", f"{_OF} {text}", _RISK, (other, "none"), column, table=_RR) for text, other, column in (
    ("lowers the ECE of cross entropy", "cross entropy", "ece"),
    ("has a lower ECE than the dual focal loss", "dual focal", "ece"), ("has a lower ECE than AURC", "AURC", "ece"),
    ("costs accuracy", "cross entropy", "accuracy"))),
  Claim(f"{RR}, Section 3", "the inverse focal loss lowers the ECE of cross entropy", ("inverse focal", "none"), _CE,
        "ece"),
  Claim(f"{FT}, Table 1", "focal temperature scaling has a lower ECE than TS, over all methods", ("", "FTS"),
        ("", "TS"), "ece"),
  Claim(f"{FT}, Section 1", "the focal loss lowers the ECE of cross entropy", ("focal", "none"), _CE, "ece"),
  Claim(f"{FT}, Table 1", "AdaFocal lowers the ECE of cross entropy", ("AdaFocal", "none"), _CE, "ece"),
  *(Claim(f"{CL}, Table 2", f"class-wise loss scaling lowers the ECE of {name}, over all methods (balanced classes "
          "here)", ("", f"{name} + CLS"), ("", name), "ece") for name in ("TS", "CTS")),
  *(Claim(f"{MC}, Table 1", f"MaC-Cal {text}", ("MaC-Cal", "none"), (other, "none"), "ece", table=_MC)
    for text, other in (("lowers the ECE of cross entropy", "cross entropy"), ("has a lower ECE than TST", "TST"),
                        ("has a lower ECE than the focal loss", "focal"), ("has a lower ECE than MIT", "MIT"))),
)
