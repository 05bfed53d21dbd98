"""Joins the rows of files of the same examples by their ids: places join only where a file has none."""

from collections.abc import Callable

import numpy as np

from calib_jax._system import capacity
from calib_jax._system.errors import FileError, short
from calib_jax.evaluation.predictions import masks
from calib_jax.evaluation.predictions.headers import IDS
from calib_jax.evaluation.predictions.keys import keys


class SameRows:
  """Brings the rows of files of the same examples, which are read one after another, into the order of the first.

  Each row needs an id of its own, a number or a text, in a column or an array called ``id``, ``example_id``,
  ``sample_id``, ``image_id``, ``question_id``, ``doc_id`` or ``custom_id``; in a log it is that of an object, with its
  question if it has several. 3.0 is the id 3.

  >>> import os, tempfile
  >>> from calib_jax import evaluation
  >>> same, folder = evaluation.SameRows(), tempfile.mkdtemp()
  >>> for ids in ([7, 8, 9], [9, 7, 8]):
  ...   path = os.path.join(folder, f"from_{ids[0]}.npz")
  ...   np.savez(path, probs=np.eye(3)[np.array(ids) - 7], labels=np.array(ids) - 7, id=ids)
  ...   evaluation.load(path, same=same).labels.tolist()
  [0, 1, 2]
  [0, 1, 2]

  Attributes:
    first: the path of the first file whose rows have ids, or of the first file.
    ids: its ids, texts ``[N]``; None before a file has ids.
  """

  def __init__(self):
    self.first, self.ids = "", None

  def joined(self, path: str, arrays: dict[str, np.ndarray], count: int, say: Callable[[str], None]
             ) -> dict[str, np.ndarray]:
    """Returns the arrays of a file, those by row ``[count, ...]``, joined by id with the rows of the files before it.

    Rows of other ids than the first file has are left out, which ``say`` says; a file that lacks some of them is a
    FileError. Where a file has no ids, or no id of the first, rows are taken in their order, which is said too.
    """
    name, ids = ids_of(arrays, count)
    if self.ids is None or ids is None:
      if self.ids is not None:
        say(f": its rows have no ids of their own, so that they are taken in the order of those of {self.first}.")
      elif self.first and ids is not None:
        say(f": the rows of {self.first} have no ids of their own, so that rows are taken in their order.")
      if ids is not None or not self.first:
        self.first, self.ids = str(path), ids
      return arrays
    if np.array_equal(ids, self.ids):
      return arrays
    place = {text: row for row, text in enumerate(ids.tolist())}
    rows = np.array([place.get(text, -1) for text in self.ids.tolist()])
    if (rows < 0).all():
      say(f": it has none of the ids of {self.first}, so that its rows are taken in their order.")
      return arrays
    if (rows < 0).any():
      raise FileError(f": it lacks {np.sum(rows < 0):,} of the {len(rows):,} ids of {self.first}, such as "
                      f"{short(str(self.ids[(rows < 0).argmax()]))}: leave these rows out of both files, so that all "
                      "have the same examples.")
    if len(rows) < count:
      say(f": {count - len(rows):,} of its {count:,} rows have an id that {self.first} does not have, and are left "
          "out.")
    if (np.diff(rows) < 0).any():
      say(f": its rows stand in another order than those of {self.first}: they are joined by {name}.")
    by_row = masks.names_by_row(arrays, count)
    capacity.check_read("", sum(arrays[key].nbytes for key in by_row))
    return arrays | {key: arrays[key][rows] for key in by_row}


def ids_of(arrays: dict[str, np.ndarray], count: int) -> tuple[str, np.ndarray | None]:
  """Returns the name of the ids of rows, and the ids as texts ``[N]``; None unless each row has one of its own.

  >>> ids_of({"id": np.array([3.0, 1.0])}, 2), ids_of({"id": np.array(["a", "a"])}, 2)
  (('id', array(['3', '1'], dtype='<U21')), ('id', None))
  """
  name = next((name for name in IDS if name in arrays), "")
  try:
    ids = keys(arrays[name], name, is_empty_missing=True).astype(str) if name else np.empty(0)
  except FileError:  # Some are missing.
    return name, None
  return name, ids if ids.shape == (count,) and len(set(ids.tolist())) == count else None
