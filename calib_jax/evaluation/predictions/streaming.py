"""Reads files of predictions some rows at a time."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
import contextlib
import itertools
import math
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np

from calib_jax._system.errors import FileError, short
from calib_jax._system.files import NpzFile, opened_npz
from calib_jax._system.json_objects import parse_json
from calib_jax.evaluation.predictions import headers
from calib_jax.evaluation.predictions.text_files import SEPARATORS, as_csv, csv_numbers, lines_of, open_csv
from calib_jax.evaluation.predictions.written_values import from_logarithms, numbers

NUMBERS = 2**20  # Numbers of the outputs that are read at a time.
ROWS = 2**14  # The most rows that are read at a time.
SUFFIXES = (*SEPARATORS, ".jsonl", ".parquet", ".pq", ".npz")


class Rows(NamedTuple):
  """Some rows of a file: its outputs ``[n, K]`` or ``[n]``, and by name the ``n`` values of what else it holds."""

  outputs: np.ndarray
  others: Mapping[str, list[Any] | np.ndarray]


class Source(NamedTuple):
  """A file of predictions that is open.

  Attributes:
    kind: what its outputs are called, one of ``headers.OUTPUTS``, or of ``headers.CONFIDENCES`` for records.
    classes: the names of the classes, or of the positive one of a single column; None if it does not name them.
    rows: its rows, in order, some at a time.
    whole: arrays that are not by row, by name, such as ``classes``; only an ``.npz`` has them.
    ragged: whether its lists have several lengths. Shorter ones are padded with -inf, options that a row does not have.
  """

  kind: str
  classes: list[str] | None
  rows: Iterator[Rows]
  whole: Mapping[str, np.ndarray] = {}
  ragged: bool = False


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], say: Callable[[str], None], *, at_once: bool = False, records: bool = False
           ) -> Iterator[Source]:
  """Opens a file of predictions, with or without labels; ``say`` is called with a sentence for each choice.

  ``at_once`` gives all its rows at one time, and ``records`` says that these are records, with a confidence. What
  cannot be read is a FileError, whose text follows the path.
  """
  most = 2**31 - 1 if at_once else 0
  suffix = pathlib.Path(path).suffix.lower()
  if suffix not in SUFFIXES:
    raise FileError(f": files of this ending are not read some rows at a time, but {', '.join(SUFFIXES)} are.")
  if suffix == ".npz":
    with opened_npz(path) as archive:
      yield _npz(archive, say, most, records)
  else:
    yield {".jsonl": _json_lines, ".parquet": _parquet, ".pq": _parquet}.get(suffix, _csv)(path, say, most, records)


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


def _at_a_time(num_columns: int) -> int:
  return max(1, min(ROWS, NUMBERS // max(num_columns, 1)))


def _csv(path: str | os.PathLike[str], say: Callable[[str], None], most: int, records: bool) -> Source:
  file = open_csv(path, say)
  header = _header(file.names, [], say, records)
  places = [file.names.index(name) for name in header.outputs]
  most = most or _at_a_time(len(places))

  def rows():
    row = 0
    with as_csv(lambda: row):
      while True:
        others = {i: [] for i in range(len(file.written)) if i not in places}
        if not len(outputs := csv_numbers(file, places, others, _first(say, row), most)):
          return
        yield Rows(_probabilities(header, outputs, _first(say, row)),
                   {file.written[i]: texts for i, texts in others.items()})
        row += len(outputs)

  return Source(header.kind, header.classes, rows())


def _first(say: Callable[[str], None], row: int) -> Callable[[str], None]:
  """What says how rows are read, of the first ones alone."""
  return (lambda note: None) if row else say


def _probabilities(header: headers.Header, outputs: np.ndarray, say: Callable[[str], None]) -> np.ndarray:
  return from_logarithms(outputs.ravel(), header.outputs[0], say) if header.are_logarithms else outputs


def _json_lines(path: str | os.PathLike[str], say: Callable[[str], None], most: int, records: bool) -> Source:
  lines = ((number, line) for number, line in enumerate(lines_of(path), 1) if line.strip())
  first = next(lines, None)
  if first is None:
    raise FileError(" cannot be read as JSON lines (it has no rows).")
  row = parse_json(first[1], f": line {first[0]:,}")
  header = _header(list(row), [name for name, value in row.items() if isinstance(value, list | dict)], say, records)
  name, fewest, size = header.outputs[0], len(header.outputs), len(header.outputs)
  if by_name := isinstance(row[name], dict):  # A first reading finds all names.
    values = (parse_json(line, f": line {number:,}").get(name) for number, line in enumerate(lines_of(path), 1)
              if line.strip())
    classes = list(dict.fromkeys(key for x in values if isinstance(x, dict) for key in x))
    header, size = header._replace(classes=classes), len(classes)
  if is_list := isinstance(row[name], list):  # A first reading finds the longest list.
    lengths = {len(x) for number, line in enumerate(lines_of(path), 1) if line.strip()
               if isinstance(x := parse_json(line, f": line {number:,}").get(name), list)}
    fewest, size = _lengths(lengths, name, say)

  def rows():
    table = itertools.chain([first], lines)
    while block := list(itertools.islice(table, most or _at_a_time(size))):
      objects = [parse_json(line, f": line {number:,}") for number, line in block]
      where = f"lines {block[0][0]:,} to {block[-1][0]:,}"
      columns = [[values.get(name) for values in objects] for name in header.outputs]
      if by_name:
        columns = [[(x or {}).get(key, -np.inf) for x in columns[0]] for key in classes]
      elif not is_list and any(isinstance(x, str) for x in columns[0]):
        columns = [numbers(list(map(str, x)), key, _first(say, block[0][0] - first[0])).tolist()
                   for key, x in zip(header.outputs, columns, strict=True)]
      names = dict.fromkeys(name for values in objects for name in values if name not in header.outputs)
      outputs = _outputs(columns[0] if is_list else zip(*columns, strict=True), size, header.outputs, where)
      yield Rows(_probabilities(header, outputs, _first(say, block[0][0] - first[0])),
                 {name: [x.get(name) for x in objects] for name in names})

  return Source(header.kind, header.classes, rows(), ragged=fewest < size)


def _lengths(lengths: Collection[int], name: str, say: Callable[[str], None]) -> tuple[int, int]:
  """Returns the fewest and the most numbers of a row, and says so if they differ."""
  fewest, most = min(lengths), max(lengths)
  if fewest < most:
    say(f": the lists of its {name} have {fewest} to {most} numbers: what a shorter one lacks are options that its row "
        "does not have.")
  return fewest, most


def _outputs(rows: Iterable[Sequence[float]], size: int, names: Sequence[str], where: str) -> np.ndarray:
  """Returns rows of at most ``size`` numbers as float32 ``[n, size]``, with -inf for what a shorter one lacks."""
  rows = list(rows)
  try:
    if len(set(map(len, rows))) == 1 and (outputs := np.array(rows, np.float32)).shape == (len(rows), size):
      return outputs
    outputs = np.full((len(rows), size), -np.inf, np.float32)
    for i, row in enumerate(rows):
      outputs[i, :len(row)] = np.array(row, np.float32)
    return outputs
  except (TypeError, ValueError) as error:
    raise FileError(f": its {where} must each have {headers.listed(names)}, numbers or lists of numbers.") from error


def _parquet(path: str | os.PathLike[str], say: Callable[[str], None], most: int, records: bool) -> Source:
  from calib_jax.evaluation.predictions.parquet_files import stream

  names, lists, batches = stream(path)
  header = _header(names, lists, say, records)
  name, fewest, size = header.outputs[0], len(header.outputs), len(header.outputs)
  if is_list := name in lists:
    lengths = {len(x) for columns in batches(ROWS, [name]) for x in columns[name] if x is not None}
    fewest, size = _lengths(lengths or {0}, name, say)

  def rows():
    row = 0
    for columns in batches(most or _at_a_time(size)):
      outputs = [columns.pop(name) for name in header.outputs]
      end, rows_of = row + len(outputs[0]), outputs[0] if is_list else zip(*outputs, strict=True)
      outputs = _outputs(rows_of, size, header.outputs, f"rows {row:,} to {end - 1:,}")
      yield Rows(_probabilities(header, outputs, _first(say, row)), columns)
      row = end

  return Source(header.kind, header.classes, rows(), ragged=fewest < size)


def _npz(archive: NpzFile, say: Callable[[str], None], most: int, records: bool) -> Source:
  names = list(archive.members)
  kinds = [_confidence(names, say)] if records else [name for name in headers.OUTPUTS if name in names]
  if not kinds:
    raise FileError(f" must hold logits or probs; it holds {headers.listed(names)}.")
  headers.say_others(kinds[0], kinds[1:], say)
  read = archive.read(archive.headers(names))
  outputs = read.pop(kinds[0])
  if records and kinds[0].lower() in headers.LOG_CONFIDENCES:
    outputs = from_logarithms(outputs.ravel(), kinds[0], say)
  if outputs.ndim > 2:
    raise FileError(f": {kinds[0]} of shape {short(outputs.shape)} are not rows: reshape them to [N, K].")
  by_row = {name: x for name, x in read.items() if x.ndim and len(x) == len(outputs) and name not in headers.CLASSES}
  step = most or _at_a_time(math.prod(outputs.shape[1:]))
  rows = (Rows(outputs[start:start + step], {name: x[start:start + step] for name, x in by_row.items()})
          for start in range(0, len(outputs), step))
  classes = next((list(map(str, read[name].ravel())) for name in headers.CLASSES if name in read), None)
  whole = {name: x for name, x in read.items() if name not in by_row}
  return Source(headers.CONFIDENCES[0] if records else kinds[0].lower(), classes, rows, whole)
