"""From tables and predictions to figures."""
