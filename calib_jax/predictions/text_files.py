"""Reads the columns of text files of predictions: CSV and TSV with a header, and JSON lines."""

from collections.abc import Callable, Collection, Iterable, Iterator
import csv
import itertools
import os
import pathlib

import numpy as np

from calib_jax._system import capacity
from calib_jax._system.errors import FileError, short
from calib_jax._system.json_objects import parse_json
from calib_jax.predictions.headers import NAMES, Table, read_header, stacked
from calib_jax.predictions.masks import padded

SEPARATORS = {".csv": ",", ".tsv": "\t"}
LINE = 2**24  # Characters of a line.
CHECKED = 2**20  # Bytes of rows that are read before their size is checked again.
TEXT = 100  # Bytes that a text takes in memory beside its characters.


def read_csv(path: str | os.PathLike[str], extra: Collection[str], say: Callable[[str], None], multilabel: bool
             ) -> Table:
  """Reads the columns of a CSV or TSV file with a header (RFC 4180). Those of ``extra`` are text."""
  separator = SEPARATORS[pathlib.Path(path).suffix.lower()]
  lines = csv.reader(lines_of(path), delimiter=separator, strict=True)
  try:
    names = [name.strip() for name in next(lines, [])]
    if len(names) == 1 and (mark := next((mark for mark in ";\t|," if mark in names[0]), "")):
      raise FileError(f": its columns are separated by {mark!r}: separate them by commas, or by tabs in a .tsv, "
                      "and write numbers with points.")
    header = read_header(names, (), extra, say, multilabel)
    numbers = [names.index(name) for name in header.outputs]
    texts: dict[int, list[str]] = {i: [] for i, name in enumerate(names)
                                   if name in header.labels or name in extra or name in NAMES}

    def numbers_of_rows():
      taken = checked = 0
      for count, row in enumerate(fields(lines, len(names)), 1):
        for i, text in texts.items():
          text.append(row[i])
          taken += TEXT + len(row[i])
        taken += 4 * len(numbers)
        if taken - checked > CHECKED:
          capacity.check_read(f": {count:,} of its rows", checked := taken)
        yield separator.join([row[i] for i in numbers])

    outputs = np.loadtxt(numbers_of_rows(), dtype=np.float32, delimiter=separator, comments=None, ndmin=2)
    if outputs.shape != (len(next(iter(texts.values()))), len(numbers)):
      raise ValueError("a number is missing, or has a comma in place of a point")
  except (ValueError, IndexError, csv.Error, OSError) as error:
    reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
    raise FileError(f" cannot be read as CSV ({reason}).") from error
  read = {names[i]: _text(text) for i, text in texts.items()}
  return Table(header, outputs, {name: read.pop(name) for name in header.labels}, read)


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


def lines_of(path: str | os.PathLike[str]) -> Iterator[str]:
  """Yields the lines of a text file, none of which may be too long for memory."""
  with open(path, encoding="utf-8-sig", newline="") as file:
    for number in itertools.count(1):
      line = file.readline(LINE)
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
                ) -> Table:
  """Reads the keys of a file of JSON lines, an object a row. A key with lists becomes ``[N, K]``."""
  header, values, taken, count = None, {}, 0, 0
  try:
    for number, line in enumerate(lines_of(path), 1):
      if not line.strip():
        continue
      row, count = parse_json(line, f": line {number:,}"), count + 1
      if header is None:
        header = read_header(list(row), [name for name, value in row.items() if isinstance(value, list)], extra, say,
                               multilabel)
        values = {name: [] for name in (*header.outputs, *header.labels, *extra, *NAMES) if name in row}
      for name, column in values.items():
        value = row.get(name)
        if value is None:
          raise FileError(f": line {number:,} has no {short(name)}: leave this row out.")
        value = np.array(value) if isinstance(value, list) else value
        taken += TEXT + (2 * value.nbytes if isinstance(value, np.ndarray) else 4 * len(str(value)))
        column.append(value)
      capacity.check_read(f": {count:,} of its rows", taken)
  except (ValueError, OverflowError, OSError) as error:
    reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
    raise FileError(f" cannot be read as JSON lines ({reason}).") from error
  if header is None:
    raise FileError(" cannot be read as JSON lines (it has no rows).")
  may_differ = () if multilabel or len(header.outputs) > 1 else header.outputs
  read = {name: _json_values(column, name, say if name in may_differ else None) for name, column in values.items()}
  outputs = [read.pop(name) for name in header.outputs]
  return Table(header, stacked(outputs, header), {name: read.pop(name) for name in header.labels}, read)


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
