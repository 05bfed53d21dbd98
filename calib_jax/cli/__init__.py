"""The commands: ``train``, ``evaluate`` and ``compare``."""
