"""From predictions to tables of metrics with intervals, before and after each calibrator."""
