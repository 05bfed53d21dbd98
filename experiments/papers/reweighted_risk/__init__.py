"""The results of Zhou et al. 2025, on losses of selective classification."""
