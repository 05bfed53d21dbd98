"""Reads the arrays of prediction files: ``.npz``, a pair of ``.npy``, CSV and Parquet."""

from collections.abc import Callable, Collection, Iterator, Mapping
import csv
import importlib.util
import math
import os
import pathlib
import re

import numpy as np

from calib_jax._system import capacity
from calib_jax._system.errors import UserError, short
from calib_jax._system.files import check_regular, conversion, names_in_npz, read_npy, read_npz, shapes_in_npz
from calib_jax.evaluation.columns import (
  CLASSES,
  LABELS,
  LOGITS,
  NAMES,
  PROBS,
  SCORES,
  Columns,
  find_columns,
  listed,
  say_others,
  say_weights,
)

PAIR = re.compile(r"(.+\.npy),(.+\.npy)")
LINE = 2**24  # Characters of a line of CSV.
TEXT = 100  # Bytes that a short text takes in memory.
WIDEST = 16  # Bytes of a number of Parquet and of its place in a list.
SAFE_PYARROW = (14, 0, 1)


def arrays(path: str | os.PathLike, extra: Collection[str] = (), say: Callable[[str], None] = lambda note: None,
           multilabel: bool = False) -> dict[str, np.ndarray]:
  """Reads the arrays of one file of predictions.

  Args:
    path: an ``.npz``; ``LOGITS.npy,LABELS.npy``, which are mapped into memory; a ``.csv`` or ``.parquet`` whose columns
      are called like ``label``, ``logit_cat`` and ``logit_dog``; or ``.npz`` by any other name.
    extra: names to read in addition to those of scores, labels and classes.
    say: is called with a sentence for each choice between readings of the file.
    multilabel: whether a row can have several labels, so that a table has a column of labels for each class.

  Returns:
    Arrays by name, of which one holds scores and one labels. Columns such as ``logit_cat`` are joined into one array
    ``logit`` ``[N, K]``, and the ends of their names are ``classes``.

  Raises:
    UserError: if the file cannot be read, or if it can be read in several ways.
  """
  if pair := PAIR.fullmatch(str(path)):
    scores, labels = map(read_npy, pair.groups())
    name = next((alias for alias in (*PROBS, *LOGITS) if alias in pathlib.Path(pair[1]).stem.lower()), "scores")
    return {name: scores, "labels": labels}
  check_regular(path)
  suffix = pathlib.Path(path).suffix.lower()
  if suffix == ".npy":
    raise UserError(f"{path} holds one array: give two files as LOGITS.npy,LABELS.npy, with a comma and no space.")
  if suffix == ".csv":
    return _csv(path, extra, say, multilabel)
  if suffix in (".parquet", ".pq"):
    return _parquet(path, extra, say, multilabel)
  return _npz(path, extra, say)


def _npz(path: str | os.PathLike, extra: Collection[str], say: Callable[[str], None]) -> dict[str, np.ndarray]:
  """Reads the arrays of an ``.npz`` that are used, once their shapes fit together."""
  names = names_in_npz(path)
  if any(name.endswith("/data.pkl") for name in names):
    raise UserError(f"{path} is a pickle of PyTorch, which is not read because it could run code. "
                    + conversion(path, "torch", "torch.load({!r})"))
  scores = [name for name in SCORES if name in names]
  if not scores or not set(LABELS) & set(names):
    raise UserError(f"{path} must hold labels, and logits or probs; it holds {listed(names)}: name them so, as in "
                    "numpy.savez(path, logits=logits, labels=labels).")
  for name in names:
    if name not in SCORES and name.lower() in scores:
      raise UserError(f"{path} holds {name.lower()} and {name}, and only one of them can be meant: delete the other.")
  say_others(path, scores[0], scores[1:], say)
  say_weights(path, (name for name in names if name not in extra), say)
  labels = [name for name in names if name.lower() in LABELS and name not in extra]
  classes = [name for name in names if name in CLASSES and name not in extra]
  wanted = [scores[0], *labels, *classes, "kind", "features", "train_counts", *extra]
  shapes = shapes_in_npz(path, wanted)
  rows, *width = shapes.get(scores[0]) or (1,)
  num_classes = max(width[0] if width else 2, 2)
  most = {**dict.fromkeys(labels, rows * num_classes), **dict.fromkeys(classes, num_classes), "kind": 1,
          "train_counts": num_classes, **dict.fromkeys(extra, rows)}
  for name, shape in shapes.items():
    if math.prod(shape) > most.get(name, math.inf):
      raise UserError(f"{path}: {name} of shape {short(shape)} does not fit {scores[0]} of shape "
                      f"{short(shapes[scores[0]])}.")
  read = read_npz(path, wanted)
  for several, aliases in ((labels, LABELS), (classes, CLASSES)):
    _drop_all_but_one(read, several, aliases, path)
  return read


