"""Reads Parquet files of predictions, whole or some rows at a time, if pyarrow is installed."""

from collections.abc import Callable, Collection, Iterator
import contextlib
import importlib.util
import os
import re

import numpy as np

from calib_jax._system import capacity
from calib_jax._system.errors import FileError, short
from calib_jax.evaluation.predictions.headers import IDS, NAMES, FileTable, Header, check_extra, read_header, stacked
from calib_jax.evaluation.predictions.masks import padded, said_lengths
from calib_jax.evaluation.predictions.pieces import Rows, Source, from_row, of_first
from calib_jax.evaluation.predictions.row_options import classes_of, options_of, places_of, say_classes, with_options

AHEAD = 2**14  # Rows that are read at a time to find the lengths of their lists.
WIDEST = 16  # Bytes of a number of Parquet and of its place in a list.
SAFE_PYARROW = (14, 0, 1)


def read_parquet(path: str | os.PathLike[str], extra: Collection[str], say: Callable[[str], None], multilabel: bool,
                 unknown: bool = False
                 ) -> FileTable:
  """Reads the columns of a Parquet file that predictions may have. A column of lists becomes ``[N, K]``."""
  with _opened(path) as (file, names, lists):
    header = read_header(names, lists, extra, say, multilabel)
    check_extra(extra, names)
    options = options_of(lists, header.outputs, extra)
    wanted = [*header.outputs, *header.labels, *(name for name in (*extra, *NAMES) if name in names)]
    wanted = list(dict.fromkeys([*wanted, *([options] if options else [])]))
    capacity.check_read("", WIDEST * _num_values(file, wanted))
    table = file.read(columns=wanted)
    may_differ = () if multilabel or len(header.outputs) > 1 else header.outputs
    missing = (*IDS, *(header.labels if multilabel or unknown else ()))
    columns = {name: _with_null(table[name]) if name in IDS else table[name] for name in wanted if name != options}
    arrays = {name: _values(column.combine_chunks(), name, say if name in may_differ else None, name in missing)
              for name, column in columns.items()}
    rows_of_options = table[options].to_pylist() if options else None
  outputs = stacked([arrays.pop(name) for name in header.outputs], header)
  table = FileTable(header, outputs, {name: arrays.pop(name) for name in header.labels}, arrays)
  return with_options(table, rows_of_options, say, multilabel) if options else table


def stream(path: str | os.PathLike[str], find: Callable[[list[str], list[str]], Header],
           at_a_time: Callable[[int], int], say: Callable[[str], None]) -> Source:
  """Opens a Parquet file, to be read ``at_a_time(K)`` rows at a time.

  ``find`` takes the names of its columns, and those that hold lists. A first reading finds their lengths, and the
  names of the classes where all rows have them.
  """
  with _opened(path) as (_, names, lists):
    header = find(names, lists)
  name, fewest, most = header.outputs[0], len(header.outputs), len(header.outputs)
  if is_list := name in lists:
    lengths = {len(x) for batch in _batches(path, AHEAD, [name]) for x in batch[name].to_pylist() if x is not None}
    fewest, most = said_lengths(lengths or {0}, name, say)
  classes, is_mixed = header.classes, False
  if options := options_of(lists, header.outputs):
    rows_of_options = (x for batch in _batches(path, AHEAD, [options]) for x in batch[options].to_pylist())
    classes, is_mixed = classes_of(rows_of_options)
    say_classes(classes, is_mixed, most, say)

  def rows():
    row = 0
    for batch in _batches(path, at_a_time(most)):
      with from_row(row):
        outputs = [_values(batch[name], name, of_first(say, row) if is_list else None, most=most if is_list else None)
                   for name in header.outputs]
      others = {name: batch[name].to_pylist() for name in names if name not in header.outputs}
      yield Rows(stacked(outputs, header), others, places_of(others[options], classes) if is_mixed else None)
      row += len(outputs[0])

  return Source(header.kind, classes, rows(), ragged=fewest < most, is_mixed=is_mixed)


