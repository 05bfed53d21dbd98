"""Predictions of any framework in files, and calibrators that are fitted to them and applied to some rows at a time."""
