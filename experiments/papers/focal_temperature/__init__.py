"""The results of Komisarenko & Kull 2024, Improving Calibration by Relating Focal Loss (and others)."""
