"""What the results of an evaluation say to do, and why."""