def _batches(path: str | os.PathLike[str], num_rows: int, names: list[str] | None = None) -> Iterator:
  """Yields the columns of a Parquet file, or those of ``names``, ``num_rows`` rows at a time."""
  with _opened(path) as (file, _, _):
    yield from file.iter_batches(batch_size=num_rows, columns=names)


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator:
  """Opens a Parquet file with the names of its columns, and of those that hold lists; its errors are a FileError.

  Texts are read as a dictionary and its numbers, because a few bytes may stand for many long texts.
  """
  pyarrow, parquet = _imported()
  try:
    schema = parquet.read_schema(path)
    lists = [field.name for field in schema if pyarrow.types.is_nested(field.type)]
    texts = [field.name for field in schema if not (pyarrow.types.is_primitive(field.type) or field.name in lists)]
    with parquet.ParquetFile(path, read_dictionary=texts) as file:
      yield file, schema.names, lists
  except (pyarrow.ArrowException, ValueError, TypeError, KeyError, OSError, MemoryError, NotImplementedError) as error:
    reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
    raise FileError(f" cannot be read as Parquet ({reason}).") from error


def _imported():
  """Returns the modules ``pyarrow`` and ``pyarrow.parquet``; a FileError if there is none that is safe."""
  if not importlib.util.find_spec("pyarrow"):
    raise FileError(": to read Parquet, pyarrow must be installed (pip install pyarrow); CSV works without.")
  import pyarrow
  from pyarrow import parquet

  if tuple(map(int, re.findall(r"\d+", pyarrow.__version__)[:3])) < SAFE_PYARROW:
    raise FileError(f": Parquet is not read with pyarrow {pyarrow.__version__}, because a file could run code in "
                    "it (CVE-2023-47248): pip install -U pyarrow.")
  return pyarrow, parquet


def _with_null(column):
  """Returns ids that are texts with "null", which is no key, where one is missing, and numbers as they are."""
  import pyarrow

  if not (column.null_count and pyarrow.types.is_dictionary(column.type)):
    return column
  return column.cast(column.type.value_type).fill_null("null").dictionary_encode()


def _num_values(file, wanted: Collection[str]) -> int:
  """Returns how many numbers and texts the columns ``wanted`` of a Parquet file hold, by what the file says."""
  places = [i for i in range(len(file.schema)) if file.schema.column(i).path.partition(".")[0] in wanted]
  groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
  capacity.check_read("", sum(max(WIDEST * group.num_rows * len(places), group.total_byte_size)
                                     for group in groups))
  for i in range(len(groups)):
    # An exception of Parquet within ``column`` below would end the process: reading a row raises the same one first.
    next(file.iter_batches(batch_size=1, row_groups=[i], columns=wanted), None)
  return sum(group.column(i).num_values for group in groups for i in places)


def _values(column, name: str, say: Callable[[str], None] | None, may_be_missing: bool = False, most: int | None = None
            ) -> np.ndarray:
  """Returns a column as an array, ``[N, K]`` of lists of K numbers; with ``say`` they may be of several lengths.

  K is ``most``, or else the longest. Numbers that may be missing are NaN.
  """
  import pyarrow

  types, shape, nulls, several = pyarrow.types, [len(column)], column.null_count, None
  while types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
    lengths = [] if nulls else column.value_lengths().unique().to_pylist()
    shape.append(lengths[0] if len(lengths) == 1 else 0)
    may_differ = say and len(shape) == 2 and not types.is_nested(column.type.value_type)
    if may_differ and (len(lengths) > 1 or most not in (None, *lengths)):
      several, shape = column.value_lengths().to_numpy(zero_copy_only=False), [-1]
    column = column.flatten()
    nulls += column.null_count
  if nulls and not (may_be_missing and nulls == column.null_count):
    raise FileError(f": the column {short(name)} has {nulls} missing values (nulls): leave these rows out.")
  if 0 in shape[1:]:
    raise FileError(f": the lists of the column {short(name)} must all have one length.")
  if types.is_dictionary(column.type):
    texts, places = column.dictionary.to_pylist(), column.indices.to_numpy(zero_copy_only=False)
    if not all(isinstance(text, str) for text in texts):
      raise FileError(f": the column {short(name)} must hold numbers or texts.")
    capacity.check_read(f": {name}", 4 * len(places) * max(map(len, texts), default=0))
    values = np.array(texts, str)[places] if texts else np.empty(0, str)
  elif types.is_integer(column.type) or types.is_floating(column.type) or types.is_boolean(column.type):
    values = column.to_numpy(zero_copy_only=False)
    values = values.astype(np.float64) if nulls else values
  else:
    raise FileError(f": the column {short(name)} must hold numbers or texts, not {column.type}.")
  return values.reshape(shape) if several is None else padded(values, several, name, say, most)
