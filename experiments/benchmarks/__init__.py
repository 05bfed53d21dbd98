"""Timings, as ratios to the time of a reference in the same run."""
