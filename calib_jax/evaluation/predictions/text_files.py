"""Reads text files: CSV and TSV of predictions with a header, whole or some rows at a time, and lines of JSON."""

from collections.abc import Callable, Collection, Iterable, Iterator
import contextlib
import csv
import itertools
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np

from calib_jax._system import capacity
from calib_jax._system.errors import FileError
from calib_jax._system.json_objects import parse_json
from calib_jax.evaluation.predictions import headers, r_columns, written_values
from calib_jax.evaluation.predictions.headers import NAMES, FileTable, Header, read_header
from calib_jax.evaluation.predictions.pieces import Rows, Source, of_first

SEPARATORS = {".csv": ",", ".tsv": "\t"}
LINE = 2**24  # Characters of a line.
CHECKED = 2**20  # Bytes of rows that are read before their size is checked again.
NOT_UTF8 = "is not UTF-8 text but perhaps UTF-16, as some spreadsheets save it, or Latin-1: save it as CSV UTF-8"
TEXT = 100  # Bytes that a text takes in memory beside its characters.


class CsvFile(NamedTuple):
  """A CSV or TSV file with a header (RFC 4180) that is open."""

  written: list[str]  # The names of its columns, as they stand there.
  names: list[str]  # And by ``r_columns``.
  rows: Iterator[list[str]]  # The fields of each row after the header; each may be taken once.
  separator: str


def open_csv(path: str | os.PathLike[str], say: Callable[[str], None]) -> CsvFile:
  """Opens a CSV or TSV file, and reads its header."""
  separator = SEPARATORS[pathlib.Path(path).suffix.lower()]
  lines = csv.reader(lines_of(path), delimiter=separator, strict=True)
  with as_csv():
    names = [name.strip() for name in next(lines, [])]
    if len(names) == 1 and (mark := next((mark for mark in ";\t|," if mark in names[0]), "")):
      raise FileError(f": its columns are separated by {mark!r}: separate them by commas, or by tabs in a .tsv, "
                      "and write numbers with points.")
    check_text(names)
    renamed = r_columns.renamed(names, lambda i: column(path, separator, i), say)
  return CsvFile(names, renamed, fields(lines, len(names)), separator)


def csv_numbers(file: CsvFile, places: list[int], kept: dict[int, list[str]], say: Callable[[str], None],
                most: int | None = None) -> np.ndarray:
  """Reads the next rows, ``most`` or all: the numbers at ``places``, float32 ``[n, places]``; ``kept`` gets its texts.

  ``say`` tells how percentages are read.
  """
  count = 0

  def lines():
    nonlocal count
    taken = checked = 0
    for row in itertools.islice(file.rows, most):
      count += 1
      for i, text in kept.items():
        text.append(row[i])
        taken += TEXT + len(row[i])
      taken += 4 * len(places)
      if taken - checked > CHECKED:
        capacity.check_read(f": {count:,} of its rows", checked := taken)
      yield file.separator.join([row[i] for i in places])

  rows = lines()
  first = next(rows, "")
  if "%" in first:
    columns = zip(*(row.split(file.separator) for row in itertools.chain([first], rows)), strict=True)
    outputs = np.stack([written_values.numbers(column, file.names[i], say if i == places[0] else _silent)
                        for i, column in zip(places, columns, strict=True)], axis=1).astype(np.float32)
  elif count:
    outputs = np.loadtxt(itertools.chain([first], rows), np.float32, delimiter=file.separator, comments=None, ndmin=2)
  else:
    outputs = np.empty((0, len(places)), np.float32)
  if outputs.shape != (count, len(places)):
    raise ValueError("a number is missing, or has a comma in place of a point")
  return outputs


def _silent(_: str) -> None:
  """What says nothing."""


@contextlib.contextmanager
def as_csv(row: Callable[[], int] | None = None) -> Iterator[None]:
  """Makes errors of the reader a FileError, which says after how many rows if ``row`` counts them."""
  try:
    yield
  except (ValueError, IndexError, csv.Error, OSError) as error:
    reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
    after = f"after {row():,} rows: " if row else ""
    raise FileError(f" cannot be read as CSV ({after}{reason}).") from error


