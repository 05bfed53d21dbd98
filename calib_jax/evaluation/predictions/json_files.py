"""Reads objects of JSON, one a row: JSON lines, whole or some rows at a time, files of one list or object, and logs."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
import functools
import itertools
import os
import pathlib
from typing import Any

import numpy as np

from calib_jax._system import capacity
from calib_jax._system.errors import FileError, short
from calib_jax.evaluation.predictions import headers, logs, masks, row_options, written_values
from calib_jax.evaluation.predictions.pieces import Rows, Source, from_row, of_first
from calib_jax.evaluation.predictions.text_files import TEXT, as_json, objects_of_lines, stripped


def first_of(objects: Iterable[tuple[str, Any]]) -> Mapping[str, Any]:
  """Takes the first object, whose keys are those of a table; none is a FileError."""
  place, row = next(iter(objects), ("", None))
  if not isinstance(row, dict):
    raise FileError(f"{place} must hold an object." if place else
                    " cannot be read as objects of JSON, one a row (it has no rows).")
  return row


def lists_of(row: Mapping[str, Any]) -> list[str]:
  """Returns the keys that hold several values."""
  return [name for name, value in row.items() if isinstance(value, list | dict)]


def read_objects(objects: Iterable[tuple[str, Any]], extra: Collection[str], say: Callable[[str], None],
                 multilabel: bool, form: str = "", name: str = "", unknown: bool = False) -> headers.FileTable:
  """Reads all objects, each after its place; a log's are its rows. A key with lists, or numbers by class, is [N, K].

  ``form`` and the ``name`` of the file are those of ``logs.rows``. Labels may be missing where some are ``unknown``.
  """
  is_log, objects = logs.rows(objects, say, form, name)
  if is_log:
    extra = list(dict.fromkeys([*extra, logs.ID]))
  first = first_of(ahead := list(itertools.islice(objects, 1)))
  header = headers.read_header(list(first), lists_of(first), extra, say, multilabel)
  headers.check_extra(extra, first)
  lists = [name for name, value in first.items() if isinstance(value, list)]
  options = row_options.options_of(lists, header.outputs, extra)
  names = (*header.outputs, *header.labels, *extra, *headers.NAMES, *([options] if options else []))
  columns = _columns(itertools.chain(ahead, objects), [name for name in dict.fromkeys(names) if name in first],
                     (*headers.IDS, *(header.labels if multilabel or unknown else ())))
  rows_of_options = columns.pop(options, None)
  outputs, header = _outputs({name: columns.pop(name) for name in header.outputs}, header, say, not multilabel)
  read = {name: _array(_with_null(column) if name in headers.IDS else column, name) for name, column in columns.items()}
  if is_log and len(set(read[logs.ID])) < len(outputs) and "" not in read:
    read[""] = read[logs.ID]  # The groups, unless others are named.
  table = headers.FileTable(header, outputs, {name: read.pop(name) for name in header.labels}, read)
  if rows_of_options is None or not all(isinstance(x, list) for x in rows_of_options):
    return table
  return row_options.with_options(table, rows_of_options, say, multilabel)


def stream(path: str | os.PathLike[str], find: Callable[[list[str], list[str]], headers.Header],
           at_a_time: Callable[[int], int], say: Callable[[str], None]) -> Source:
  """Opens a file of objects, to be read ``at_a_time(K)`` rows at a time; all but JSON lines are read as a whole.

  ``find`` takes the names of its keys, and those that hold lists. A first reading finds how many outputs rows have,
  and the names of the classes where all rows have them.
  """
  again = functools.partial(objects_of_lines, path)
  if pathlib.Path(path).suffix.lower() != ".jsonl":
    with as_json():
      again = list(logs.objects_of(path)).__iter__
  first = first_of(again())
  header = find(list(first), lists_of(first))
  name, classes, fewest, most = header.outputs[0], {}, len(header.outputs), len(header.outputs)
  names, is_mixed, lengths = header.classes, False, set()
  options = row_options.options_of(lists_of(first), header.outputs)

  def options_of_rows():
    for _, row in again():
      if isinstance(values := row.get(name), type(first[name])):
        lengths.add(len(values))
        classes.update(dict.fromkeys(values) if isinstance(values, dict) else {})
      yield row.get(options)

  if is_several := isinstance(first[name], list | dict):
    of_options, is_mixed = row_options.classes_of(options_of_rows())
    fewest, most = (len(classes), len(classes)) if classes else masks.said_lengths(lengths, name, say)
    is_mixed = is_mixed and not classes
    names = list(classes) or of_options
    row_options.say_classes(names, is_mixed, most, say)

  def rows():
    objects, row = again(), 0
    while block := list(itertools.islice(objects, at_a_time(most))):
      with from_row(row):
        outputs, _ = _outputs(_columns(block, header.outputs), header, of_first(say, row), True, list(classes),
                              most if is_several else None)
      others = dict.fromkeys(name for _, values in block for name in values if name not in header.outputs)
      read = {name: [values.get(name) for _, values in block] for name in others}
      yield Rows(outputs, read, row_options.places_of(read[options], names) if is_mixed else None)
      row += len(block)

  return Source(header.kind, names, rows(), ragged=fewest < most, is_mixed=is_mixed)


def _columns(objects: Iterable[tuple[str, Any]], names: Collection[str], may_be_missing: Collection[str] = ()
             ) -> dict[str, list[Any]]:
  """Returns the values of keys in all objects; a missing one is a FileError, or NaN where it ``may_be_missing``."""
  columns, taken = {name: [] for name in names}, 0
  for count, (place, row) in enumerate(objects, 1):
    if not isinstance(row, dict):
      raise FileError(f"{place} must hold an object.")
    for name, column in columns.items():
      value = row.get(name)
      if name in may_be_missing:
        value = np.nan if value is None else [np.nan if x is None else x for x in value] if isinstance(
          value, list) else value
      if value is None:
        raise FileError(f"{place} has no {short(name)}: leave this row out.")
      if isinstance(value, list) and name not in headers.OPTIONS:
        value = np.array(value)
      taken += TEXT + (2 * value.nbytes if isinstance(value, np.ndarray) else 4 * len(str(value)))
      column.append(value)
    capacity.check_read(f": {count:,} of its rows", taken)
  return columns


def _outputs(columns: Mapping[str, list[Any]], header: headers.Header, say: Callable[[str], None], may_differ: bool,
             classes: Sequence[str] = (), most: int | None = None) -> tuple[np.ndarray, headers.Header]:
  """Returns outputs as ``[n, K]`` or ``[n]``, and the header with the names of classes that the rows have.

  Rows ``may_differ`` in their lists' lengths, and in their classes. ``classes`` and ``most``, the names and the number
  of the outputs that a row may have, are by default what the rows have.
  """
  may_differ = may_differ and len(header.outputs) == 1
  values = columns[header.outputs[0]]
  if may_differ and all(isinstance(x, dict) for x in values) and max(len(classes), *map(len, values)) > 1:
    array, names = row_options.by_name(values, classes)
    return array, header._replace(classes=names)
  read = []
  for name, values in columns.items():
    if all(isinstance(x, str) for x in values):
      read.append(written_values.numbers(values, name, say))
    elif may_differ and all(isinstance(x, np.ndarray) and x.ndim == 1 and x.dtype.kind in "biuf" for x in values):
      read.append(masks.padded(np.concatenate(values), np.array([*map(len, values)]), name, say, most))
    else:
      read.append(_array(values, name))
  return headers.stacked(read, header), header


def _with_null(ids: list[Any]) -> list[Any]:
  """Returns texts with "null", which is no key, where one is missing; numbers stay as they are, and have NaN there."""
  return ["null" if x is np.nan else x for x in ids] if any(isinstance(x, str) for x in ids) else ids


def _array(values: list[Any], name: str) -> np.ndarray:
  """Returns the values of a key in all rows."""
  if all(isinstance(value, str) for value in values):
    return stripped(values)
  if not any(isinstance(value, str) for value in values):
    try:
      array = np.array(values)
    except (ValueError, OverflowError):
      raise FileError(f": the lists of {short(name)} must all have one length.") from None
    if array.dtype.kind in "biuf":
      return array
  raise FileError(f": {short(name)} must hold numbers, or texts, in all rows.")
