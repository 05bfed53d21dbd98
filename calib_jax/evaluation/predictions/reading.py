"""Reads the arrays of prediction files: ``.npz``, a pair of ``.npy``, CSV, TSV, JSON lines and Parquet."""

from collections.abc import Callable, Collection, Iterable, Mapping
import math
import os
import pathlib
import re

import numpy as np

from calib_jax._system import capacity
from calib_jax._system.errors import FileError, short
from calib_jax._system.files import check_regular, conversion, opened_npz, read_npy
from calib_jax.evaluation.predictions import headers, json_files, logs, parquet_files, text_files
from calib_jax.evaluation.predictions.masks import ignoring, without_ignored
from calib_jax.evaluation.predictions.written_values import from_logarithms

PAIR = re.compile(r"(.+\.npy),(.+\.npy)")
ARCHIVES = (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")  # How zip files and pickles begin.
SPREADSHEETS = (".xlsx", ".xlsm", ".ods")  # These are zip files too.
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".7z")
INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def arrays(path: str | os.PathLike[str], extra: Collection[str] = (), say: Callable[[str], None] = lambda note: None,
           multilabel: bool = False, *, ignore_label: int | None = None, groups: str = "", form: str = "",
           unknown: bool = False) -> dict[str, np.ndarray]:
  """Reads the arrays of one file of predictions by name, and the arrays that ``extra`` names.

  One of them holds outputs and one labels. Columns such as ``logit_cat`` are joined into one array ``logit`` ``[N,
  K]``, and the ends of their names are ``classes``. Without ``multilabel`` all leading axes are flattened, and if
  there were several, "" is the place on the first of them, ``[N]``, unless ``groups`` names other groups. A file that
  cannot be read is a UserError, and one that holds what is wrong, or can be read in several ways, a FileError.
  """
  if pair := PAIR.fullmatch(str(path)):
    outputs, labels = map(read_npy, pair.groups())
    stem = pathlib.Path(pair[1]).stem.lower()
    name = next((alias for alias in (*headers.PROBS, *headers.LOGITS) if alias in stem), "scores")
    read = {name: outputs, "labels": labels}
  else:
    check_regular(path)
    suffix = pathlib.Path(path).suffix.lower()
    if suffix == ".npy":
      raise FileError(" holds one array: give two files as LOGITS.npy,LABELS.npy, with a comma and no space.")
    table = None
    if suffix in text_files.SEPARATORS:
      table = text_files.read_csv(path, extra, say, multilabel)
    elif suffix in (".parquet", ".pq"):
      table = parquet_files.read_parquet(path, extra, say, multilabel, unknown)
    elif suffix in (".jsonl", *logs.ENDINGS):
      with text_files.as_json():
        objects = text_files.objects_of_lines(path) if suffix == ".jsonl" else logs.objects_of(path)
        table = json_files.read_objects(objects, extra, say, multilabel, form, pathlib.Path(path).stem, unknown)
    if table is not None:
      return _joined(table, say, ignore_label, groups)
    if suffix != ".npz" and (suffix in SPREADSHEETS or not _begins(path, ARCHIVES)):
      compressed = " It is compressed, as its ending says: unpack it first." if suffix in COMPRESSED else ""
      raise FileError(": files of this ending are not read, but .npz, LOGITS.npy,LABELS.npy, .csv, .tsv, .jsonl "
                      f"(JSON lines, an object a row), .json, .eval and .parquet are.{compressed}")
    read = _npz(path, extra, say)
  if multilabel:
    return read
  classes = one_of(read, headers.CLASSES)
  return _rows(read, say, ignore_label, extra, groups, list(map(str, np.ravel(read[classes]))) if classes else ())


def _begins(path: str | os.PathLike[str], beginnings: Collection[bytes]) -> bool:
  try:
    with open(path, "rb") as file:
      return file.read(2) in beginnings
  except OSError as error:
    raise FileError(f" cannot be read ({error.strerror}).") from error


