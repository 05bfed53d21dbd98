"""Configs: one small ``get_config()`` a run."""
