"""SIGTERM and Ctrl-C: the step is finished and saved before a run ends, in every process after the same step."""

from collections.abc import Callable, Iterator
import contextlib
import os
import signal
import threading

import jax
from jax.experimental import multihost_utils


class Stopped(Exception):
  """A run that was asked to stop: ``signal`` is the one that asked."""

  def __init__(self, message: str, number: int):
    """``message`` says where it stopped and how to go on."""
    super().__init__(message)
    self.signal = number


@contextlib.contextmanager
def requests() -> Iterator[Callable[[int], int]]:
  """Within it, a function of the step: the signal to stop after that step, or 0. A second signal ends at once."""
  received = []
  if threading.current_thread() is not threading.main_thread():
    yield lambda step: 0  # Python gives signals to the main thread alone.
    return
  # Several processes must stop after the same step: JAX agrees on it when SIGTERM comes to any of them.
  shared = jax.process_count() > 1

  def receive(number, frame):
    received.append(number)
    signal.signal(number, before[number])
    if shared:
      os.kill(os.getpid(), signal.SIGTERM)

  numbers = (signal.SIGINT,) if shared else (signal.SIGINT, signal.SIGTERM)
  before = {number: signal.signal(number, receive) for number in numbers}

  def requested(step):
    if shared:
      return signal.SIGTERM if multihost_utils.reached_preemption_sync_point(step) else 0
    return received[0] if received else 0

  try:
    yield requested
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
