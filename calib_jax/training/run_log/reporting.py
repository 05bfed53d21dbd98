"""A reporter writes what a run's steps measured to the log, and stops the run if losses are not finite."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np

from calib_jax._system.errors import UserError
from calib_jax.training.checkpoints import Checkpoints
from calib_jax.training.run_log.metric_log import MetricLog
from calib_jax.training.run_log.telemetry import Meter
from calib_jax.training.state import TrainState


class Measured(NamedTuple):
  """What the steps of one call measured, as arrays on the device ``[steps, S]``."""

  step: int  # The last of these steps.
  count: int  # Their number, which may be less than the length of the arrays.
  phase: str  # The name of their phase.
  measured: dict[str, jax.Array]  # The arrays by name.

  def each(self) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields each step and what it measured of every seed."""
    for i in range(self.count):
      yield self.step - self.count + 1 + i, {name: x[i] for name, x in self.measured.items()}


class Reporter:
  """Collects what steps measure, and writes the means since the last report."""

  def __init__(self, config: ml_collections.ConfigDict, seeds: Sequence[int], log: MetricLog | None,
               keeper: Checkpoints | None, meter: Meter):
    """Takes what it needs of the run. With None as ``log`` it only stops runs whose losses are not finite."""
    self.config, self.seeds, self.log, self.keeper, self.meter = config, seeds, log, keeper, meter
    self.pending: list[Measured] = []

  def add(self, measured: Measured) -> None:
    """Adds what the steps of a call measured to the next report."""
    self.pending.append(measured)

  def idle(self) -> bool:
    """Returns whether the devices have finished every step so far."""
    return not self.pending or self.pending[-1].measured["loss"].is_ready()

  def previous(self) -> dict[str, jax.Array]:
    """Returns what the last call but one measured, or the last one if there is no other."""
    return self.pending[-2:][0].measured

  def report(self, state: TrainState) -> None:
    """Writes the means since the last report by phase and seed; a UserError if too many steps were not finite."""
    pending, self.pending = jax.device_get(self.pending), []
    for i, seed in enumerate(self.seeds):
      for phase in dict.fromkeys(call.phase for call in pending):
        phase_steps = [measured for call in pending if call.phase == phase for _, measured in call.each()]
        means = {key: float(np.mean([m[key][i] for m in phase_steps])) for key in phase_steps[0]}
        self._write(pending[-1].step, {f"{phase}/{key}": value for key, value in means.items()}, seed)
      skipped = int(state.skipped[i])
      if skipped > self.config.training.max_skipped_steps:
        measured = [(step, {key: value[i] for key, value in of_seeds.items()})
                    for call in pending for step, of_seeds in call.each()]
        raise UserError(self._broken(seed, skipped, measured))
    rates = {f"time/{key}": value for key, value in self.meter.read().items()}
    for seed in self.seeds:
      self._write(pending[-1].step, rates, seed)

  def validation(self, step: int, scores: Sequence[Mapping[str, float]]) -> None:
    """Writes the validation scores of each seed."""
    for seed, values in zip(self.seeds, scores, strict=True):
      self._write(step, {f"validation/{name}": value for name, value in values.items()}, seed)

  def _write(self, step: int, scalars: Mapping[str, float], seed: int) -> None:
    if self.log:
      self.log.write(step, scalars, seed=seed)

  def _broken(self, seed: int, skipped: int, measured: Sequence[tuple[int, Mapping[str, float]]]) -> str:
    """Returns the error message for a run whose loss or gradients are not finite."""
    step, values = next((step, values) for step, values in measured if not all(map(np.isfinite, values.values())))
    causes = ("primary", "secondary", "l2", "gradient_norm")
    part = next(name for name in causes if not np.isfinite(values.get(name, 0.0)))
    quantity = "gradient" if part == "gradient_norm" else f"{part} part of the loss"
    newest = self.keeper and self.keeper.newest()
    checkpoint = (f"the last checkpoint is {newest}, and a changed config needs a new --workdir" if newest else
                  "there is no checkpoint yet" if self.keeper else "the run saves no checkpoints")
    limit = self.config.training.max_skipped_steps
    count = f" ({skipped} steps so far, training.max_skipped_steps is {limit})" if skipped > 1 else ""
    return (f"the {quantity} is {values[part]:g} at step {step:,} (seed {seed}){count}: lower optimizer.learning_rate "
            f"(now {self.config.optimizer.learning_rate:g}) or loss.weight, or set optimizer.clip_norm; {checkpoint}.")
