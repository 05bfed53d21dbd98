"""Where to set the cut: thresholds with a guarantee, prediction sets, and decisions under costs.

Arrays go in and out as NumPy's. A guarantee holds over draws of the calibration set: rows that the threshold or the
set rule was chosen on, which must be others than those that fitted a calibrator, and than those that judge it.
"""

from calib_jax.thresholds.decisions import Decision, NetBenefit, decision_threshold, net_benefit
from calib_jax.thresholds.monitoring import Monitor, monitor, update_monitor
from calib_jax.thresholds.selective import Check, Threshold, check_threshold, selective_threshold
from calib_jax.thresholds.sets import SetRule, prediction_sets

__all__ = ["Check", "Decision", "Monitor", "NetBenefit", "SetRule", "Threshold", "check_threshold",
           "decision_threshold", "monitor", "net_benefit", "prediction_sets", "selective_threshold", "update_monitor"]
