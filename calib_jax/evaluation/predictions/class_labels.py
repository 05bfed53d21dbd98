"""The names of classes that a file has, and its labels as places among the classes."""

from collections.abc import Callable

import numpy as np

from calib_jax._system.errors import FileError, short
from calib_jax.evaluation.predictions import reading
from calib_jax.evaluation.predictions.masks import ignoring, numbering


def class_names(name: str, classes: np.ndarray, num_classes: int) -> tuple[str, ...]:
  """The names of the classes; a FileError unless they are as many different ones as there are classes."""
  if classes.size != num_classes or len(names := tuple(map(str, np.ravel(classes)))) != len(set(names)):
    raise FileError(f": {name} must be {num_classes} different names, one a class: got {classes.size}.")
  return names


def as_names(labels: np.ndarray, classes: tuple[str, ...] | None, are_numbers: bool, say: Callable[[str], None]
              ) -> np.ndarray:
  """Returns labels that are whole numbers as texts, where classes are called by these numbers.

  Where they may be places among the classes too, which names that ``are_numbers`` always may, that is a
  FileError.
  """
  if classes is None or labels.dtype.kind not in "iu" or classes == tuple(map(str, range(len(classes)))) or None in (
      numbers := [reading.whole(name) for name in classes]):
    return labels
  values, names = set(labels.ravel().tolist()), short(", ".join(classes))
  are_names, are_places = values <= set(numbers), values <= set(range(len(classes)))
  if are_places and (are_names or are_numbers):
    raise FileError(f": its classes are the numbers {names}, so its labels may be these numbers or places from 0: save "
                    "labels as texts if they are the names, and else classes by names that are no numbers.")
  if not are_names:
    return labels
  say(f": its classes are called {names}, and its labels are these names.")
  name_of = dict(zip(numbers, classes, strict=True))
  return np.array([name_of[x] for x in labels.ravel().tolist()]).reshape(labels.shape)


def class_labels(labels: np.ndarray, count: int, num_classes: int, classes: tuple[str, ...] | None  # noqa: C901
            ) -> np.ndarray:
  """Returns int32 labels ``[N]`` in [0, K) of integers, bools, one-hot rows or names of classes."""
  if labels.shape == (count, 1):
    labels = labels[:, 0]
  if labels.shape == (count, num_classes) and labels.dtype.kind in "biuf":
    one_hot = labels.astype(np.float32)
    if not (np.isin(one_hot, (0, 1)).all() and (one_hot.sum(1) == 1).all()):
      if (one_hot >= 0).all() and np.allclose(one_hot.sum(1), 1, atol=1e-3):
        raise FileError(f": labels of shape {labels.shape} are distributions over the classes, such as shares of "
                        "annotators, and one label a row is evaluated: save labels.argmax(1), for example. In Python, "
                        "losses.cross_entropy(logits, labels) takes distributions.")
      raise FileError(f": labels of shape {labels.shape} must be one-hot: a 1 and else zeros in each row. "
                      "If a row can have several labels, say --task=multilabel.")
    labels = one_hot.argmax(1)
  if labels.shape == (count,) and labels.dtype.kind == "f":  # Whole numbers are integers by now.
    if missing := np.isnan(labels).sum():
      raise FileError(f": labels must be integers, and {missing} of {count} are missing (NaN), the first in row "
                      f"{np.isnan(labels).argmax()}, counted from 0: leave these rows out.")
    row = next(row for row, label in enumerate(labels.tolist()) if not label.is_integer() or abs(label) >= 2**53)
    raise FileError(f": labels must be integers: that of row {row}, counted from 0, is {labels[row]}.")
  if labels.shape != (count,) or labels.dtype.kind not in "biuU" or (labels.dtype.kind == "b" and num_classes != 2):
    raise FileError(f": labels must be integers of shape [{count}], "
                    f"not {labels.dtype} of shape {labels.shape}.")
  if labels.dtype.kind == "b" and sorted(map(str.lower, classes or ())) == ["false", "true"]:
    labels = labels == (classes[1].lower() == "true")
  if labels.dtype.kind == "U":
    texts, places = labels.tolist(), {name: i for i, name in enumerate(classes or ())}
    unknown = [row for row, text in enumerate(texts) if text not in places]
    odd = [row for row in unknown if not reading.NUMBER.fullmatch(texts[row].strip())]
    if 0 < len(odd) < len(unknown):  # Such as an empty cell.
      raise FileError(f": {len(odd)} of the {count} labels are no integers, as the others are; the first is row "
                      f"{odd[0]}, counted from 0: {short(texts[odd[0]])}.")
    if classes is None and not odd:
      row = next((row for row, text in enumerate(texts) if reading.whole(text) is None), 0)
      raise FileError(f": labels must be integers, such as 2: that of row {row}, counted from 0, is "
                      f"{short(texts[row])}.")
    if classes is None:
      raise FileError(f": its labels are text, such as {short(texts[(odd or unknown)[0]])}: also save classes, "
                      f"the names of the {num_classes} classes in the order of the logits"
                      f"{', or name the column by the positive one, as prob_yes' if num_classes == 2 else ''}.")
    if unknown:
      raise FileError(f": no class is called {short(texts[unknown[0]])}, the label of row {unknown[0]}, counted "
                      f"from 0; the classes are {short(', '.join(classes))}.")
    labels = np.array([places[text] for text in texts])
  if labels.min() < 0 or labels.max() >= num_classes:
    raise FileError(f": labels must be in [0, {num_classes}): they go from {labels.min()} to {labels.max()}."
                    f"{numbering(labels, num_classes) or ignoring(labels, 0, num_classes - 1)}")
  return labels.astype(np.int32)
