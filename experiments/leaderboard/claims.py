"""What the papers claim of the methods and calibrators of the leaderboard."""

from experiments.common.claims import CL, FT, MC, RR, SC, Claim

_CE, _MASS = ("cross entropy", "none"), "ece_equal_mass_l2"
_RISK = ("selective risk, released, msp", "none")  # The authors' code with a score that is not a constant there.
_SECONDARY = ("loss.secondary", "loss.weight")
# Interleaved steps have a rate where joint ones have a weight; each is tuned by the same rule.
_INTERLEAVED = ("schedule.name", "schedule.secondary_rate", "data.held_out_fraction", "loss.weight")
CLAIMS = (
  Claim(f"{SC}, Tables 1, 2", "S-AvUC lowers the ECE of cross entropy", ("S-AvUC", "none"), _CE, _MASS,
        about=_SECONDARY, table="soft_calibration_tables"),
  Claim(f"{SC}, Tables 1, 2", "SB-ECE lowers the ECE of cross entropy", ("SB-ECE", "none"), _CE, _MASS,
        about=_SECONDARY, table="soft_calibration_tables"),
  Claim(f"{SC}, Tables 1, 2", "S-AvUC lowers the ECE of the focal loss with gamma 1", ("focal + S-AvUC", "none"),
        ("focal, gamma 1", "none"), _MASS, about=_SECONDARY, table="soft_calibration_tables"),
  Claim(f"{SC}, Tables 1, 2", "SB-ECE lowers the ECE of the focal loss with gamma 1", ("focal + SB-ECE", "none"),
        ("focal, gamma 1", "none"), _MASS, about=_SECONDARY, table="soft_calibration_tables"),
  Claim(f"{SC}, Table 2", "MMCE lowers the ECE of cross entropy", ("MMCE", "none"), _CE, _MASS, about=_SECONDARY,
        table="soft_calibration_tables"),
  Claim(f"{SC}, Table 2", "TS-SB-ECE has a lower ECE than TS, over all methods", ("", "TS-SB-ECE"), ("", "TS"), _MASS,
        table="soft_calibration_tables"),
  Claim(f"{SC}, Table 2", "TS-SB-ECE has a higher NLL than TS (ImageNet), over all methods", ("", "TS-SB-ECE"),
        ("", "TS"), "nll", lower=False),
  Claim(f"{SC}, Appendix B", "interleaving (10% held out, a rate for the weight) lowers the ECE of S-AvUC where "
        "the network overfits",
        ("S-AvUC, interleaved", "none"), ("S-AvUC", "none"), _MASS, about=_INTERLEAVED),
  Claim(f"{SC}, Appendix B", "interleaving (10% held out, a rate for the weight) lowers the ECE of SB-ECE where "
        "the network overfits",
        ("SB-ECE, interleaved", "none"), ("SB-ECE", "none"), _MASS, about=_INTERLEAVED),
  Claim(f"{RR}, Table 1", "the selective-risk loss, as released with msp, lowers the ECE of cross entropy", _RISK, _CE,
        "ece", table="reweighted_risk_tables"),
  Claim(f"{RR}, Table 1", "the selective-risk loss, as released with msp, has a lower ECE than the dual focal loss",
        _RISK, ("dual focal", "none"), "ece", table="reweighted_risk_tables"),
  Claim(f"{RR}, Table 1", "the selective-risk loss, as released with msp, has a lower ECE than AURC", _RISK,
        ("AURC", "none"), "ece", table="reweighted_risk_tables"),
  Claim(f"{RR}, Table 1", "the selective-risk loss, as released with msp, costs accuracy", _RISK, _CE, "accuracy",
        table="reweighted_risk_tables"),
  Claim(f"{RR}, Section 3", "the inverse focal loss lowers the ECE of cross entropy", ("inverse focal", "none"), _CE,
        "ece"),
  Claim(f"{FT}, Table 1", "focal temperature scaling has a lower ECE than TS, over all methods", ("", "FTS"),
        ("", "TS"), "ece"),
  Claim(f"{FT}, Section 1", "the focal loss lowers the ECE of cross entropy", ("focal", "none"), _CE, "ece"),
  Claim(f"{FT}, Table 1", "AdaFocal lowers the ECE of cross entropy", ("AdaFocal", "none"), _CE, "ece"),
  Claim(f"{CL}, Table 2", "class-wise loss scaling lowers the ECE of TS, over all methods (balanced classes here)",
        ("", "TS + CLS"), ("", "TS"), "ece"),
  Claim(f"{CL}, Table 2", "class-wise loss scaling lowers the ECE of CTS, over all methods (balanced classes here)",
        ("", "CTS + CLS"), ("", "CTS"), "ece"),
  Claim(f"{MC}, Table 1", "MaC-Cal lowers the ECE of cross entropy", ("MaC-Cal", "none"), _CE, "ece",
        table="mac_cal_tables"),
  Claim(f"{MC}, Table 1", "MaC-Cal has a lower ECE than TST", ("MaC-Cal", "none"), ("TST", "none"), "ece",
        table="mac_cal_tables"),
  Claim(f"{MC}, Table 1", "MaC-Cal has a lower ECE than the focal loss", ("MaC-Cal", "none"), ("focal", "none"), "ece",
        table="mac_cal_tables"),
  Claim(f"{MC}, Table 1", "MaC-Cal has a lower ECE than MIT", ("MaC-Cal", "none"), ("MIT", "none"), "ece",
        table="mac_cal_tables"),
)
