"""The names of the classes where each row has its own: lists beside its outputs, or objects of numbers by name."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np

from calib_jax._system.errors import FileError, short
from calib_jax.evaluation.predictions.headers import NUMBER, OPTIONS, FileTable


def options_of(lists: Collection[str], outputs: Sequence[str], extra: Collection[str] = ()) -> str | None:
  """Returns the column with the names of the classes of each row, beside a list of outputs, if there is one."""
  return next((name for name in OPTIONS if name in lists and name not in extra and outputs[0] in lists), None)


def classes_of(options: Iterable[Sequence[str] | None]) -> tuple[list[str] | None, bool]:
  """Returns the names of the classes in the order of the first row, and whether other rows have other orders.

  They are None if there are no rows, or rows have other names. All rows are taken.

  >>> classes_of([["a", "b"], ["b", "a"]]), classes_of([["a", "b"], ["b", "c"]])
  ((['a', 'b'], True), (None, False))
  """
  options, is_mixed = iter(options), False
  first = next(options, None)
  names = list(map(str, first)) if isinstance(first, list) else None
  wanted = sorted(names or ())
  for row in options:
    if names and row != first:
      is_mixed = isinstance(row, list) and sorted(map(str, row)) == wanted
      names = names if is_mixed else None
  return names, is_mixed


def say_classes(classes: Sequence[str] | None, is_mixed: bool, num_classes: int, say: Callable[[str], None]) -> None:
  """Says that rows are joined by name; a FileError unless there are as many different names as there are classes."""
  if classes and not len(classes) == len(set(classes)) == num_classes:
    raise FileError(f": the classes of a row must be {num_classes} different names: got {short(', '.join(classes))}.")
  if is_mixed:
    say(": its rows have their classes in several orders, and are joined by name.")


def places_of(options: Sequence[Sequence[str]], classes: Sequence[str]) -> np.ndarray:
  """Returns the place of each of the ``classes`` among the options of each row, int ``[N, K]``.

  >>> places_of([["a", "b", "c"], ["c", "a", "b"]], ["a", "b", "c"]).tolist()
  [[0, 1, 2], [1, 2, 0]]
  """
  place = {name: k for k, name in enumerate(classes)}
  return np.argsort([[place[str(name)] for name in row] for row in options], axis=1)


def with_options(table: FileTable, options: Sequence[Sequence[str]], say: Callable[[str], None], multilabel: bool
                 ) -> FileTable:
  """Returns a table with the names of the options of each row: its classes or, where they differ by row, its places.

  Rows whose classes have other orders than the first get its order. Where the names differ, labels that are texts are
  places among the options of their own row, such as a question's.
  """
  header = table.header
  classes, is_mixed = classes_of(options)
  say_classes(classes, is_mixed, table.outputs.shape[-1], say)
  if classes and is_mixed:
    places = places_of(options, classes)
    table = table._replace(outputs=np.take_along_axis(table.outputs, places, 1), labels={
      name: _in_order(values, places, classes, name) for name, values in table.labels.items()})
  if classes:
    return table._replace(header=header._replace(classes=classes))
  if multilabel:
    raise FileError(": the names of the labels must be the same in all rows.")
  labels = {}
  for name, values in table.labels.items():
    labels[name] = values
    if values.dtype.kind == "U" and values.ndim == 1:
      rows = [list(map(str, names)) for names in options]
      for row, (text, names) in enumerate(zip(values.tolist(), rows, strict=True)):
        if names.count(text) != 1:
          raise FileError(f": the label of row {row}, counted from 0, is {short(text)}, and must be one of the row's "
                          f"own options, {short(', '.join(names))}.")
      say(": the options of its rows differ, so that each label is a place among those of its own row.")
      labels[name] = np.array([names.index(text) for text, names in zip(values.tolist(), rows, strict=True)])
  return table._replace(labels=labels)


def _in_order(labels: np.ndarray, places: np.ndarray, classes: Sequence[str], name: str) -> np.ndarray:
  """Returns the labels of rows that have the ``classes`` at ``places``, numbers as names, and columns in their order.

  A number is a place in its own row, or a name if all of them are; where it may be both, that is a FileError.
  """
  if labels.shape == places.shape:
    return np.take_along_axis(labels, places, axis=1)
  if labels.size == len(places):
    labels = labels.reshape(-1)
  are_verdicts = labels.dtype.kind == "b" and {x.lower() for x in classes} == {"false", "true"}
  if labels.ndim > 1 or are_verdicts:
    return labels
  if labels.dtype.kind == "b" or (labels.dtype.kind == "f" and (labels % 1 == 0).all()):
    labels = labels.astype(np.int64)
  texts = list(map(str, labels.tolist()))
  is_place = [bool(NUMBER.fullmatch(text)) and int(text) < len(classes) for text in texts]
  if set(texts) <= set(classes):
    if labels.dtype.kind != "U" and all(is_place):
      raise FileError(f": {short(name)} may be names of classes or places in each row: save them as texts if they are "
                      "names, and else call the classes by names that are no numbers.")
    return np.array(texts)
  class_at = np.argsort(places, axis=1)
  return np.array([classes[class_at[row, int(text)]] if is_place[row] else text for row, text in enumerate(texts)])


def by_name(rows: Sequence[Mapping[str, float]], names: Sequence[str] = ()) -> tuple[np.ndarray, list[str]]:
  """Returns numbers by name as ``[N, K]``, -inf for a class that the row does not have; and the names.

  They are ``names``, or by default all that the rows have.
  """
  names = list(names or dict.fromkeys(name for row in rows for name in row))
  place = {name: k for k, name in enumerate(names)}
  array = np.full((len(rows), len(names)), -np.inf)
  for i, row in enumerate(rows):
    for name, value in row.items():
      if isinstance(value, bool) or not isinstance(value, int | float):
        raise FileError(f": row {i}, counted from 0, must hold a number for {short(name)}: got {short(value)}.")
      array[i, place[name]] = value
  return array, names
