"""Estimators of calibration error on data whose posterior is known."""
