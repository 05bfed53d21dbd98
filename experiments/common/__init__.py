"""What experiments share: declarations, the sweep that runs them, rows, comparisons, claims and pages."""
