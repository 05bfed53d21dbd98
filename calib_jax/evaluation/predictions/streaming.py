"""Reads files of predictions some rows at a time."""

from collections.abc import Callable, Iterator
import contextlib
import math
import os
import pathlib

import numpy as np

from calib_jax._system.errors import FileError, short
from calib_jax._system.files import NpzFile, opened_npz
from calib_jax.evaluation.predictions import headers, json_files, parquet_files, text_files
from calib_jax.evaluation.predictions.pieces import Rows, Source, of_first
from calib_jax.evaluation.predictions.written_values import from_logarithms

NUMBERS = 2**20  # Numbers of the outputs that are read at a time.
ROWS = 2**14  # The most rows that are read at a time.
TABLES = {**dict.fromkeys(text_files.SEPARATORS, text_files), **dict.fromkeys((".jsonl", ".json"), json_files),
          **dict.fromkeys((".parquet", ".pq"), parquet_files)}
SUFFIXES = (*TABLES, ".npz")


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], say: Callable[[str], None], *, at_once: bool = False, records: bool = False
           ) -> Iterator[Source]:
  """Opens a file of predictions, with or without labels; ``say`` is called with a sentence for each choice.

  ``at_once`` gives all its rows at one time, and ``records`` says that these are records, with a confidence. What
  cannot be read is a FileError, whose text follows the path.
  """
  def at_a_time(num_columns: int) -> int:
    return 2**31 - 1 if at_once else max(1, min(ROWS, NUMBERS // max(num_columns, 1)))

  suffix = pathlib.Path(path).suffix.lower()
  if suffix == ".npz":
    with opened_npz(path) as archive:
      yield _npz(archive, say, at_a_time, records)
    return
  if suffix not in TABLES:
    raise FileError(f": files of this ending are not read some rows at a time, but {', '.join(SUFFIXES)} are.")
  are_logarithms = False

  def find(names: list[str], lists: list[str]) -> headers.Header:
    nonlocal are_logarithms
    header = _header(names, lists, say, records)
    are_logarithms = header.are_logarithms
    return header

  source = TABLES[suffix].stream(path, find, at_a_time, say)
  yield source._replace(rows=_as_floats(source.rows, are_logarithms, say))


def _header(names: list[str], lists: list[str], say: Callable[[str], None], records: bool) -> headers.Header:
  """Finds the columns of outputs; there need not be any labels, and weights come along as other columns do."""
  if records:
    confidence = _confidence(names, say)
    return headers.Header(headers.CONFIDENCES[0], [confidence], [],
                          are_logarithms=confidence.lower() in headers.LOG_CONFIDENCES)
  dummy = [] if any(name.lower() in headers.LABELS for name in names) else [headers.LABELS[0]]
  weights = [name for name in names if name.lower() in headers.WEIGHTS]
  header = headers.read_header([*names, *dummy], lists, weights, say)
  if header.kind in headers.CONFIDENCES:
    raise FileError(" holds records, and the calibrator was fitted to predictions of classes.")
  return header


def _confidence(names: list[str], say: Callable[[str], None]) -> str:
  """Finds the confidence of records, and says which it is."""
  confidences, corrects = headers.record_names(names)
  if corrects and not confidences and (lone := headers.lone_confidence(names)):
    confidences = [lone]
  if not confidences:
    raise FileError(" must have a confidence, because the calibrator was fitted to records; it holds "
                    f"{headers.listed(names)}.")
  headers.say_records(confidences, [], say)
  return confidences[0]


def _as_floats(rows: Iterator[Rows], are_logarithms: bool, say: Callable[[str], None]) -> Iterator[Rows]:
  """Yields rows whose outputs are no integers and no logarithms of confidences."""
  row = 0
  for outputs, others, places in rows:
    floats = outputs.astype(np.float64) if outputs.dtype.kind in "iu" else outputs
    if are_logarithms:
      floats = from_logarithms(floats.ravel(), "confidence", of_first(say, row))
    yield Rows(floats, others, places)
    row += len(outputs)


def _npz(archive: NpzFile, say: Callable[[str], None], at_a_time: Callable[[int], int], records: bool) -> Source:
  """Opens an archive, whose arrays are read at once: those that have a row for each output are its rows."""
  names = list(archive.members)
  kinds = [_confidence(names, say)] if records else headers.outputs_of_archive(names, say)
  if not kinds:
    raise FileError(f" must hold logits or probs; it holds {headers.listed(names)}.")
  read = archive.read(archive.headers(names))
  outputs = read.pop(kinds[0])
  if records and kinds[0].lower() in headers.LOG_CONFIDENCES:
    outputs = from_logarithms(outputs.ravel(), kinds[0], say)
  if outputs.ndim > 2:
    raise FileError(f": {kinds[0]} of shape {short(outputs.shape)} are not rows: reshape them to [N, K].")
  by_row = {name: x for name, x in read.items() if x.ndim and len(x) == len(outputs) and name not in headers.CLASSES}
  step = at_a_time(math.prod(outputs.shape[1:]))
  rows = (Rows(outputs[start:start + step], {name: x[start:start + step] for name, x in by_row.items()})
          for start in range(0, len(outputs), step))
  classes = next((list(map(str, read[name].ravel())) for name in headers.CLASSES if name in read), None)
  whole = {name: x for name, x in read.items() if name not in by_row}
  return Source(headers.CONFIDENCES[0] if records else kinds[0].lower(), classes, rows, whole)
