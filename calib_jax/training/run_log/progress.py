"""The progress line shows the step of a run, its speed and the time left; validation scores are lines of their own."""

import collections
import sys
import time
from typing import TextIO

from calib_jax._system.errors import printable


class Progress:
  """Prints step, examples/s, loss and time left.

  On a terminal the line is updated in place; elsewhere a line is printed every ten seconds and at the end. Speed and
  time left are of the steps that were counted in the last minute, and are not shown before there are any. Steps of the
  next stage may take a hundredth of the time, so that the time left is that of the stage alone.
  """

  WINDOW = 60.0  # The seconds of that minute.

  def __init__(self, label: str, num_steps: int, stream: TextIO | None = None):
    """Prepares a line that starts with ``label``; ``stream`` defaults to standard error."""
    self.label, self.num_steps, self.stream = printable(label), num_steps, stream or sys.stderr
    self.last_step = num_steps  # Of the stage.
    self.live = self.stream.isatty()
    self.shown = self.said = None  # When the last line, and the last one of ``say``, was written.
    self.counted: collections.deque[tuple[float, int, int, float]] = collections.deque()

  def stage(self, last_step: int) -> None:
    """Begins a stage that ends with ``last_step``."""
    self.last_step = last_step
    self.counted.clear()

  def count(self, steps: int, examples: int, seconds: float) -> None:
    """Counts steps for the speed and the time left; one that does what happens once, such as to compile, is none."""
    now = time.monotonic()
    self.counted.append((now, steps, examples, seconds))
    while now - self.counted[0][0] > self.WINDOW:
      self.counted.popleft()

  def note(self, text: str) -> None:
    """Shows what takes time without a step, such as "compiling"."""
    self.stream.write(f"\r\x1b[K{self.label}  {text} …" if self.live else f"{self.label}  {text} …\n")
    self.stream.flush()

  def say(self, text: str, *, now: bool = True) -> None:
    """Writes a line that stays; one that need not be written ``now`` is left out within two seconds of the last."""
    if now or self.said is None or time.monotonic() - self.said >= 2:
      self.stream.write(f"\r\x1b[K{self.label}  {text}\n" if self.live else f"{self.label}  {text}\n")
      self.stream.flush()
      self.said = time.monotonic()

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
    steps, examples, seconds = (sum(column) for column in list(zip(*self.counted, strict=True))[1:] or [(), (), ()])
    if seconds > 0:
      rate = f"  {examples / seconds:,.0f} examples/s"
      left = f"  {_clock(seconds / steps * (self.last_step - step))} left"
      left += " of this stage" if self.last_step < self.num_steps else ""
    self.shown = time.monotonic()
    line = f"{self.label}  step {step:,}/{self.num_steps:,}{rate}  loss {loss:.4f}{left}"
    done = step >= self.num_steps
    self.stream.write(f"\r\x1b[K{line}" + ("\n" if done else "") if self.live else line + "\n")
    self.stream.flush()


def _clock(seconds: float) -> str:
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
