"""Calibrators on saved predictions."""
