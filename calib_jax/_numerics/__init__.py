"""Numerical methods that losses, metrics and calibrators share: stable softmax, bins, sorting, selection."""
