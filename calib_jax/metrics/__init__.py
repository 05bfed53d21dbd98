"""Metrics of calibration and accuracy: pure functions of probabilities and labels."""
