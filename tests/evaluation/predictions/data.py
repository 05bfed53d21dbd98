"""Predictions of twelve examples, and files of every kind that hold them."""

import csv
import json

import numpy as np
import pytest

from calib_jax import evaluation

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(12, 3)).astype(np.float32)
LABELS = np.arange(12) % 3
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
NAMES = np.array(["cat", "dog", "eel"])
TABLES = ["csv", "tsv", "jsonl", "parquet"]


def written(path, columns):
  """Writes arrays by name, or columns given as pairs because names may repeat, by the ending of the path."""
  pairs = list(columns.items() if isinstance(columns, dict) else columns)
  names, values = zip(*pairs, strict=True)
  if path.suffix in (".csv", ".tsv"):
    separator = {".csv": ",", ".tsv": "\t"}[path.suffix]
    with path.open("w", encoding="utf-8", newline="") as file:
      csv.writer(file, delimiter=separator).writerows([names, *zip(*values, strict=True)])
  elif path.suffix in (".jsonl", ".json"):
    lists = [column if isinstance(column, list) else np.asarray(column).tolist() for column in values]
    rows = (dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True))
    path.write_text("\n\n".join(map(json.dumps, rows)) if path.suffix == ".jsonl" else
                    json.dumps(dict(zip(names, lists, strict=True))))
  elif path.suffix == ".npz":
    np.savez(path, **dict(pairs))
  else:
    values = [column.tolist() if getattr(column, "ndim", 1) > 1 else column for column in values]
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow, which is optional.")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_arrays(list(map(pyarrow.array, values)), list(names)), path)
  return path


def load(folder, columns, suffix="npz", **options):
  """Writes a file as ``written`` does, and returns what is loaded and what is said of it."""
  notes = []
  return evaluation.load(written(folder / f"p.{suffix}", columns), say=notes.append, **options), " ".join(notes)


def columns_of(prefix, outputs, names=(0, 1, 2)):
  """Returns a column of outputs for each class; an ``.npz`` has one array of them all."""
  return [(f"{prefix}_{name}", column) for name, column in zip(names, outputs.T, strict=False)]


def assert_same(loaded, logits=LOGITS, labels=LABELS, classes=None):
  np.testing.assert_allclose(loaded.logits, logits, rtol=1e-6)
  np.testing.assert_array_equal(loaded.labels, labels)
  assert (loaded.logits.dtype, loaded.labels.dtype) == (np.float32, np.int32)
  assert loaded.classes == (classes if classes is None else tuple(map(str, classes)))
