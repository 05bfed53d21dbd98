"""Attacks the project: python -m tests.adversary --minutes=10. The exit code is 1 if anything gave way."""

import argparse
import os
import pathlib
import shutil
import sys
import tempfile
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "")

from tests.adversary.judge import FAULTS
from tests.adversary.pool import KILLS, KINDS, Tally, attack, blocks


def table(tallies: dict[str, Tally]) -> str:
  """Returns the Markdown table of what became of the cases."""
  head = ["kind", "cases", "accepted", "refused", "executed", "silent", "tracebacks", "hangs", "too large", "slowest"]
  rows = [head, ["---", *["---:"] * (len(head) - 1)]]
  for name, (outcomes, faults) in tallies.items():
    accepted = sum(outcome.accepted for outcome in outcomes)
    slowest = max((outcome.seconds for outcome in outcomes), default=0)
    rows.append([name, f"{len(outcomes):,}", f"{accepted:,}", f"{len(outcomes) - accepted:,}",
                 *(f"{faults[fault]:,}" for fault in FAULTS), f"{slowest:.1f} s"])
  return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(arguments: list[str] | None = None) -> int:
  """Runs the command line; returns 1 if anything was executed, silent, a traceback, a hang or too large, and else 0."""
  parser = argparse.ArgumentParser(prog="python -m tests.adversary", description=__doc__.splitlines()[0])
  parser.add_argument("--minutes", type=float, default=10, help="after so many minutes no new cases begin")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--cases", type=int, help="the number of cases of each kind, in place of its own")
  parser.add_argument("--kills", type=int, default=14, help="the number of runs that are killed")
  parser.add_argument("--only", action="append", metavar="KIND[:NUMBER]", help="one kind, or one case of it")
  options = parser.parse_args(arguments)
  counts = {KILLS: options.kills} | {name: options.cases or kind.cases for name, kind in KINDS.items()}
  only = [text.rpartition(":") if text not in counts else (text, "", "") for text in options.only or ()]
  if wrong := [text for (text, _, _) in only if text not in counts]:
    parser.error(f"--only: the kinds are {', '.join(counts)}: got {wrong[0]!r}.")
  shared = pathlib.Path("/dev/shm")
  folder = pathlib.Path(tempfile.mkdtemp(prefix="adversary", dir=shared if os.access(shared, os.W_OK) else None))
  began = time.monotonic()
  try:
    if only:
      counts = {name: counts[name] for name, _, _ in only}
      todo = (block for name, _, number in only for block in (
        [(name, [int(number)])] if number else blocks({name: counts[name]})))
      tallies = attack(todo, counts, options.seed, options.minutes, folder, workers=1 if len(counts) == 1 else 2)
    else:
      tallies = attack(blocks(counts), counts, options.seed, options.minutes, folder)
  finally:
    shutil.rmtree(folder, ignore_errors=True)
  faults = sum(tally.faults.total() for tally in tallies.values())
  print(f"\n{table(tallies)}\n\n{sum(len(tally.outcomes) for tally in tallies.values()):,} cases in "
        f"{time.monotonic() - began:.0f} s, seed {options.seed}: {faults:,} faults.")
  return 1 if faults else 0


if __name__ == "__main__":
  sys.exit(main())
