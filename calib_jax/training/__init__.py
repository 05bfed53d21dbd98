"""The third floor: a config comes in, and a run goes out, which is trained, evaluated, reported and loaded again.

``models`` and ``data`` are what is trained and what it learns from; ``engine``, ``schedules`` and ``distributed`` train
one model a seed, in stages, and save checkpoints from which a run can continue; ``config`` reads what a run shall be,
and ``run`` goes from there to the report. Nothing of ``losses`` to ``evaluation`` imports this floor.
"""

from typing import Any

from calib_jax._checks.registry import import_modules
from calib_jax._system import lazy

# The files of the public names. They are imported when they are first used, because ``evaluate`` reads the manifest of
# a run where neither Flax nor Orbax is installed.
_PLACES = {name: f"{__name__}.{place}" for place, names in {
  "averages": ("AVERAGES",),
  "best_model": ("SELECTIONS",),
  "checkpoints": ("Checkpoints",),
  "distributed.stopping": ("Stopped",),
  "engine.inputs": ("check_model", "check_samples"),
  "engine.layout": ("Layout", "predict"),
  "engine.loop": ("train",),
  "engine.objectives": ("VALIDATION_LOSSES", "objective", "validation_loss"),
  "engine.optimizers": ("OPTIMIZERS", "RATES"),
  "engine.program": ("check_phases", "classifier", "decayed", "plan", "predictor"),
  "engine.stages": ("Phase", "Stage"),
  "loss_state": ("LOSS_STATES", "StateUpdate", "of_loss"),
  "pretrained": ("check_weights",),
  "run.execution": ("execute",),
  "run.run": ("Run", "prediction_file"),
  "run_log.metric_log": ("EVENTS", "NO_EVENTS", "MetricLog"),
  "schedules": ("SCHEDULES",),
  "seed_groups": ("Group", "Shape", "groups_on_disk", "groups_to_train", "shape_of"),
  "state": ("TrainState",),
}.items() for name in names}
_get, __dir__ = lazy.names(__name__, _PLACES, ("config", "data", "last_layer", "models", "run"))


def __getattr__(name: str) -> Any:
  if name in _PLACES:
    import_modules(__name__)  # A new file of this package registers what it holds.
  return _get(name)


__all__ = ["AVERAGES", "EVENTS", "LOSS_STATES", "NO_EVENTS", "OPTIMIZERS", "RATES", "SCHEDULES", "SELECTIONS",
           "VALIDATION_LOSSES", "Checkpoints", "Group", "Layout", "MetricLog", "Phase", "Shape", "Stage", "StateUpdate",
           "Stopped", "TrainState", "check_model", "check_phases", "check_samples", "check_weights", "classifier",
           "decayed", "groups_on_disk", "groups_to_train", "objective", "of_loss", "plan", "predict", "predictor",
           "shape_of", "train", "validation_loss"]
