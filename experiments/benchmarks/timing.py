"""How long functions take, alone and beside each other."""

from collections.abc import Callable
import statistics
import time


def seconds(function: Callable[[], object], repeats: int = 1) -> float:
  """Returns the duration of a call, the mean of ``repeats``."""
  start = time.perf_counter()
  for _ in range(repeats):
    function()
  return (time.perf_counter() - start) / repeats


def pairs(function: Callable[[], object], floor: Callable[[], object], budget: float) -> tuple[float, float]:
  """Returns the median ratio to ``floor``, and the median seconds, of calls in turn for ``budget`` seconds or so.

  Changes of the machine's speed affect both. Of every two pairs one begins with the floor.
  """
  start, ratios, times = time.perf_counter(), [], []
  while len(ratios) < 5 or (len(ratios) < 101 and time.perf_counter() - start < budget):
    first, second = (floor, function) if len(ratios) % 2 else (function, floor)
    taken = {first: seconds(first)}
    taken[second] = seconds(second)
    ratios.append(taken[function] / taken[floor])
    times.append(taken[function])
  return statistics.median(ratios), statistics.median(times)
