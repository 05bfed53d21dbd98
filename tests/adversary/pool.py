"""Hands the cases out to worker processes, and replaces a worker that hangs or crashes."""

import collections
from collections.abc import Iterator
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import sys
import time
from typing import Any, NamedTuple

from tests.adversary import archives, configs, images, judge, kills, names, predictions, records, weights
from tests.adversary.judge import Outcome

KILLS = "kills"
BLOCK = 25  # Cases that a worker takes at a time.
SILENCE = 20  # Seconds beyond the judge's own limit after which a worker that says nothing is ended.
GIVEN_UP = 5  # Hangs after which a kind is given up.
PATIENCE = 600  # Seconds that a killed run and those it is compared with may take.


# Every kind of attack on files, configs and names.
KINDS = {**configs.KINDS, **predictions.KINDS, **images.KINDS, **weights.KINDS, **records.KINDS, **archives.KINDS,
         **names.KINDS}


class Worker:
  """A process that judges cases, and which of them it is at."""

  def __init__(self, seed: int, folder: pathlib.Path):
    """Starts a process that works in a subfolder of ``folder``."""
    self.pipe, other = multiprocessing.Pipe()
    self.process = multiprocessing.get_context("spawn").Process(target=work, args=(other, seed, str(folder)))
    self.process.start()
    other.close()
    self.name, self.cases, self.heard, self.ready = "", [], time.monotonic(), set()

  def give(self, name: str, cases: list[int]) -> None:
    """Gives the worker cases of one kind."""
    self.name, self.cases, self.heard = name, list(cases), time.monotonic()
    self.pipe.send((name, cases))

  def is_lost(self) -> bool:
    """Returns whether the process ended, or has said nothing for longer than a case may take."""
    patience = judge.SLOWEST + SILENCE if self.name in self.ready else PATIENCE
    return bool(self.cases) and (not self.process.is_alive() or time.monotonic() - self.heard > patience)

  def end(self) -> None:
    """Ends the process."""
    self.process.kill()
    self.process.join()


def work(pipe, seed: int, folder: str) -> None:
  """Judges the cases that come through ``pipe``, until it closes."""
  scratch = pathlib.Path(folder)
  own = scratch / f"worker{os.getpid()}"
  (own / "site").mkdir(parents=True)
  (own / "site" / f"{judge.CANARY}.py").write_text("def touch(*arguments, **options):\n  return lambda *a, **k: None\n")
  sys.path.append(str(own / "site"))
  judge.watch()
  prepared: dict[str, Any] = {}
  while True:
    try:
      name, cases = pipe.recv()
    except EOFError:
      return
    for number in cases:
      if name == KILLS:
        pipe.send(kills.kill(number, seed, scratch))
        continue
      if name not in prepared:
        sound = own / f"sound{len(prepared)}"
        sound.mkdir()
        prepared[name] = KINDS[name].prepare(sound)
        pipe.send(name)
      pipe.send(judge.judged(name, KINDS[name], prepared[name], number, seed, own / "case"))


def blocks(counts: dict[str, int]) -> Iterator[tuple[str, list[int]]]:
  """Yields the cases of all kinds in blocks, so that all kinds advance together; killed runs come one by one."""
  places = dict.fromkeys(counts, 0)
  total = max([count for name, count in counts.items() if name != KILLS], default=0)
  while any(places[name] < counts[name] for name in counts):
    part = max([places[name] / counts[name] for name in counts if name != KILLS], default=1) if total else 1
    for name in counts:
      size = 1 if name == KILLS else BLOCK
      first = places[name]
      # Killed runs are spread over the first two thirds, because each takes so long.
      if first < counts[name] and (name != KILLS or first <= counts[name] * part * 1.5):
        places[name] = min(first + size, counts[name])
        yield name, list(range(first, places[name]))


class Tally(NamedTuple):
  """What became of the cases of a kind."""

  outcomes: list
  faults: collections.Counter


def attack(todo: Iterator[tuple[str, list[int]]], counts: dict[str, int], seed: int, minutes: float,
           folder: pathlib.Path, *, workers: int = 2) -> dict[str, Tally]:
  """Judges cases in worker processes until all are judged or the time is over.

  Args:
    todo: the cases, in blocks, as ``blocks`` yields them.
    counts: the number of cases by kind.
    seed: the seed of all cases.
    minutes: after so many no new cases begin.
    folder: a folder for everything that the attack writes.
    workers: the number of processes.
  Returns: what became of the cases, by kind.
  """
  tallies = {name: Tally([], collections.Counter()) for name in counts}
  running, began, said = [Worker(seed, folder) for _ in range(workers)], time.monotonic(), time.monotonic()

  def note(worker, outcome):
    tally = tallies[worker.name]
    tally.outcomes.append(outcome)
    worker.cases.remove(outcome.number)
    worker.heard = time.monotonic()
    if outcome.fault:
      tally.faults[outcome.fault] += 1
      if tally.faults[outcome.fault] <= 5:
        line = f"{outcome.fault}: --seed={seed} --only={worker.name!r}:{outcome.number}: {outcome.detail}"
        print(line.replace("\n", " "), flush=True)

  def next_block():
    if time.monotonic() - began > 60 * minutes:
      return None
    return next(((name, cases) for name, cases in todo if tallies[name].faults["hang"] < GIVEN_UP), None)

  try:
    while True:
      for place, worker in enumerate(running):
        if worker.is_lost():
          number, alive = worker.cases[0], worker.process.is_alive()
          detail = "the worker says nothing" if alive else f"the process ended with {worker.process.exitcode}"
          fault, seconds = "hang" if alive else "traceback", time.monotonic() - worker.heard
          note(worker, Outcome(number, False, fault, detail, seconds))
          name, rest = worker.name, worker.cases
          worker.end()
          running[place] = worker = Worker(seed, folder)
          if rest and tallies[name].faults["hang"] < GIVEN_UP:
            worker.give(name, rest)
        if not worker.cases and (block := next_block()):
          worker.give(*block)
      busy = [worker for worker in running if worker.cases]
      if not busy:
        break
      for pipe in multiprocessing.connection.wait([worker.pipe for worker in busy], timeout=1):
        worker = next(worker for worker in busy if worker.pipe is pipe)
        try:
          while worker.cases and pipe.poll():
            found = pipe.recv()
            if isinstance(found, Outcome):
              note(worker, found)
            else:  # A kind is prepared.
              worker.ready.add(found)
              worker.heard = time.monotonic()
        except (EOFError, ConnectionResetError):
          worker.process.join(5)
      if time.monotonic() - said > 30:
        said = time.monotonic()
        done, faults = (sum(numbers) for numbers in zip(*(
          (len(tally.outcomes), tally.faults.total()) for tally in tallies.values()), strict=True))
        print(f"{done:,} of {sum(counts.values()):,} cases, {faults:,} faults, "
              f"{max(60 * minutes - said + began, 0):.0f} s left", file=sys.stderr, flush=True)
  finally:
    for worker in running:
      worker.end()
  return tallies
