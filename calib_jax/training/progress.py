"""One live line: where a run is, how fast, and how long it still takes."""

import sys
import time


class Progress:
  """Prints step, examples/s, loss and time left: in place on a terminal, else a line every ten seconds and at the end.

  The rate is that of the steps since the first, so compilation does not spoil it.
  """

  def __init__(self, label: str, num_steps: int, stream=None):
    """``label`` opens the line; ``stream`` defaults to standard error."""
    self.label, self.num_steps, self.stream = label, num_steps, stream or sys.stderr
    self.live = self.stream.isatty()
    self.started = self.shown = None
    self.examples = 0

  def due(self, step: int) -> bool:
    """Whether a line would be shown now: asking first spares the caller from waiting for the device's numbers."""
    period = 0.2 if self.live else 10.0
    return step >= self.num_steps or self.shown is None or time.monotonic() - self.shown >= period

  def update(self, step: int, examples: int, loss: float) -> None:
    """Shows the state after ``step`` steps, the last ``examples`` of them new since the last call."""
    now = time.monotonic()
    if self.started is None:
      self.started, self.first_step = now, step
      self.examples = 0
    else:
      self.examples += examples
    rate, left = "", ""
    if now > self.started and step > self.first_step:
      per_step = (now - self.started) / (step - self.first_step)
      rate = f"  {self.examples / (now - self.started):,.0f} examples/s"
      left = f"  {_clock(per_step * (self.num_steps - step))} left"
    self.shown = now
    line = f"{self.label}  step {step:,}/{self.num_steps:,}{rate}  loss {loss:.4f}{left}"
    done = step >= self.num_steps
    self.stream.write(f"\r\x1b[K{line}" + ("\n" if done else "") if self.live else line + "\n")
    self.stream.flush()


def _clock(seconds: float) -> str:
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
