"""Losses for training calibrated classifiers: pure functions ``(logits, labels) -> loss``."""
