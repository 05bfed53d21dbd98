"""The training engine: state, steps, schedules, checkpoints and the loop."""