def _drop_all_but_one(read: dict[str, np.ndarray], names: Collection[str], aliases: Collection[str],
                      path: str | os.PathLike) -> None:
  """Deletes all of ``names`` in ``read`` but the first of ``aliases``.

  Raises:
    UserError: unless they are equal.
  """
  for name in names[1:]:
    if not np.array_equal(read[name], read[names[0]]):
      raise UserError(f"{path} holds {' and '.join(names)}, which differ, and only one of them can be the "
                      f"{aliases[0]}: give the others another name.")
  if names:
    values = [read.pop(name) for name in names]
    read[next(alias for alias in aliases if alias in map(str.lower, names))] = values[0]


def one_of(arrays: Mapping[str, np.ndarray], aliases: Collection[str]) -> str | None:
  """Returns the first of ``aliases`` that ``arrays`` has, or None."""
  return next((name for name in aliases if name in arrays), None)


def _table(columns: Columns, scores: np.ndarray, labels: dict[str, np.ndarray], others: dict[str, np.ndarray],
           path: str | os.PathLike, say: Callable[[str], None]) -> dict[str, np.ndarray]:
  """Returns the arrays of a table; labels from 1 become labels from 0 where the columns are numbered from 1 too."""
  table, classes = {columns.kind: scores}, columns.classes
  if columns.labels[0].lower() not in LABELS:  # One column a class.
    return table | others | {LABELS[0]: np.stack(list(labels.values()), axis=1)} | (
      {"classes": np.array(classes)} if classes else {})
  _drop_all_but_one(labels, list(labels), LABELS, path)
  ((name, values),) = labels.items()
  if columns.from_1 and values.ndim == 1 and values.dtype.kind in "iu" and len(values):
    first, last = columns.scores[0], columns.scores[-1]
    if values.min() < 1 or values.max() > len(columns.scores):
      raise UserError(f"{path}: its columns are numbered from 1 ({short(first)} to {short(last)}), and its labels go "
                      f"from {values.min()} to {values.max()}: number both from 0, or both from 1.")
    say(f"{path}: its columns are numbered from 1, so its labels are too: label 1 is {first}.")
    values = values - values.dtype.type(1)
  if classes and len(classes) == 1:
    classes = _with_other(classes[0], values, path)
  names = [others.pop(name) for name in NAMES if name in others]
  if names and not classes:
    classes = _by_row(values, names[0], max(2, *scores.shape[1:]), path)
  return table | others | {name: values} | ({"classes": np.array(classes)} if classes else {})


def _with_other(positive: str, labels: np.ndarray, path: str | os.PathLike) -> list[str]:
  """Returns the names of two classes of which one has the only column of scores."""
  others = sorted(set(labels.tolist()) - {positive}) if labels.dtype.kind == "U" else []
  if len(others) > 1:
    raise UserError(f"{path}: its one column is of {short(positive)}, and its labels are also {listed(others)}: a "
                    "binary problem has two classes.")
  return [*(others or [f"not {positive}"]), positive]


