"""What a step of training changes."""

from typing import Any, NamedTuple

import jax

Array = jax.Array


class TrainState(NamedTuple):
  """Everything that a step changes.

  ``skipped`` counts the steps whose loss or gradients were not finite; they change only ``step`` and ``skipped``.
  """

  step: Array
  params: Any
  batch_stats: Any
  opt_state: Any
  loss_states: Any
  skipped: Array
