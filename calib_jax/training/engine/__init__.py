"""The engine turns a config into compiled steps and runs them: stages, phases, objectives, gradients, the loop."""
