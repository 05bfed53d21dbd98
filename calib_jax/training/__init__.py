"""The training engine: state, steps, schedules, checkpoints and the loop."""

from calib_jax.training.checkpoints import Checkpoints
from calib_jax.training.loop import decayed, predict, train
from calib_jax.training.metric_log import EVENTS, NO_EVENTS, MetricLog
from calib_jax.training.objectives import STATEFUL, objective, primary
from calib_jax.training.optimizers import OPTIMIZERS, SCHEDULES
from calib_jax.training.schedules import SCHEDULES as EPOCHS
from calib_jax.training.steps import TrainState
from calib_jax.training.stopping import Stopped

__all__ = ["EPOCHS", "EVENTS", "NO_EVENTS", "OPTIMIZERS", "SCHEDULES", "STATEFUL", "Checkpoints", "MetricLog",
           "Stopped", "TrainState", "decayed", "objective", "predict", "primary", "train"]
