"""The tables of Jung et al. 2023, Scaling of Class-wise Training Losses for Post-hoc Calibration."""
