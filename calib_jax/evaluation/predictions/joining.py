"""Joins sets of predictions by the names of their classes: places join only where a set has no names."""

from collections.abc import Callable, Mapping

import numpy as np

from calib_jax._checks import class_names
from calib_jax._system import capacity
from calib_jax._system.errors import UserError, printable
from calib_jax.evaluation.predictions.predictions import Predictions


def aligned(sets: Mapping[str, Predictions], say: Callable[[str], None] = lambda note: None) -> dict[str, Predictions]:
  """Returns sets, by the names that messages give them, whose classes have the order of the first that names them.

  Sets of other classes, of another number of them, or of records beside classes, are a UserError. ``say`` is called
  with a sentence for each set that names no classes while another does.
  """
  first = next((name for name, part in sets.items() if part.classes), None)
  joined = {}
  for name, part in sets.items():
    other = first if first and part.classes else next(iter(sets))
    check_alike(part, sets[other], (name, other))
    if first and not part.classes and not part.records:
      say(f"{name} names no classes, so they are taken in the order of those of {first}: the first is "
          f"{printable(sets[first].classes[0])}.")
    joined[name] = in_order(part, sets[first].classes, (name, first), say) if first else part
  return joined


def check_alike(part: Predictions, other: Predictions, names: tuple[str, str]) -> None:
  """Raises a UserError unless both sets are records, or have the same number of classes."""
  if part.records != other.records:
    kinds = ("records", "predictions of classes") if part.records else ("predictions of classes", "records")
    raise UserError(f"{names[0]} holds {kinds[0]} and {names[1]} {kinds[1]}, which are not measured in the same way.")
  if part.logits.shape[1] != other.logits.shape[1]:
    more = ""
    if part.classes and other.classes:
      alone = [name for name in (*part.classes, *other.classes) if (name in part.classes) != (name in other.classes)]
      more = f", and only one of them has {class_names.listed(alone)}"
    raise UserError(f"the predictions of {names[0]} have {part.logits.shape[1]} classes, those of {names[1]} "
                    f"{other.logits.shape[1]}{more}.")


def in_order(part: Predictions, classes: tuple[str, ...] | None, names: tuple[str, str],
             say: Callable[[str], None] = lambda note: None) -> Predictions:
  """Returns predictions with their classes in the order of ``classes``, which the set that ``names`` has second has.

  What names no classes, here or there, stays as it is. Other names are a UserError. A label that was read as a place
  among the columns of its own file goes with its column.
  """
  if not part.classes or not classes or part.classes == classes or part.of_label:
    return part
  try:
    places = np.array(class_names.places(part.classes, classes, names))
  except ValueError as error:
    raise UserError(str(error)) from None
  if np.array_equal(places, np.arange(len(places))):  # Of two classes, when one had no name.
    return part._replace(classes=classes)
  say(f"{names[0]} has its classes in another order than {names[1]}: they are joined by name.")
  capacity.check_read(f"{names[0]}", part.logits.nbytes + (0 if part.probs is None else part.probs.nbytes))
  labels = np.argsort(places).astype(part.labels.dtype)
  return part._replace(
    logits=part.logits[:, places], classes=classes, labels=part.labels if part.kind == "out_of_distribution" else
    labels[part.labels], probs=None if part.probs is None else part.probs[:, places],
    train_counts=None if part.train_counts is None else part.train_counts[places])


def aligned_labels(read: Callable[..., dict[str, Predictions]], wanted: Mapping[str, Predictions],
                   names: tuple[str, str], say: Callable[[str], None]) -> dict[str, Predictions]:
  """Returns multi-label predictions, which ``read(order=())`` reads, with the labels in the order of another file's.

  Other names are a UserError; labels without names, numbered from 0, are taken in their order, and ``say`` says so.
  """
  parts = read()
  own, others = ([label for label in x if label] for x in (parts, wanted))
  if own == others:
    return parts
  numbered = [x == list(map(str, range(len(x)))) for x in (own, others)]
  if len(own) == len(others) and any(numbered):
    without, named = names if numbered[0] else names[::-1]
    say(f"{without} names no labels, so they are taken in the order of those of {named}: the first is "
        f"{(others if numbered[0] else own)[0]}.")
    return {label: part for label, part in zip(("", *others), parts.values(), strict=True)}
  try:
    class_names.places(own, others, names)
  except ValueError as error:
    raise UserError(str(error).replace("the classes of", "the labels of", 1)) from None
  say(f"{names[0]} has its labels in another order than {names[1]}: they are joined by name.")
  return read(order=others)
