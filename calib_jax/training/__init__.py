"""The third floor: a config comes in, and a run goes out, which is trained, evaluated, reported and loaded again.

``models`` and ``data`` are what is trained and what it learns from; ``engine``, ``schedules`` and ``distributed`` train
one model a seed, in stages, and save checkpoints from which a run can continue; ``config`` reads what a run shall be,
and ``run`` goes from there to the report. Nothing of ``losses`` to ``evaluation`` imports this floor.
"""

from calib_jax._checks.registry import import_modules
from calib_jax._system import lazy
from calib_jax.training.averages import AVERAGES
from calib_jax.training.best_model import SELECTIONS
from calib_jax.training.checkpoints import Checkpoints
from calib_jax.training.distributed.stopping import Stopped
from calib_jax.training.engine.inputs import check_model, check_samples
from calib_jax.training.engine.layout import Layout, predict
from calib_jax.training.engine.loop import train
from calib_jax.training.engine.objectives import VALIDATION_LOSSES, objective, validation_loss
from calib_jax.training.engine.optimizers import OPTIMIZERS, RATES
from calib_jax.training.engine.program import check_phases, classifier, decayed, plan, predictor
from calib_jax.training.engine.stages import Phase, Stage
from calib_jax.training.loss_state import LOSS_STATES, StateUpdate, of_loss
from calib_jax.training.pretrained import check_file as check_weights
from calib_jax.training.run_log.metric_log import EVENTS, NO_EVENTS, MetricLog
from calib_jax.training.schedules import SCHEDULES
from calib_jax.training.seed_groups import Group, Shape, groups_on_disk, groups_to_train, shape_of
from calib_jax.training.state import TrainState

import_modules(__name__)  # A new file of this package registers what it holds.
# What imports this package is found at its first use, as names of its own rooms.
__getattr__, __dir__ = lazy.names(__name__, {
  "Run": "calib_jax.training.run.run", "execute": "calib_jax.training.run.execution",
  "prediction_file": "calib_jax.training.run.run"}, ("config", "data", "last_layer", "models", "run"))

__all__ = ["AVERAGES", "EVENTS", "LOSS_STATES", "NO_EVENTS", "OPTIMIZERS", "RATES", "SCHEDULES", "SELECTIONS",
           "VALIDATION_LOSSES", "Checkpoints", "Group", "Layout", "MetricLog", "Phase", "Shape", "Stage", "StateUpdate",
           "Stopped", "TrainState", "check_model", "check_phases", "check_samples", "check_weights", "classifier",
           "decayed", "groups_on_disk", "groups_to_train", "objective", "of_loss", "plan", "predict", "predictor",
           "shape_of", "train", "validation_loss"]
