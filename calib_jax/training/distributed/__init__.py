"""Steps over seeds, devices and processes, and how all of them stop together."""