def read_csv(path: str | os.PathLike[str], extra: Collection[str], say: Callable[[str], None], multilabel: bool
             ) -> FileTable:
  """Reads the columns of a CSV or TSV file that predictions may have. Columns of ``extra`` are text."""
  file = open_csv(path, say)
  headers.check_extra(extra, file.written)
  header = read_header(file.names, (), extra, say, multilabel)
  places = [file.names.index(name) for name in header.outputs]
  texts: dict[int, list[str]] = {i: [] for i, name in enumerate(file.names)
                                 if name in header.labels or name in extra or name in NAMES}
  with as_csv():
    outputs = csv_numbers(file, places, texts, say)
  read = {file.names[i]: stripped(text) for i, text in texts.items()}
  return FileTable(header, outputs, {name: read.pop(name) for name in header.labels}, read)


def stream(path: str | os.PathLike[str], find: Callable[[list[str], list[str]], Header],
           at_a_time: Callable[[int], int], say: Callable[[str], None]) -> Source:
  """Opens a CSV or TSV file, to be read ``at_a_time(K)`` rows at a time; ``find`` takes the names of its columns."""
  file = open_csv(path, say)
  header = find(file.names, [])
  places = [file.names.index(name) for name in header.outputs]

  def rows():
    row = 0
    with as_csv(lambda: row):
      while True:
        others = {i: [] for i in range(len(file.written)) if i not in places}
        outputs = csv_numbers(file, places, others, of_first(say, row), at_a_time(len(places)))
        if not len(outputs):
          return
        yield Rows(outputs, {file.written[i]: texts for i, texts in others.items()})
        row += len(outputs)

  return Source(header.kind, header.classes, rows())


def fields(lines: Iterable[str], num_fields: int) -> Iterator[list[str]]:
  """Yields the fields of each row of ``csv.reader`` after the header, which must be ``num_fields``."""
  is_empty = True
  while True:
    start = lines.line_num + 1
    try:
      row = next(lines, None)
    except csv.Error as error:
      raise ValueError(f"line {start:,}: {error}; is a quotation mark not closed?") from error
    if row is None:
      break
    if len(row) < 2 and not "".join(row).strip():  # A blank line.
      continue
    if len(row) != num_fields:
      raise ValueError(f"line {start:,} has {len(row)} fields and the header has {num_fields}")
    is_empty = False
    yield row
  if is_empty:
    raise ValueError("it has no rows")


def check_text(names: Collection[str]) -> None:
  """Raises a FileError for names of a file that is empty, or that has two bytes a character."""
  if any("\0" in name for name in names):
    raise FileError(f" {NOT_UTF8}.")
  if not any(names):
    raise FileError(" is empty: it must have a header with a column label and columns of scores, and rows.")


def column(path: str | os.PathLike[str], separator: str, place: int) -> set[str]:
  """Returns the different values of a column."""
  lines = csv.reader(lines_of(path), delimiter=separator, strict=True)
  width = len(next(lines))
  return {row[place].strip() for row in fields(lines, width)}


def lines_of(path: str | os.PathLike[str]) -> Iterator[str]:
  """Yields the lines of a text file; a line too long for memory is refused."""
  with open(path, encoding="utf-8-sig", newline="") as file:
    for number in itertools.count(1):
      try:
        line = file.readline(LINE)
      except UnicodeDecodeError:
        raise FileError(f" {NOT_UTF8}.") from None
      if len(line) == LINE:
        raise ValueError(f"line {number:,} is longer than {LINE:,} characters")
      if not line:
        return
      yield line


def stripped(text: list[str]) -> np.ndarray:
  """Returns texts without spaces around them."""
  values = {value: value.strip() for value in set(text)}
  capacity.check_read("", 4 * len(text) * max(map(len, values.values())))
  return np.array([values[value] for value in text])


@contextlib.contextmanager
def as_json() -> Iterator[None]:
  """Makes errors of the reader a FileError."""
  try:
    yield
  except (ValueError, OverflowError, OSError) as error:
    reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
    raise FileError(f" cannot be read as JSON ({reason}).") from error


def objects_of_lines(path: str | os.PathLike[str]) -> Iterator[tuple[str, Any]]:
  """Yields the objects of a file of JSON lines, each after its place."""
  with as_json():
    for number, line in enumerate(lines_of(path), 1):
      if line.strip():
        yield f": line {number:,}", parse_json(line, f": line {number:,}")