def _by_row(labels: np.ndarray, names: np.ndarray, num_classes: int, path: str | os.PathLike) -> list[str]:
  """Returns the names of the classes from a column that has the name of each row's label."""
  pairs = set(zip(labels.tolist(), map(str, names.tolist()), strict=True)) if labels.dtype.kind in "iu" else ()
  found = dict(pairs)
  if not pairs or len(pairs) != len(found) or len(set(found.values())) != len(found):
    raise UserError(f"{path}: its column of names must have one name for each label, an integer, and no name twice.")
  return [found.get(k, str(k)) for k in range(num_classes)]


def _csv(path: str | os.PathLike, extra: Collection[str], say: Callable[[str], None], multilabel: bool
         ) -> dict[str, np.ndarray]:
  """Reads the columns of a CSV file with a header. Columns of labels are text or integers, those of ``extra`` text."""
  try:
    with open(path, encoding="utf-8-sig", newline="") as file:
      header = [name.strip() for name in next(csv.reader([file.readline(LINE)]), [])]
    if len(header) == 1 and (other := next((mark for mark in ";\t|" if mark in header[0]), "")):
      raise UserError(f"{path}: its columns are separated by {other!r}: separate them by commas, and write numbers "
                      "with points.")
    columns = find_columns(header, (), path, extra, say, multilabel)
    numbers = [header.index(name) for name in columns.scores]
    texts = [i for i, name in enumerate(header) if name in columns.labels or name in extra or name in NAMES]
    options = {"delimiter": ",", "quotechar": '"', "comments": None, "ndmin": 2}
    values = np.loadtxt(_lines(path, len(header), 4 * len(numbers)), usecols=numbers, dtype=np.float32, **options)
    text = np.loadtxt(_lines(path, len(header), TEXT * len(texts)), usecols=texts, dtype=object, **options)
  except (ValueError, IndexError, csv.Error, OSError) as error:
    reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
    raise UserError(f"{path} cannot be read as CSV ({reason}).") from error
  read = {header[i]: _text(text[:, j], path, header[i] in columns.labels) for j, i in enumerate(texts)}
  return _table(columns, values, {name: read.pop(name) for name in columns.labels}, read, path, say)


def _lines(path: str | os.PathLike, num_fields: int, row_bytes: int) -> Iterator[str]:
  """Yields the lines of a CSV file after its header, each of which must have ``num_fields`` fields.

  The bytes that the rows take in memory are checked before as many are read.
  """
  with open(path, encoding="utf-8-sig", newline="") as file:
    number, rows = 1, 0
    file.readline(LINE)
    while line := file.readline(LINE):
      number += 1
      if len(line) == LINE or line.count('"') % 2:
        raise ValueError(f"line {number:,} is longer than {LINE:,} characters, or a quotation mark is not closed in it")
      if not line.strip():
        continue
      fields = len(next(csv.reader([line]))) if '"' in line else line.count(",") + 1
      if fields != num_fields:
        raise ValueError(f"line {number:,} has {fields} fields and the header has {num_fields}")
      rows += 1
      capacity.check_read(f"{path}: {rows:,} of its rows", rows * row_bytes)
      yield line
    if not rows:
      raise ValueError("it has no rows")


def _text(text: np.ndarray, path: str | os.PathLike, may_be_integers: bool) -> np.ndarray:
  """Returns texts without spaces around them, as integers if all of them are and may be."""
  values = {value: value.strip() for value in set(text)}
  if may_be_integers and all(re.fullmatch(r"[+-]?\d{1,18}", value, re.ASCII) for value in values.values()):
    return np.array([int(values[value]) for value in text], np.int64)
  capacity.check_read(str(path), 4 * len(text) * max(map(len, values.values())))
  return np.array([values[value] for value in text])


