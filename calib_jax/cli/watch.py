"""Watches a log of answers for as long as it grows: calib-jax watch --log answers.jsonl --cut 0.9 --risk 0.05.

Each line of the log is a JSON object with ``confidence`` and ``correct``. Each call reads what was appended since the
last one, and says whether the promise is refuted: that at most --risk of the answers at or above --cut are wrong, or,
without both, that confidences are calibrated. One may call it as often as one likes.
"""

import argparse
import json
import pathlib
from typing import Any
import zlib

import numpy as np

from calib_jax._system.errors import UserError, short
from calib_jax._system.files import check_local, check_regular, parse_json, read_json, write_text
from calib_jax.cli import parsers, shared
from calib_jax.thresholds import monitoring

REFUTED = 3  # The exit code.
_TAIL = 4096  # Bytes before the place where the last call stopped, by which a log is known again.


def main(arguments: list[str] | None = None) -> int:
  """Runs the command line; returns 3 if the promise is refuted, 2 after a mistake of the user and else 0."""
  parser = parsers.parser("watch", __doc__, "--log FILE [--cut CUT --risk RISK] [options]", (
    "calib-jax watch --log answers.jsonl --cut 0.9 --risk 0.05", "calib-jax watch --log answers.jsonl"))
  parser.add_argument("--log", metavar="FILE", required=True, help="JSON lines with confidence and correct, which grow")
  parser.add_argument("--cut", type=float, help="answers at or above this confidence are accepted")
  parser.add_argument("--risk", type=float, help="at most this share of them may be wrong")
  parser.add_argument("--level", type=float, default=0.95, help="the probability that a promise that holds is never "
                      "refuted, however often one looks; by default 0.95")
  parser.add_argument("--state", metavar="FILE", help="where the evidence so far is kept; by default beside the log")
  options = parser.parse_args(arguments)
  return shared.answered(lambda: _watched(options), options.state)


def _watched(options: argparse.Namespace) -> int:
  if (options.cut is None) != (options.risk is None):
    raise UserError("--cut and --risk belong together: leave out both to watch whether confidences are calibrated.")
  state = pathlib.Path(options.state or f"{options.log}.watch.json")
  check_local("--state", state)
  check_regular(options.log)
  promise = {"cut": options.cut, "risk": options.risk, "level": options.level}
  before = _read(state, promise) if state.exists() else {
    "place": 0, "tail": 0, "lines": 0, "monitor": monitoring.monitor(risk=options.risk, level=options.level)._asdict()}
  monitor = monitoring.from_json(before["monitor"])
  text, tail = _appended(options.log, state, before)
  pairs = [_pair(options.log, before["lines"] + i, line) for i, line in enumerate(text.split(b"\n")[:-1], 1)
           if line.strip()]
  confidence, correct = ([pair[i] for pair in pairs] for i in (0, 1))
  if options.risk is None:
    monitor = monitoring.update_monitor(monitor, correct, confidence)
  else:
    cut = np.float32(options.cut)  # As evaluate does: of float32 0.95, the text is 0.949999988.
    monitor = monitoring.update_monitor(monitor, [not right for stated, right in pairs if np.float32(stated) >= cut])
  write_text(state, json.dumps({**promise, "place": before["place"] + len(text), "tail": tail,
                                "lines": before["lines"] + text.count(b"\n"), "monitor": monitor._asdict()}) + "\n")
  print(f"{len(pairs):,} new answers of {options.log}; the state is in {state}.")
  for sentence in sentences(monitor, options.cut):
    print(sentence)
  return REFUTED if monitor.refuted_at is not None else 0


def sentences(monitor: monitoring.Monitor, cut: float | None) -> list[str]:
  """Returns what the outcomes so far are, and what they say of the promise."""
  share = f" ({100 * monitor.happened / monitor.steps:.1f}%)" if monitor.steps else ""
  if monitor.risk is None:
    says = f", and their confidences say {100 * monitor.expected / monitor.steps:.1f}%" if monitor.steps else ""
    seen, promise = f"{monitor.happened:,.0f} of {monitor.steps:,} answers{share} were right{says}.", (
      "That confidences are calibrated")
  else:
    seen = f"{monitor.happened:,.0f} of {monitor.steps:,} answers at or above {cut!r}{share} were wrong."
    promise = f"The promise of at most {100 * monitor.risk:g}%"
  end = (f"was refuted after {monitor.refuted_at:,} of them ({100 * monitor.level:g}% sure)"
         if monitor.refuted_at is not None else "is not refuted")
  return [seen, f"{promise} {end}: the evidence against it is {monitor.evidence:.3g} now, and "
          f"{1 / (1 - monitor.level):.4g} refutes it, however often one looks."]


def _read(state: pathlib.Path, promise: dict[str, float | None]) -> dict[str, Any]:
  """Returns the content of a state, which must be of this promise."""
  content = read_json(state)
  try:
    monitoring.from_json(content["monitor"])
    numbers = [content[name] for name in ("place", "tail", "lines")]
    if not all(type(x) is int and x >= 0 for x in numbers):
      raise ValueError("its places are no whole numbers.")
    own = {name: content[name] for name in promise}
  except (KeyError, TypeError, ValueError) as error:
    raise UserError(f"{state} is no state of calib-jax watch: delete it to begin anew.") from error
  if own != promise:
    raise UserError(f"{state} is of another promise ({', '.join(f'{k} {v}' for k, v in own.items())}): name another "
                    "--state, or delete it to begin anew.")
  return content


def _appended(log: str, state: pathlib.Path, before: dict[str, Any]) -> tuple[bytes, int]:
  """Returns the whole lines after the place of the last call, and what tells the log by the bytes before their end."""
  with open(log, "rb") as file:
    file.seek(max(0, before["place"] - _TAIL))
    known, text = file.read(min(before["place"], _TAIL)), file.read()
  if len(known) < min(before["place"], _TAIL) or zlib.crc32(known) != before["tail"]:
    raise UserError(f"{log} is not the log of the last call, to which lines were appended: delete {state} to begin "
                    "anew.")
  text = text[:text.rfind(b"\n") + 1]  # The last line may still be being written.
  return text, zlib.crc32((known + text)[-_TAIL:])


def _pair(log: str, number: int, line: bytes) -> tuple[float, bool]:
  """Returns the confidence, and whether the answer was right, of a line."""
  try:
    record = parse_json(line.decode("utf-8-sig"), "a line")  # A file may begin with a byte order mark.
    confidence, correct = record["confidence"], record["correct"]
    if type(confidence) in (int, float) and 0 <= confidence <= 1 and correct in (0, 1):
      return float(confidence), bool(correct)
  except (UserError, UnicodeDecodeError, KeyError, TypeError):
    pass
  raise UserError(f"{log}, line {number:,}: it must be a JSON object with a confidence in [0, 1] and correct, true or "
                  f"false: got {short(line.decode('utf-8', 'replace'))}.")
