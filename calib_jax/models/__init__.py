"""Flax modules, found by name."""
