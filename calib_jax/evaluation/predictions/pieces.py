"""A file of predictions that is open, and its rows some at a time."""

from collections.abc import Callable, Iterator, Mapping
import contextlib
from typing import Any, NamedTuple

import numpy as np

from calib_jax._system.errors import FileError


class Rows(NamedTuple):
  """Some rows of a file.

  Attributes:
    outputs: ``[n, K]`` or ``[n]``.
    others: by name the ``n`` values of what else they hold.
    places: int ``[n, K]``, the place of each class in each row; None if all rows have the classes in one order.
  """

  outputs: np.ndarray
  others: Mapping[str, list[Any] | np.ndarray]
  places: np.ndarray | None = None


class Source(NamedTuple):
  """A file of predictions that is open.

  Attributes:
    kind: what its outputs are called, one of ``headers.OUTPUTS``, or of ``headers.CONFIDENCES`` for records.
    classes: the names of the classes, or of the positive one of a single column; None if it does not name them.
    rows: its rows, in order, some at a time.
    whole: arrays that are not by row, by name, such as ``classes``; only an ``.npz`` has them.
    is_mixed: whether rows have the classes in orders of their own, their ``places``.
    ragged: whether its lists have several lengths. Shorter ones are padded with -inf, options that a row does not have.
  """

  kind: str
  classes: list[str] | None
  rows: Iterator[Rows]
  whole: Mapping[str, np.ndarray] = {}
  ragged: bool = False
  is_mixed: bool = False


def of_first(say: Callable[[str], None], row: int) -> Callable[[str], None]:
  """What says how rows are read, of the first ones alone."""
  return (lambda note: None) if row else say


@contextlib.contextmanager
def from_row(row: int) -> Iterator[None]:
  """Adds to a FileError about rows, which counts from 0, where these begin."""
  try:
    yield
  except FileError as error:
    raise FileError(f", of the rows from {row:,} on{error}" if row else str(error)) from error