def _rows(arrays: dict[str, np.ndarray], say: Callable[[str], None], ignore_label: int | None,
          extra: Collection[str], groups: str, names: Collection[str] = ()) -> dict[str, np.ndarray]:
  """Returns arrays with flattened leading axes and no ignored rows; whole labels that are no ``names`` are integers."""
  name, label = outputs_and_labels(arrays)
  labels, shape = arrays[label], arrays[name].shape
  per_row = [key for key in (name, label, "features", *headers.NAMES, *extra) if key in arrays]
  if len(shape) > 2 and labels.shape == shape and _are_masks(labels):
    channel = shape[1] == 1 and len(shape) > 3
    raise FileError(f": {name} and {label} both have the shape {short(shape)}, as binary masks have, and the last axis "
                    f"of {name} must be that of the classes: save "
                    + (f"numpy.moveaxis({name}, 1, -1) and {label}[:, 0]." if channel else f"{name}[..., None]."))
  if len(shape) > 2:
    leading, count = shape[:-1], math.prod(shape[:-1])
    if labels.shape not in (leading, (*leading, 1), shape):
      if shape[1] == 1 and labels.shape in (shape, (shape[0], *shape[2:])):
        raise FileError(f": {name} of shape {short(shape)} are binary masks, whose one channel must be the last axis: "
                        f"save numpy.moveaxis({name}, 1, -1), and labels of shape {short((shape[0], *shape[2:]))}.")
      moved = (f" If the second axis of {name} is that of the classes, make it the last: numpy.moveaxis({name}, 1, -1)."
               if labels.shape == (shape[0], *shape[2:]) else "")
      raise FileError(f": {name} of shape {short(shape)} need labels of shape {short(leading)}, not "
                      f"{short(labels.shape)}.{moved}")
    sentence = ""
    if count > shape[0] and not groups:
      arrays[""], per_row = np.repeat(np.arange(shape[0]), count // shape[0]), [*per_row, ""]
      sentence = (f"; the rows of each of its {shape[0]:,} sequences or images (the first axis) depend on each other, "
                  "so they are one group, unless --groups names others")
    say(f": its {name} of shape {short(shape)} are read as {count:,} rows{sentence}.")
    for key in per_row:
      array = arrays[key]
      if array.shape[:len(leading)] == leading:
        if not array.flags.c_contiguous:
          capacity.check_read(f": {key}", array.nbytes)
        arrays[key] = array.reshape(count, *array.shape[len(leading):])
      elif key in extra and array.shape == shape[:1]:
        arrays[key] = np.repeat(array, count // max(len(array), 1))
    labels = arrays[label]
  count = arrays[name].shape[:1]
  if count == (labels.size,):
    arrays[label] = labels = _numbers(labels, names)
  if ignore_label is not None and labels.shape[:1] == count and labels.dtype.kind in "biufU":
    arrays |= without_ignored(arrays, per_row, label, ignore_label, say)
  return arrays


def _are_masks(labels: np.ndarray) -> bool:
  """Whether labels are 0 and 1, and not one-hot along the last axis."""
  return labels.dtype.kind in "biuf" and bool(np.isin(labels, (0, 1)).all()) and not (labels.sum(-1) == 1).all()


def _numbers(labels: np.ndarray, names: Collection[str]) -> np.ndarray:
  """Returns labels as texts if all are ``names`` of classes, and else as integers or bools if their texts are such."""
  is_number = labels.dtype.kind == "f"
  has_texts = labels.ndim == 1 and (labels.dtype.kind == "U" or (is_number and len(names) > 0))
  texts = list(map(str, labels.tolist())) if has_texts else []
  values = set(texts)
  if values and values <= set(names):
    return np.array(texts)
  if is_number:
    is_whole = (np.abs(labels) < 2**53).all() and (labels % 1 == 0).all()
    return labels.astype(np.int64) if is_whole else labels
  numbers = {text: whole(text) for text in values}
  if values and None not in numbers.values():
    return np.array([numbers[text] for text in texts], np.int64)
  return np.char.lower(labels) == "true" if values and {x.lower() for x in values} <= {"true", "false"} else labels


def whole(text: str) -> int | None:
  """Returns the whole number that a text such as "2" or "2.0" is, or None."""
  if INTEGER.fullmatch(text):
    return int(text)
  number = float(text) if NUMBER.fullmatch(text) else math.inf
  return int(number) if abs(number) < 2**53 and number.is_integer() else None


def _npz(path: str | os.PathLike[str], extra: Collection[str], say: Callable[[str], None]) -> dict[str, np.ndarray]:
  """Reads the arrays of an ``.npz`` that are used, once their shapes fit together."""
  with opened_npz(path) as archive:
    names = list(archive.members)
    if any(name.endswith("/data.pkl") for name in names):
      raise FileError(" is a pickle of PyTorch, which is not read because it could run code. "
                      + conversion(path, "torch", "torch.load({!r})"))
    outputs = headers.outputs_of_archive(names)
    has_classes = bool(outputs and set(headers.LABELS) & set(names))
    confidences, corrects = headers.record_names(names, extra)
    if corrects and not confidences and not set(headers.LABELS) & set(names):
      confidences = list(filter(None, [headers.lone_confidence(names, extra)]))
    if not has_classes and not (confidences and corrects):
      if names and not any(info.filename.endswith(".npy") for info in archive.members.values()):
        raise FileError(f" is a zip archive of {headers.listed(names)}: unpack it, and name the file in it.")
      raise FileError(f" must hold labels, and logits or probs; it holds {headers.listed(names)}: name them so, as in "
                      "numpy.savez(path, logits=logits, labels=labels), or of records confidence and correct"
                      f"{headers.lacking(names, extra)}.")
    headers.check_extra(extra, names)
    if has_classes:
      if confidences and corrects:
        headers.say_not_records(outputs, confidences[0], corrects[0], say)
      headers.outputs_of_archive(names, say)
      labels = [name for name in names if name.lower() in headers.LABELS and name not in extra]
    else:
      headers.say_records(confidences, corrects, say)
      outputs, labels = confidences[:1], corrects
    headers.say_weights((name for name in names if name not in extra), say)
    classes = [name for name in names if name in headers.CLASSES and name not in extra]
    wanted = [outputs[0], *labels, *classes, "kind", "features", "train_counts", *extra]
    claimed = archive.headers(wanted)
    shapes = {name: header.shape for name, header in claimed.items()}
    shape = shapes.get(outputs[0]) or (1,)
    rows, num_classes = math.prod(shape[:-1] or shape), max(shape[-1] if len(shape) > 1 else 2, 2)
    most = {**dict.fromkeys(labels, rows * num_classes), **dict.fromkeys(classes, num_classes), "kind": 1,
            "train_counts": num_classes, **dict.fromkeys(extra, rows)}
    for name, shape in shapes.items():
      if math.prod(shape) > most.get(name, math.inf):
        raise FileError(f": {name} of shape {short(shape)} does not fit {outputs[0]} of shape "
                        f"{short(shapes[outputs[0]])}.")
    read = archive.read(claimed)
  if not has_classes:
    values, name = read.pop(confidences[0]), confidences[0].lower()
    if name in headers.LOG_CONFIDENCES:
      values = from_logarithms(values, name, say)
    read[name if name in headers.CONFIDENCES else headers.CONFIDENCES[0]] = values
  for several, aliases in ((labels, headers.LABELS if has_classes else headers.CORRECT), (classes, headers.CLASSES)):
    _drop_all_but_one(read, several, aliases)
  return read


def _drop_all_but_one(read: dict[str, np.ndarray], names: Collection[str], aliases: Collection[str]) -> None:
  """Deletes all of ``names`` in ``read`` but the first of ``aliases``; a FileError unless they are equal."""
  for name in names[1:]:
    if not np.array_equal(read[name], read[names[0]]):
      raise FileError(f" holds {' and '.join(names)}, which differ, and only one of them can be the "
                      f"{aliases[0]}: give the others another name.")
  if names:
    values = [read.pop(name) for name in names]
    read[next(alias for alias in aliases if alias in map(str.lower, names))] = values[0]


def outputs_and_labels(arrays: Mapping[str, np.ndarray]) -> tuple[str, str]:
  """Returns the names of the outputs and the labels; for records, of the confidence and of what is correct."""
  name = one_of(arrays, headers.OUTPUTS)
  if name:
    return name, one_of(arrays, headers.LABELS)
  return one_of(arrays, headers.CONFIDENCES), one_of(arrays, headers.CORRECT)


def one_of(arrays: Mapping[str, np.ndarray], aliases: Collection[str]) -> str | None:
  """Returns the first of ``aliases`` that ``arrays`` has, or None."""
  return next((name for name in aliases if name in arrays), None)


def _joined(table: headers.FileTable, say: Callable[[str], None], ignore_label: int | None, groups: str
            ) -> dict[str, np.ndarray]:
  """Returns the arrays of a table; labels from 1 become labels from 0 where the columns are numbered from 1 too."""
  header, outputs, labels, others = table
  classes, aliases = header.classes, headers.CORRECT if header.kind in headers.CONFIDENCES else headers.LABELS
  if outputs.dtype.kind in "iu":
    outputs = outputs.astype(np.float64)
  if header.are_logarithms:
    outputs = from_logarithms(outputs.ravel(), header.outputs[0], say)
  names = () if header.from_1 else classes or ()
  labels = {name: _numbers(values, names) for name, values in labels.items()}
  if header.labels[0].lower() not in aliases:  # One column a class.
    return {header.kind: outputs} | others | {headers.LABELS[0]: np.stack(_alike(labels.values()), axis=1)} | (
      {"classes": np.array(classes)} if classes else {})
  _drop_all_but_one(labels, list(labels), aliases)
  read = _rows({header.kind: outputs} | labels | others, say, ignore_label,
               [name for name in others if name not in headers.NAMES], groups, names)
  name = one_of(read, aliases)
  values, outputs = read[name], read[header.kind]
  if header.from_1 and values.ndim == 1 and values.dtype.kind in "iu" and len(values):
    first, last = header.outputs[0], header.outputs[-1]
    if values.min() < 1 or values.max() > len(header.outputs):
      raise FileError(f": its columns are numbered from 1 ({short(first)} to {short(last)}), and its labels go "
                      f"from {values.min()} to {values.max()}: number both from 0, or both from 1."
                      f"{ignoring(values, 1, len(header.outputs))}")
    say(f": its columns are numbered from 1, so its labels are too: label 1 is {first}.")
    read[name] = values = values - values.dtype.type(1)
  if classes and len(classes) == 1:
    classes = _with_other(classes[0], values)
  names = [read.pop(name) for name in headers.NAMES if name in read]
  if names and not classes and aliases is headers.LABELS:
    classes = _by_row(values, names[0], max(2, *outputs.shape[1:]))
  return read | ({"classes": np.array(classes)} if classes else {})


def _alike(columns: Iterable[np.ndarray]) -> list[np.ndarray]:
  """Returns columns of labels of several types as texts, in which a missing one is empty."""
  columns = list(columns)
  return columns if all(x.dtype.kind != "U" for x in columns) else [x.astype(str) for x in columns]


def _with_other(positive: str, labels: np.ndarray) -> list[str]:
  """Returns the names of two classes; one of them has the only column of outputs."""
  others = sorted(set(labels.tolist()) - {positive}) if labels.dtype.kind == "U" else []
  if len(others) > 1:
    raise FileError(f": its one column is of {short(positive)}, and its labels are also {headers.listed(others)}: a "
                    "binary problem has two classes.")
  return [*(others or [f"not {positive}"]), positive]


def _by_row(labels: np.ndarray, names: np.ndarray, num_classes: int) -> list[str]:
  """Returns the names of the classes from a column that has the name of each row's label."""
  pairs = set(zip(labels.tolist(), map(str, names.tolist()), strict=True)) if labels.dtype.kind in "iu" else ()
  name_of_label = dict(pairs)
  if not pairs or len(pairs) != len(name_of_label) or len(set(name_of_label.values())) != len(name_of_label):
    raise FileError(": its column of names must have one name for each label, an integer, and no name twice.")
  return [name_of_label.get(k, str(k)) for k in range(num_classes)]
