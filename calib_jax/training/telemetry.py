"""How fast a run is, what it waits for, and how much memory it took."""

import contextlib
import pathlib
import time

import jax


class Meter:
  """Examples, seconds and waiting since the last ``read``.

  Input counts as waited for where the devices had nothing left to do when it came.
  """

  def __init__(self):
    """Starts to count."""
    self.first = {}
    self.reset()

  def compiled(self, phase: str, seconds: float) -> None:
    """Notes the first step of a phase, which compiles and is no measure of the rest."""
    self.first[f"first_step_of_{phase}_seconds"] = seconds
    self.reset()

  def reset(self) -> None:
    """Starts anew."""
    self.started, self.steps, self.examples, self.waited = time.monotonic(), 0, 0, 0.0

  def count(self, examples: int, waited: float) -> None:
    """Notes a step."""
    self.steps, self.examples, self.waited = self.steps + 1, self.examples + examples, self.waited + waited

  def read(self) -> dict[str, float]:
    """First steps, rates and memory since the last reading; no rates where no step was counted."""
    seconds, found, self.first = time.monotonic() - self.started, self.first, {}
    if self.steps and seconds > 0:
      found |= {"examples_per_second": self.examples / seconds, "step_seconds": seconds / self.steps,
                "input_seconds": self.waited / self.steps, "memory_gib": memory_high_water() / 2**30}
    self.reset()
    return found


def memory_high_water() -> int:
  """The most bytes held at a time: on the first device, or by the process where the device does not tell (CPU)."""
  stats = jax.local_devices()[0].memory_stats() or {}
  if "peak_bytes_in_use" in stats:
    return stats["peak_bytes_in_use"]
  with contextlib.suppress(ImportError):  # Not on every system.
    import resource
    import sys

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
  return 0


class Profile:
  """A trace of ``num_steps`` steps, from the tenth of a process on, for TensorBoard's profiler or Perfetto."""

  def __init__(self, folder: pathlib.Path | None, num_steps: int):
    """Writes to ``folder``; nothing where ``num_steps`` is 0 or ``folder`` None."""
    self.folder, self.left, self.before = folder, num_steps if folder else 0, 10
    self.running = False

  def step(self) -> None:
    """Called before each step."""
    if not self.left:
      return
    if self.before:
      self.before -= 1
      return
    if not self.running:
      jax.profiler.start_trace(str(self.folder))
      self.running = True
      return
    self.left -= 1
    if not self.left:
      self.close()

  def close(self) -> None:
    """Ends a trace that has begun."""
    if self.running:
      jax.profiler.stop_trace()
      self.running, self.left = False, 0
