"""The progress line shows the step of a run, its speed and the time left."""

import sys
import time
from typing import TextIO

from calib_jax._system.errors import printable


class Progress:
  """Prints step, examples/s, loss and time left.

  On a terminal the line is updated in place; elsewhere a line is printed every ten seconds and at the end. Speed and
  time left are of the steps that were counted, and are not shown before there are any.
  """

  def __init__(self, label: str, num_steps: int, stream: TextIO | None = None):
    """Prepares a line that starts with ``label``; ``stream`` defaults to standard error."""
    self.label, self.num_steps, self.stream = printable(label), num_steps, stream or sys.stderr
    self.live = self.stream.isatty()
    self.shown = None
    self.steps = self.examples = 0
    self.seconds = 0.0

  def count(self, steps: int, examples: int, seconds: float) -> None:
    """Counts steps for the speed and the time left; one that does what happens once, such as to compile, is none."""
    self.steps, self.examples, self.seconds = self.steps + steps, self.examples + examples, self.seconds + seconds

  def note(self, text: str) -> None:
    """Shows what takes time without a step, such as "compiling"."""
    self.stream.write(f"\r\x1b[K{self.label}  {text} …" if self.live else f"{self.label}  {text} …\n")
    self.stream.flush()

  def clear(self) -> None:
    """Clears the note of a terminal."""
    if self.live:
      self.stream.write("\r\x1b[K")
      self.stream.flush()

  def due(self, step: int) -> bool:
    """Returns whether a line is due, so that the caller only then waits for the device's numbers."""
    period = 0.2 if self.live else 10.0
    return step >= self.num_steps or self.shown is None or time.monotonic() - self.shown >= period

  def update(self, step: int, loss: float) -> None:
    """Shows the state after ``step`` steps."""
    rate, left = "", ""
    if self.seconds > 0:
      rate = f"  {self.examples / self.seconds:,.0f} examples/s"
      left = f"  {_clock(self.seconds / self.steps * (self.num_steps - step))} left"
    self.shown = time.monotonic()
    line = f"{self.label}  step {step:,}/{self.num_steps:,}{rate}  loss {loss:.4f}{left}"
    done = step >= self.num_steps
    self.stream.write(f"\r\x1b[K{line}" + ("\n" if done else "") if self.live else line + "\n")
    self.stream.flush()


def _clock(seconds: float) -> str:
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
