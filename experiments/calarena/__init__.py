"""Calibrators by the protocol of CalArena (Berta et al. 2026) on data sets that are at hand."""
