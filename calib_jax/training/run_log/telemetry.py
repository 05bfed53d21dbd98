"""Telemetry measures the speed of a run, its waiting for data, and its memory."""

import contextlib
import pathlib
import time

import jax


class Meter:
  """Counts examples, seconds, and waiting for input with no step left to run, since the last ``read``."""

  def __init__(self):
    """Starts counting."""
    self.first: dict[str, float] = {}
    self.reset()

  def compiled(self, phase: str, seconds: float) -> None:
    """Records the first step of a phase on its own, because it also compiles."""
    self.first[f"first_step_of_{phase}_seconds"] = seconds
    self.reset()

  def reset(self) -> None:
    """Starts counting again from zero."""
    self.started, self.steps, self.examples, self.waited = time.monotonic(), 0, 0, 0.0

  def count(self, steps: int, examples: int, waited: float) -> None:
    """Counts steps that were taken together."""
    self.steps, self.examples, self.waited = self.steps + steps, self.examples + examples, self.waited + waited

  def read(self) -> dict[str, float]:
    """Returns first steps, rates and memory since the last reading; rates and memory only if a step was counted."""
    seconds, readings, self.first = time.monotonic() - self.started, self.first, {}
    if self.steps and seconds > 0:
      readings |= {"examples_per_second": self.examples / seconds, "step_seconds": seconds / self.steps,
                   "input_seconds": self.waited / self.steps, "memory_gib": memory_high_water() / 2**30}
    self.reset()
    return readings


def memory_high_water() -> int:
  """Returns the peak memory in bytes of the first device, or of the process if the device reports none (CPU)."""
  stats = jax.local_devices()[0].memory_stats() or {}
  if "peak_bytes_in_use" in stats:
    return stats["peak_bytes_in_use"]
  with contextlib.suppress(ImportError):  # Some systems have no module resource.
    import resource
    import sys

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
  return 0


class Profile:
  """Traces ``num_steps`` steps of a process after its first ten, for TensorBoard's profiler or Perfetto."""

  def __init__(self, folder: pathlib.Path | None, num_steps: int):
    """Prepares a trace in ``folder``; there is none if ``num_steps`` is 0 or ``folder`` is None."""
    self.folder, self.num_steps, self.steps, self.running = folder, num_steps if folder else 0, 0, False

  def step(self) -> None:
    """Starts or ends the trace if it is due; the loop calls this before each step."""
    if self.num_steps and self.steps == 10:
      jax.profiler.start_trace(str(self.folder))
      self.running = True
    elif self.steps == 10 + self.num_steps:
      self.close()
    self.steps += 1

  def close(self) -> None:
    """Ends the trace if it is running."""
    if self.running:
      jax.profiler.stop_trace()
      self.running = False
