"""Post-hoc calibrators: pairs of pure functions, ``fit(logits, labels)`` and ``apply(params, logits)``."""
