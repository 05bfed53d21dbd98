"""Writes the rows of a file of predictions with other probabilities, some at a time."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import csv
import json
import pathlib
from typing import Any
import zipfile

import numpy as np

from calib_jax._system.errors import FileError, short
from calib_jax.evaluation.predictions import headers
from calib_jax.evaluation.predictions.pieces import Source
from calib_jax.evaluation.predictions.text_files import SEPARATORS


def write(path: pathlib.Path, source: Source, rows: Iterator[tuple[np.ndarray, Mapping[str, Any]]]) -> int:
  """Writes rows of probabilities ``[n, K]`` with what else they hold, and returns their number.

  A text file or Parquet has a column such as ``prob_cat`` for each class of ``source``, numbered from 0 if it names
  none; JSON, an object a row, and ``.npz`` have ``probs`` beside the names of the ``classes``, and an ``.npz`` what of
  ``source`` is not by row. A single column is that of the positive class, 1, or of records their ``confidence``. Of a
  ragged source a probability that is NaN is of an option that the row does not have: JSON and Parquet have lists
  ``probs`` without it, and the others 0. Rows with orders of their own keep them, and only JSON and Parquet can hold
  them. The file appears only once it is complete.
  """
  partial, number = path.with_suffix(path.suffix + ".tmp"), 0

  def counted():
    nonlocal number
    for probs, others in rows:
      number += len(probs)
      yield probs, others

  writers = {**dict.fromkeys((".jsonl", ".json"), _write_json), **dict.fromkeys((".parquet", ".pq"), _write_parquet),
             ".npz": _write_npz}
  try:
    writers.get(path.suffix.lower(), _write_csv)(partial, source, counted())
    partial.replace(path)
  finally:
    partial.unlink(missing_ok=True)
  return number


def _columns(source: Source, num_columns: int) -> list[str]:
  if source.kind in headers.CONFIDENCES:
    return [headers.CONFIDENCES[0]]
  names = source.classes[-num_columns:] if source.classes else [1] if num_columns == 1 else range(num_columns)
  return [f"prob_{name}" for name in names]


def _key(source: Source) -> str:
  return headers.CONFIDENCES[0] if source.kind in headers.CONFIDENCES else "probs"


def _lists(source: Source, probs: np.ndarray) -> list[list[float]]:
  """Returns the probabilities of each row, as many as it has options; one between these that it lacks is 0."""
  if not source.ragged:
    return probs.tolist()
  lengths = probs.shape[1] - np.argmax(~np.isnan(probs[:, ::-1]), axis=1)
  return [row[:length] for row, length in zip(np.nan_to_num(probs).tolist(), lengths.tolist(), strict=True)]


def _write_csv(path: pathlib.Path, source: Source, rows: Iterator[tuple[np.ndarray, Mapping]]) -> None:
  with path.open("w", encoding="utf-8", newline="") as file:
    writer, names = csv.writer(file, delimiter=SEPARATORS[pathlib.Path(path.stem).suffix.lower()]), None
    for probs, others in rows:
      if names is None:
        names = list(others)
        writer.writerow([*names, *_columns(source, probs.shape[1])])
      writer.writerows([*(others[name][i] for name in names), *(f"{p:.8g}" for p in row)]
                       for i, row in enumerate(np.nan_to_num(probs)))


def _write_json(path: pathlib.Path, source: Source, rows: Iterator[tuple[np.ndarray, Mapping]]) -> None:
  """Writes objects one a line, or as one list, by the ending of the file that ``path`` becomes."""
  is_lines, key = pathlib.Path(path.stem).suffix.lower() == ".jsonl", _key(source)
  before, between, end = ("", "\n", "\n") if is_lines else ("[", ",\n", "]\n")
  with path.open("w", encoding="utf-8") as file:
    for probs, others in rows:
      others = {name: x.tolist() if isinstance(x, np.ndarray) else x for name, x in others.items()}
      is_one = probs.shape[1] == 1 and not source.ragged
      if is_one and source.classes:
        (key,) = _columns(source, 1)
      names = {}
      if source.classes and not is_one and not any(_are_options(name, x) for name, x in others.items()):
        names = {next(name for name in headers.OPTIONS if name not in others): source.classes}
      for i, row in enumerate(_lists(source, probs)):
        values = {name: x[i] for name, x in others.items()}
        file.write(before + json.dumps(values | names | {key: row[0] if is_one else row}))
        before = between
    file.write(end)


def _write_parquet(path: pathlib.Path, source: Source, rows: Iterator[tuple[np.ndarray, Mapping]]) -> None:
  import pyarrow
  from pyarrow import parquet

  with contextlib.ExitStack() as stack:
    writer = None
    for probs, others in rows:
      others = {name: x if not isinstance(x, np.ndarray) or x.ndim == 1 else list(x) for name, x in others.items()}
      new = ({_key(source): _lists(source, probs)} if source.ragged or source.is_mixed else
             dict(zip(_columns(source, probs.shape[1]), probs.T, strict=True)))
      table = pyarrow.table({**others, **new})
      writer = writer or stack.enter_context(parquet.ParquetWriter(path, table.schema))
      writer.write_table(table)


def _write_npz(path: pathlib.Path, source: Source, rows: Iterator[tuple[np.ndarray, Mapping]]) -> None:
  """Writes the probabilities beside the archive first, because they may not fit in memory."""
  num_columns, by_row, beside = 0, {}, path.with_suffix(".rows")
  try:
    with beside.open("wb") as file:
      for probs, others in rows:
        num_columns = probs.shape[1]
        file.write(np.ascontiguousarray(np.nan_to_num(probs), np.float32).tobytes())
        for name, x in others.items():
          by_row.setdefault(name, []).append(_array(x, name))
    arrays = {**source.whole, **{name: np.concatenate(parts) for name, parts in by_row.items()
                                 if not (source.classes and _are_options(name, parts[0].tolist()))}}
    if source.classes and num_columns > 1 and not set(headers.CLASSES) & arrays.keys():
      arrays["classes"] = np.array(source.classes)
    probs = np.memmap(beside, np.float32, "r")
    arrays[_key(source)] = probs if num_columns == 1 else probs.reshape(-1, num_columns)
    with zipfile.ZipFile(path, "w") as archive:
      for name, array in arrays.items():
        with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
          np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
  finally:
    beside.unlink(missing_ok=True)


def _are_options(name: str, values: Sequence[Any]) -> bool:
  """Returns whether a column has a list of the names of its classes in each row; a number of options is none."""
  return name in headers.OPTIONS and isinstance(values[0], list)


def _array(values: list[Any] | np.ndarray, name: str) -> np.ndarray:
  """Returns what rows hold as an array; a FileError where their lists have several lengths."""
  try:
    return np.asarray(values)
  except ValueError:
    raise FileError(f": the lists of {short(name)} have several lengths, which an .npz cannot hold: write a .jsonl or "
                    "a .parquet.") from None
