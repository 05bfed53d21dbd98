"""How long functions take, alone and beside each other."""

from collections.abc import Callable
import resource
import statistics
import time
from typing import NamedTuple

MOST = 101  # Calls of a comparison.
LONG = 60.0  # Seconds from which on a call is not repeated.


class Taken(NamedTuple):
  """The seconds of a call, and those of all processors (user and system, of all threads and ended processes)."""

  seconds: float
  processor: float


def _processor() -> float:
  own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
  return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def taken(function: Callable[[], object]) -> Taken:
  """Returns how long a call takes."""
  started, before = time.perf_counter(), _processor()
  function()
  return Taken(time.perf_counter() - started, _processor() - before)


def compare(function: Callable[[], object], floor: Callable[[], object] | None = None, budget: float = 0.0,
            fewest: int = 5) -> dict[str, float]:
  """Returns the median seconds of calls for ``budget`` seconds or so and, with a floor, the median ratios to it.

  Both are called in turn, so that the machine's speed affects both, at least ``fewest`` times or until a call takes a
  minute.
  """
  started, calls, floors = time.perf_counter(), [], []
  while len(calls) < fewest or (len(calls) < MOST and time.perf_counter() - started < budget):
    if floor and len(calls) % 2 == 0:
      floors.append(taken(floor))
    calls.append(taken(function))
    if floor and len(floors) < len(calls):
      floors.append(taken(floor))
    if calls[0].seconds > LONG:
      break
  medians = {"seconds": statistics.median(call.seconds for call in calls),
             "processor s": statistics.median(call.processor for call in calls)}
  if floor:
    pairs = list(zip(calls, floors, strict=True))
    medians["to floor"] = statistics.median(a.seconds / b.seconds for a, b in pairs)
    medians["by processor"] = statistics.median(a.processor / max(b.processor, 1e-9) for a, b in pairs)
  return medians
