"""The training engine: state, steps, schedules, checkpoints and the loop."""

from calib_jax.training.checkpoints import restore, save
from calib_jax.training.loop import objective, train
from calib_jax.training.metric_log import EVENTS, NO_EVENTS, MetricLog
from calib_jax.training.optimizers import OPTIMIZERS, SCHEDULES
from calib_jax.training.steps import TrainState

__all__ = ["EVENTS", "NO_EVENTS", "OPTIMIZERS", "SCHEDULES", "MetricLog", "TrainState", "objective", "restore", "save",
           "train"]
