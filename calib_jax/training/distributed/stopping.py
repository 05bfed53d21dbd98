"""SIGTERM, SIGHUP and Ctrl-C stop a run after the current step, the same in all processes, so that it can be saved."""

from collections.abc import Callable, Iterator
import contextlib
import itertools
import os
import signal
import threading

import jax
from jax.experimental import multihost_utils


class Stopped(Exception):
  """Raised when a signal stopped the run; ``signal`` is its number."""

  def __init__(self, message: str, number: int):
    """Takes a ``message`` that says where the run stopped and how to continue it, and the signal's ``number``."""
    super().__init__(message)
    self.signal = number


@contextlib.contextmanager
def requests() -> Iterator[Callable[[], int]]:
  """Catches SIGINT, SIGTERM and SIGHUP in a ``with`` block.

  It gives a function that returns the signal to stop now, or 0, and is called after each call of steps: by several
  processes as often in each, because JAX chooses by their number the one after which all stop. A second signal ends the
  process at once. A SIGTERM after the last step is passed on to the handler of a program that has one, because it may
  have more to do than this run.
  """
  received, calls = [], itertools.count(1)
  if threading.current_thread() is not threading.main_thread():
    yield lambda: 0  # Python handles signals only in the main thread.
    return
  # JAX tells all processes where to stop when any of them gets SIGTERM.
  shared = jax.process_count() > 1

  def receive(number, frame):
    received.append(number)
    signal.signal(number, before[number])
    if shared:
      os.kill(os.getpid(), signal.SIGTERM)

  numbers = [signal.SIGINT] if shared else [signal.SIGINT, signal.SIGTERM]
  hang_up = getattr(signal, "SIGHUP", None)  # Windows has none; ``nohup`` ignores it, and so does a run under it.
  if hang_up and signal.getsignal(hang_up) != signal.SIG_IGN:
    numbers.append(hang_up)
  before = {number: signal.signal(number, receive) for number in numbers}

  def requested():
    if shared:
      return signal.SIGTERM if multihost_utils.reached_preemption_sync_point(next(calls)) else 0
    return received[0] if received else 0

  try:
    yield requested
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
  if signal.SIGTERM in received and callable(before.get(signal.SIGTERM)):
    signal.raise_signal(signal.SIGTERM)