def _parquet(path: str | os.PathLike, extra: Collection[str], say: Callable[[str], None], multilabel: bool
             ) -> dict[str, np.ndarray]:
  """Reads the columns of a Parquet file that predictions may have. A column of lists becomes ``[N, K]``."""
  if not importlib.util.find_spec("pyarrow"):
    raise UserError(f"{path}: to read Parquet, pyarrow must be installed (pip install pyarrow); CSV works without.")
  import pyarrow
  from pyarrow import parquet

  if tuple(map(int, re.findall(r"\d+", pyarrow.__version__)[:3])) < SAFE_PYARROW:
    raise UserError(f"{path}: Parquet is not read with pyarrow {pyarrow.__version__}, because a file could run code in "
                    "it (CVE-2023-47248): pip install -U pyarrow.")
  try:
    schema = parquet.read_schema(path)
    lists = [field.name for field in schema if pyarrow.types.is_nested(field.type)]
    texts = [field.name for field in schema if not (pyarrow.types.is_primitive(field.type) or field.name in lists)]
    columns = find_columns(schema.names, lists, path, extra, say, multilabel)
    wanted = [*columns.scores, *columns.labels, *(name for name in (*extra, *NAMES) if name in schema.names)]
    # Texts are read as a dictionary and its numbers, because a few bytes may stand for many long texts.
    file = parquet.ParquetFile(path, read_dictionary=texts)
    capacity.check_read(str(path), WIDEST * _num_values(file, wanted, path))
    table = file.read(columns=wanted)
    arrays = {name: _values(table[name].combine_chunks(), name, path) for name in wanted}
  except (pyarrow.ArrowException, ValueError, TypeError, KeyError, OSError, MemoryError, NotImplementedError) as error:
    reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
    raise UserError(f"{path} cannot be read as Parquet ({reason}).") from error
  scores = [arrays.pop(name) for name in columns.scores]
  if len(scores) > 1 and any(score.ndim > 1 for score in scores):
    raise UserError(f"{path}: columns such as {columns.scores[0]}, one a class, must hold one number in each row.")
  scores = scores[0] if len(scores) == 1 else np.stack(scores, axis=1)
  return _table(columns, scores, {name: arrays.pop(name) for name in columns.labels}, arrays, path, say)


def _num_values(file, wanted: Collection[str], path: str | os.PathLike) -> int:
  """Returns how many numbers and texts the columns ``wanted`` of a Parquet file hold, by what the file says."""
  places = [i for i in range(len(file.schema)) if file.schema.column(i).path.partition(".")[0] in wanted]
  groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
  capacity.check_read(str(path), sum(max(WIDEST * group.num_rows * len(places), group.total_byte_size)
                                     for group in groups))
  for i in range(len(groups)):
    # An exception of Parquet within ``column`` below would end the process: reading a row raises the same one first.
    next(file.iter_batches(batch_size=1, row_groups=[i], columns=wanted), None)
  return sum(group.column(i).num_values for group in groups for i in places)


def _values(column, name: str, path: str | os.PathLike) -> np.ndarray:
  """Returns a column of pyarrow as an array, ``[N, K]`` if it holds lists of K numbers."""
  import pyarrow

  types, rows, nulls = pyarrow.types, len(column), column.null_count
  is_list = types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type)
  if is_list:
    sizes = column.value_lengths().unique().to_pylist() if not nulls else []
    column = column.flatten()
    nulls += column.null_count
  if nulls:
    raise UserError(f"{path}: the column {short(name)} has {nulls} missing values (nulls): leave these rows out.")
  if types.is_dictionary(column.type):
    texts, places = column.dictionary.to_pylist(), column.indices.to_numpy(zero_copy_only=False)
    if not all(isinstance(text, str) for text in texts):
      raise UserError(f"{path}: the column {short(name)} must hold numbers or texts.")
    capacity.check_read(f"{path}: {name}", 4 * len(places) * max(map(len, texts), default=0))
    values = np.array(texts, str)[places] if texts else np.empty(0, str)
  elif types.is_integer(column.type) or types.is_floating(column.type) or types.is_boolean(column.type):
    values = column.to_numpy(zero_copy_only=False)
  else:
    raise UserError(f"{path}: the column {short(name)} must hold numbers or texts, not {column.type}.")
  if not is_list:
    return values
  if len(sizes) != 1:
    raise UserError(f"{path}: the lists of the column {short(name)} must all have one length.")
  return values.reshape(rows, sizes[0])
