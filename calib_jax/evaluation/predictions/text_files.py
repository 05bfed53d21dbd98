"""Reads the columns of text files of predictions: CSV and TSV with a header, and JSON lines."""

from collections.abc import Callable, Collection, Iterable, Iterator
import contextlib
import csv
import itertools
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np

from calib_jax._system import capacity
from calib_jax._system.errors import FileError, short
from calib_jax._system.json_objects import parse_json
from calib_jax.evaluation.predictions import headers, logs, r_columns, written_values
from calib_jax.evaluation.predictions.headers import (
  NAMES,
  OPTIONS,
  FileTable,
  by_name,
  read_header,
  stacked,
  with_options,
)
from calib_jax.evaluation.predictions.masks import padded

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
  read = {file.names[i]: _text(text) for i, text in texts.items()}
  return FileTable(header, outputs, {name: read.pop(name) for name in header.labels}, read)


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


def _text(text: list[str]) -> np.ndarray:
  """Returns texts without spaces around them."""
  values = {value: value.strip() for value in set(text)}
  capacity.check_read("", 4 * len(text) * max(map(len, values.values())))
  return np.array([values[value] for value in text])


def read_json_lines(path: str | os.PathLike[str], extra: Collection[str], say: Callable[[str], None], multilabel: bool
                ) -> FileTable:
  """Reads the keys of a file of JSON lines, an object a row. A key with lists, or numbers by class, is ``[N, K]``."""
  try:
    return read_objects(objects_of_lines(path), extra, say, multilabel)
  except (ValueError, OverflowError, OSError) as error:
    reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
    raise FileError(f" cannot be read as JSON lines ({reason}).") from error


def objects_of_lines(path: str | os.PathLike[str]) -> Iterator[tuple[str, Any]]:
  """Yields the objects of a file of JSON lines, each after its place."""
  for number, line in enumerate(lines_of(path), 1):
    if line.strip():
      yield f": line {number:,}", parse_json(line, f": line {number:,}")


def read_objects(objects: Iterable[tuple[str, Any]], extra: Collection[str], say: Callable[[str], None],  # noqa: C901
                 multilabel: bool) -> FileTable:
  """Reads the keys of objects, each after its place in the file; a log's are its rows (``logs``)."""
  header, values, options, taken, count = None, {}, None, 0, 0
  is_log, objects = logs.rows(objects, say)
  if is_log:
    extra = list(dict.fromkeys([*extra, logs.ID]))
  for place, row in objects:
    count += 1
    if not isinstance(row, dict):
      raise FileError(f"{place} must hold an object.")
    if header is None:
      header = read_header(list(row), [name for name, value in row.items() if isinstance(value, list | dict)], extra,
                           say, multilabel)
      headers.check_extra(extra, row)
      options = next((name for name in OPTIONS if isinstance(row.get(name), list) and name not in extra and (
        isinstance(row.get(header.outputs[0]), list)) and not multilabel), None)
      values = {name: [] for name in dict.fromkeys((*header.outputs, *header.labels, *extra, *NAMES,
                                                    *([options] if options else []))) if name in row}
    for name, column in values.items():
      value = row.get(name)
      may_be_missing = multilabel and name in header.labels  # A label that is not known.
      if value is None and not may_be_missing:
        raise FileError(f"{place} has no {short(name)}: leave this row out.")
      if may_be_missing:
        value = np.nan if value is None else [np.nan if x is None else x for x in value] if isinstance(
          value, list) else value
      value = np.array(value) if isinstance(value, list) and name != options else value
      taken += TEXT + (2 * value.nbytes if isinstance(value, np.ndarray) else 4 * len(str(value)))
      column.append(value)
    capacity.check_read(f": {count:,} of its rows", taken)
  if header is None:
    raise FileError(" cannot be read as objects of JSON, one a row (it has no rows).")
  may_differ = () if multilabel or len(header.outputs) > 1 else header.outputs
  rows_of_options = values.pop(options, None)
  for name in header.outputs:
    if all(isinstance(value, str) for value in values[name]):
      values[name] = written_values.numbers(values[name], name, say).tolist()
    elif name in may_differ and all(isinstance(value, dict) for value in values[name]) and (
        max(map(len, values[name])) > 1):
      values[name], classes = by_name(values[name])
      header = header._replace(classes=classes)
  read = {name: column if isinstance(column, np.ndarray) else _json_values(
    column, name, say if name in may_differ else None) for name, column in values.items()}
  if is_log and len(set(read[logs.ID])) < count and "" not in read:
    read[""] = read[logs.ID]  # The groups, unless others are named.
  outputs = [read.pop(name) for name in header.outputs]
  table = FileTable(header, stacked(outputs, header), {name: read.pop(name) for name in header.labels}, read)
  if rows_of_options is None or not all(isinstance(x, list) for x in rows_of_options):
    return table
  return with_options(table, rows_of_options, say)


def _json_values(values: list, name: str, say: Callable[[str], None] | None) -> np.ndarray:
  """Returns the values of a key in all rows as an array; where ``say`` is given, lists may be of several lengths."""
  if say and all(isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "biuf" for value in values):
    lengths = np.array([len(value) for value in values])
    if lengths.min() < lengths.max():
      return padded(np.concatenate(values), lengths, name, say)
  if all(isinstance(value, str) for value in values):
    return _text(values)
  if not any(isinstance(value, str) for value in values):
    try:
      array = np.array(values)
    except (ValueError, OverflowError):
      raise FileError(f": the lists of {short(name)} must all have one length.") from None
    if array.dtype.kind in "biuf":
      return array
  raise FileError(f": {short(name)} must hold numbers, or texts, in all rows.")
