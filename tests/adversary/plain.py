"""A plain reading of predictions, by numpy, csv and pyarrow, which accepted predictions must agree with."""

from collections.abc import Sequence
import contextlib
import csv
import io
import json
import re
import tokenize
import zipfile

import numpy as np

from calib_jax import evaluation
from calib_jax.predictions.headers import CLASSES, EITHER, LABELS, LOGITS, PROBS

SCORES = (*LOGITS, *PROBS, *EITHER)
TINY = np.finfo(np.float32).tiny
Columns = list[tuple[str, np.ndarray]]


class Unclear(Exception):
  """The file has no single reading."""


def _as_logits(name: str, scores: np.ndarray) -> list[tuple[np.ndarray, bool]]:
  """Returns the readings of an array of scores, each with whether it must have been said."""
  scores = np.asarray(scores, np.float64)
  if scores.ndim == 1 or scores.shape[1] == 1:
    z = scores.ravel()
    raw, ps = np.stack([0 * z, z], 1), np.stack([1 - z, z], 1)
  else:
    raw = ps = scores
  readings = [] if name in PROBS else [(raw, name in EITHER)]
  if ps.min() >= 0 and ps.max() <= 1:
    readings.append((np.log(np.maximum(ps.astype(np.float32), TINY)), name not in PROBS))
  return readings


def _as_labels(labels: np.ndarray, num_classes: int, classes: Sequence[str] | None) -> np.ndarray:
  labels = np.asarray(labels)
  if labels.ndim == 2 and labels.shape[1] == 1:
    labels = labels[:, 0]
  if labels.ndim == 2:
    return labels.argmax(1)
  if labels.dtype.kind in "US":
    if classes is not None and set(map(str, labels)) <= set(classes):
      return np.array([list(classes).index(str(x)) for x in labels])
    labels = labels.astype(np.float64)
  if not all(int(x) == x and 0 <= int(x) < num_classes for x in labels.tolist()):
    raise Unclear(f"labels {labels[:4]}")
  return labels.astype(np.int64)


def silent(columns: Columns, value: evaluation.Predictions, said: str) -> str:
  """Returns how accepted predictions differ from every plain reading of the file's arrays, or ""."""
  names = [name for name, _ in columns]
  scores = [(name, x) for name, x in columns if name in SCORES]
  labels = [(name, x) for name, x in columns if name in LABELS]
  classes = next((tuple(map(str, np.ravel(x))) for name, x in columns if name in CLASSES), None)
  different = len({np.asarray(x).tobytes() for _, x in labels})  # Labels that stand there twice are of no account.
  twice = len(names) != len(set(names)) or different > 1 or len(scores) > 1
  for name, x in scores:
    for logits, must_say in _as_logits(name, x):
      for _, y in labels:
        if (logits.shape == value.logits.shape and np.allclose(value.logits, logits, rtol=1e-6, atol=1e-6)
            and np.array_equal(_as_labels(y, logits.shape[1], classes), value.labels)):
          return "one of several readings was chosen in silence" if (twice or must_say) and not said.strip() else ""
  return "the numbers are those of no plain reading of the file"


def npz(content: bytes) -> Columns:
  """Reads the arrays of an archive that are whole, with those that stand there twice."""
  columns: Columns = []
  with zipfile.ZipFile(io.BytesIO(content)) as archive:
    for info in archive.infolist():
      if (name := info.filename.removesuffix(".npy")) in (*SCORES, *LABELS, *CLASSES):
        # Scores that are not used, such as probs beside logits, are not read, so that damage to them does not matter.
        with contextlib.suppress(ValueError, zipfile.BadZipFile, tokenize.TokenError):
          columns.append((name, np.lib.format.read_array(io.BytesIO(archive.read(info)))))
  return columns


def _joined(columns: Columns) -> Columns:
  """Joins columns such as ``logit_0``. Raises: Unclear if they have no single order."""
  pattern = re.compile(rf"({'|'.join(sorted(SCORES, key=len, reverse=True))})(?:[_ .:\[-]?(.*?)\]?)", re.IGNORECASE)
  found: Columns = []
  kinds: dict[str, Columns] = {}
  for name, column in columns:
    name = name.strip()
    match = pattern.fullmatch(name)
    if name.lower() in LABELS:
      found.append((name.lower(), column))
    elif match and (np.ndim(column) == 2 or not match[2]):
      found.append((match[1].lower(), column))
    elif match:
      kinds.setdefault(match[1].lower(), []).append((match[2], column))
  for kind, members in kinds.items():
    names = [name for name, _ in members]
    if all(re.fullmatch(r"\d+", name, re.ASCII) for name in names):
      members = sorted(members, key=lambda pair: int(pair[0]))
      numbers = [int(name) for name, _ in members]
      if numbers not in (list(range(len(names))), list(range(1, len(names) + 1))):
        raise Unclear(f"{kind} of {numbers}")
    else:
      if len({name.lower() for name in names}) < len(names) or any(name.isdigit() for name in names):
        raise Unclear(f"{kind} of {names}")
      found.append(("classes", np.array(names)))
    found.append((kind, np.stack([x for _, x in members], 1)))
  return found


def csv_file(content: bytes) -> Columns:
  """Reads a CSV file whose rows are all as long as its header."""
  rows = [row for row in csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")) if row]
  head, *body = rows
  if any(len(row) != len(head) for row in body):
    raise Unclear("a row is not as long as the header")
  columns: Columns = []
  for i, name in enumerate(head):
    text = [row[i].strip() for row in body]
    if name.strip().lower() in LABELS:
      whole = all(re.fullmatch(r"[+-]?\d+", cell, re.ASCII) for cell in text)
      columns.append((name, np.array([int(cell) for cell in text] if whole else text)))
    elif any(name.strip().lower().startswith(alias) for alias in SCORES):
      with contextlib.suppress(ValueError):  # Scores that are not used are not read.
        columns.append((name, np.array([float(cell) for cell in text], np.float64)))
  return _joined(columns)


def json_lines(content: bytes) -> Columns:
  """Reads JSON lines whose objects have the keys of the first."""
  rows = [json.loads(line) for line in io.StringIO(content.decode("utf-8-sig"), newline="") if line.strip()]
  columns: Columns = []
  for name in rows[0]:
    if name.lower() in LABELS or any(name.lower().startswith(alias) for alias in SCORES):
      with contextlib.suppress(ValueError, KeyError):  # Scores that are not used are not read.
        columns.append((name, np.array([row[name] for row in rows])))
  return _joined(columns)


def parquet(content: bytes) -> Columns:
  """Reads a Parquet file, by way of Python's own numbers."""
  import pyarrow.parquet

  columns: Columns = []
  for name in dict.fromkeys(pyarrow.parquet.read_schema(io.BytesIO(content)).names):
    if name.lower() in LABELS or any(name.lower().startswith(alias) for alias in SCORES):
      with contextlib.suppress(OSError):  # Of a damaged file, columns that are not used are not read.
        for column in pyarrow.parquet.ParquetFile(io.BytesIO(content)).read(columns=[name]).columns:
          if column.null_count:
            raise Unclear(f"{name} has nulls")
          columns.append((name, np.array(column.to_pylist())))
  return _joined(columns)
