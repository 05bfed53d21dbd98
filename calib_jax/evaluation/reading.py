"""Reads the arrays of prediction files: ``.npz``, a pair of ``.npy``, CSV and Parquet."""

from collections.abc import Collection, Mapping
import csv
import importlib.util
import os
import pathlib
import re

import numpy as np

from calib_jax import capacity
from calib_jax.errors import UserError, short
from calib_jax.files import check_regular, conversion, names_in_npz, read_npy, read_npz

# What arrays and columns may be called. Those of EITHER are probabilities if each row sums to 1, and else logits.
LOGITS = ("logits", "logit", "log_probs", "log_probabilities")
PROBS = ("probs", "probabilities", "probability", "y_prob", "y_proba", "prob", "softmax")
EITHER = ("predictions", "scores", "outputs", "y_score", "preds")
LABELS = ("labels", "label", "targets", "target", "y_true", "y")
CLASSES = ("classes", "class_names")
PAIR = re.compile(r"(.+\.npy),(.+\.npy)")


def arrays(path: str | os.PathLike, extra: Collection[str] = ()) -> dict[str, np.ndarray]:
  """Reads the arrays of one file of predictions.

  Args:
    path: an ``.npz``; ``LOGITS.npy,LABELS.npy``, which are mapped into memory; a ``.csv`` or ``.parquet`` whose columns
      are called like ``label``, ``logit_cat`` and ``logit_dog``; or ``.npz`` by any other name.
    extra: names to read in addition to those of scores, labels and classes.
  Returns: arrays by name. Columns such as ``logit_cat`` are joined into one array ``logit`` ``[N, K]``, and the ends of
    their names are ``classes``.
  Raises: UserError if the file cannot be read.
  """
  known = {*LOGITS, *PROBS, *EITHER, *LABELS, *CLASSES, *extra}
  if pair := PAIR.fullmatch(str(path)):
    scores, labels = map(read_npy, pair.groups())
    name = next((alias for alias in (*PROBS, *LOGITS) if alias in pathlib.Path(pair[1]).stem.lower()), "scores")
    return {name: scores, "labels": labels}
  check_regular(path)
  suffix = pathlib.Path(path).suffix.lower()
  if suffix == ".npy":
    raise UserError(f"{path} holds one array: give two files as LOGITS.npy,LABELS.npy, with a comma and no space.")
  if suffix == ".csv":
    return _joined(_csv(path, extra), path, extra)
  if suffix in (".parquet", ".pq"):
    return _joined(_parquet(path, known), path, extra)
  names = names_in_npz(path)
  if any(name.endswith("/data.pkl") for name in names):
    raise UserError(f"{path} is a pickle of PyTorch, which is not read because it could run code. "
                    + conversion(path, "torch", "torch.load({!r})"))
  found = read_npz(path, {*known, "kind", "features", "train_counts"})
  if not found.keys() & {*LOGITS, *PROBS, *EITHER} or not found.keys() & {*LABELS}:
    raise UserError(f"{path} must hold labels, and logits or probs; it holds {_listed(names)}: name them so, as in "
                    "numpy.savez(path, logits=logits, labels=labels).")
  return found


def one_of(found: Mapping[str, np.ndarray], aliases: Collection[str]) -> str | None:
  """Returns the first of ``aliases`` that ``found`` has, or None."""
  return next((name for name in aliases if name in found), None)


def _listed(names: Collection[str]) -> str:
  names = [short(name)[1:-1] for name in names][:20]
  return ", ".join(names) or "no arrays"


def _csv(path: str | os.PathLike, extra: Collection[str]) -> dict[str, np.ndarray]:
  """Reads the columns of a CSV file with a header. Columns of labels, and those of ``extra``, are text or integers."""
  try:
    with open(path, encoding="utf-8-sig", newline="") as file:
      header = [name.strip() for name in next(csv.reader(file), [])]
    texts = [i for i, name in enumerate(header) if name.lower() in LABELS or name in extra]
    numbers = [i for i, name in enumerate(header) if i not in texts and _score_column(name)]
    if not texts or not numbers:
      raise UserError(f"{path} must have a header with a column label, and columns such as logit_0 or prob_cat, one a "
                      f"class; its first line is {_listed(header)}.")
    options = {"delimiter": ",", "skiprows": 1, "quotechar": '"', "encoding": "utf-8-sig", "comments": None, "ndmin": 2}
    if os.path.getsize(path) > capacity.memory():
      raise UserError(f"{path} takes {capacity.size(os.path.getsize(path))}, more than this machine's memory.")
    values = np.loadtxt(path, usecols=numbers, dtype=np.float32, **options)
    text = np.loadtxt(path, usecols=texts, dtype=str, **options)
  except (ValueError, IndexError, csv.Error, OSError) as error:
    raise UserError(f"{path} cannot be read as CSV ({str(error).splitlines()[0][:200]}).") from error
  return {header[i]: values[:, j] for j, i in enumerate(numbers)} | {
    header[i]: _integers(text[:, j]) for j, i in enumerate(texts)}


def _integers(text: np.ndarray) -> np.ndarray:
  """Returns text as integers if all of it is integers."""
  try:
    return text.astype(np.int64)
  except (ValueError, OverflowError):
    return np.char.strip(text)


def _parquet(path: str | os.PathLike, known: Collection[str]) -> dict[str, np.ndarray]:
  """Reads the columns of a Parquet file that predictions may have. A column of lists becomes ``[N, K]``."""
  if not importlib.util.find_spec("pyarrow"):
    raise UserError(f"{path}: to read Parquet, pyarrow must be installed (pip install pyarrow); CSV works without.")
  import pyarrow
  from pyarrow import parquet

  try:
    file = parquet.ParquetFile(path)
    names = file.schema_arrow.names
    wanted = [name for name in names if name in known or name.lower() in LABELS or _score_column(name)]
    claimed = sum(group.total_byte_size for group in map(file.metadata.row_group, range(file.num_row_groups)))
    if not wanted or claimed > capacity.memory():
      raise UserError(f"{path} must have columns label and logits, and fit in memory; it has {_listed(names)}.")
    table = file.read(columns=wanted)
    columns = {}
    for name in wanted:
      column = table[name].combine_chunks()
      lists = pyarrow.types.is_list(column.type) or pyarrow.types.is_fixed_size_list(column.type)
      columns[name] = np.array(column.to_pylist()) if lists else column.to_numpy(zero_copy_only=False)
    return {name: x.astype(str) if x.dtype == object else x for name, x in columns.items()}
  except (pyarrow.ArrowException, ValueError, TypeError, OSError, MemoryError) as error:
    reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
    raise UserError(f"{path} cannot be read as Parquet ({reason}).") from error


def _score_column(name: str) -> tuple[str, str] | None:
  """Returns the kind of scores and the class of a column such as ``logit_cat``, or None."""
  aliases = "|".join(sorted((*LOGITS, *PROBS, *EITHER), key=len, reverse=True))
  match = re.fullmatch(rf"({aliases})(?:[_ .:\[-]?(.*?)\]?)", name.strip(), re.IGNORECASE)
  return (match[1].lower(), match[2]) if match else None


def _joined(columns: Mapping[str, np.ndarray], path: str | os.PathLike, extra: Collection[str]
            ) -> dict[str, np.ndarray]:
  """Joins the columns of each kind of scores, in the order of the classes if they are numbers and else of the file."""
  found: dict[str, np.ndarray] = {}
  by_kind: dict[str, dict[str, np.ndarray]] = {}
  for name, column in columns.items():
    place = _score_column(name)
    if name in extra:
      found[name] = column
    elif name.lower() in LABELS:
      found[name.lower()] = column
    elif place and (column.ndim == 2 or not place[1]):
      found[place[0]] = column
    elif place:
      by_kind.setdefault(place[0], {})[place[1]] = column
  for kind, classes in by_kind.items():
    numbered = all(re.fullmatch(r"\d+", name, re.ASCII) for name in classes)
    names = sorted(classes, key=int) if numbered else list(classes)
    found[kind] = np.stack([classes[name] for name in names], axis=1)
    if not numbered:
      found["classes"] = np.array(names)
  if not found.keys() & {*LABELS} or not found.keys() & {*LOGITS, *PROBS, *EITHER}:
    raise UserError(f"{path} must have a column label, and columns such as logit_0 or prob_cat, one a class; "
                    f"it has {_listed(columns)}.")
  return found
