"""Loads predictions of any framework: what the arrays of a file hold is checked, and becomes ``Predictions``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import os
import pathlib

import numpy as np

from calib_jax._system.errors import FileError, about, short
from calib_jax.evaluation.predictions import covariates, headers, reading
from calib_jax.evaluation.predictions.class_labels import as_names, class_labels, class_names
from calib_jax.evaluation.predictions.judged import known_rows
from calib_jax.evaluation.predictions.keys import keys
from calib_jax.evaluation.predictions.logits import as_logits, check_labels, is_float, native
from calib_jax.evaluation.predictions.masks import known_labels, with_credits_split, without_weight_0
from calib_jax.evaluation.predictions.predictions import KINDS, Predictions, Subgroups
from calib_jax.evaluation.predictions.row_ids import SameRows
from calib_jax.evaluation.predictions.text_files import SEPARATORS
from calib_jax.evaluation.predictions.written_values import verdicts

MOST_SUBGROUPS = 100


def load(path: str | os.PathLike[str], *, groups: str = "", by: Sequence[str] = (), weights: str = "",
         logits: bool = False, percent: bool = False, ignore_label: int | None = None, form: str = "",
         columns: Sequence[str] = (), judged: str = "", same: SameRows | None = None,
         say: Callable[[str], None] = lambda note: None) -> Predictions:
  """Reads predictions of any framework, without pickle.

  Args:
    path: an ``.npz``, a pair ``LOGITS.npy,LABELS.npy``, a ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet`` with labels,
      and logits or probs, or with records, a ``confidence`` in [0, 1] and whether an answer was ``correct``, or its
      credit between 0 and 1; ``headers`` lists other names of the arrays. Scores are float16 to float64 ``[N, K]``,
      or one column ``[N]`` of a binary problem: the probability or log-odds of class 1, the positive one. With more
      axes, such as ``[B, T, K]`` of tokens or ``[B, H, W, K]`` of pixels, they are flattened, and the rows of each
      sequence or image are one group unless ``groups`` names others. Labels are whole numbers, bools, one-hot, or
      strings where the file names its ``classes``. A logit of -inf is a class that the row does not have. Logits are
      the logarithms of ``probs``, with zeros replaced by the smallest normal float32; where rounding has changed the
      sums of ``probs``, rows are divided by them.
    groups: the name of an array ``[N]`` whose equal values mark examples that belong together; "" for none.
    by: the names of arrays ``[N]`` whose equal values mark the subgroups that are reported one by one, such as tasks;
      where outputs have more axes, also ``[B]``.
    weights: the name of an array ``[N]`` of finite numbers of at least 0, the weights of the examples, whose
      ratios alone matter; rows of weight 0 are left out. "" for none.
    logits: whether scores are logits also if they look like probabilities.
    percent: whether scores are percentages, from 0 to 100.
    ignore_label: the label of rows that are not scored, such as -100, which are left out; None to leave out none.
    columns: the names of arrays ``[N]`` of numbers or texts that ``covariate_temperature_scaling`` takes.
    judged: the name of an array ``[N]`` of a judge's verdicts on all records; where ``correct``, a person's, is
      missing, a record counts for the accuracy by the judge alone. "" for none.
    same: joins the rows by id with those of the files that were read with it before; None for the file's order.
    form: the form of a log, one of ``logs.FORMS``, or ``"table"``, where its keys fit several; "" to tell by the keys.
    say: is called with a sentence for each choice between readings of the file.

  Returns:
    The predictions.

  Raises:
    UserError: if the file cannot be read, or an array is missing or has a wrong shape, dtype or value.
  """
  is_csv = pathlib.Path(path).suffix.lower() in SEPARATORS  # Where an empty cell is nothing.
  with _reading(path, say) as note:
    arrays = reading.arrays(path, _extra(groups, (*by, *columns, judged), weights, same), note,
                            ignore_label=ignore_label, groups=groups, form=form, unknown=bool(judged))
    name, label = reading.outputs_and_labels(arrays)
    if same:
      arrays = same.joined(path, arrays, len(arrays[name]), note)
    weights = without_weight_0(arrays, name, weights, note) if weights else None
    are_records = name in headers.CONFIDENCES
    answers, of_judge = None, None
    if judged and not are_records:
      raise FileError(f": a judge's verdicts are of records, confidence and correct, and it holds {name} of classes.")
    if judged:
      of_judge = known_rows(arrays, label, judged, _groups(arrays, groups, len(arrays[name]), is_csv), note)
    if are_records:
      arrays[label] = verdicts(arrays[label], label, note)
      if arrays[label].size == len(arrays[name]):
        weights, answers = with_credits_split(arrays, label, weights, note)
      _check_records(arrays, name, label)
    outputs, labels = arrays[name], arrays[label]
    logits, probs = as_logits(name, outputs, note, logits, percent)
    (count, num_classes), kind = logits.shape, _kind(arrays)
    classes = None if are_records else reading.one_of(arrays, headers.CLASSES)
    are_numbers = bool(classes) and arrays[classes].dtype.kind in "iuf"
    classes = class_names(classes, arrays[classes], num_classes) if classes else None
    labels = class_labels(as_names(labels, classes, are_numbers, note), count, num_classes, classes)
    if kind != "out_of_distribution":
      check_labels(logits, labels)
    if outputs.size == len(outputs) and not are_records:
      note(f": its one column of {name} is of class {classes[1] if classes else 1}, the positive one.")
    groups_of = _groups(arrays, groups, count, is_csv) if answers is None or groups else answers
    return Predictions(logits, labels, kind, _features(arrays.get("features"), count), classes, groups_of,
                       _train_counts(arrays.get("train_counts"), num_classes), probs, records=are_records,
                       subgroups=_subgroups(arrays, by, count, is_csv), weights=weights,
                       covariates=covariates.read(arrays, columns, count), judged=of_judge)


def load_labels(path: str | os.PathLike[str], *, groups: str = "", by: Sequence[str] = (), weights: str = "",
                logits: bool = False, percent: bool = False, order: Sequence[str] = (), same: SameRows | None = None,
                say: Callable[[str], None] = lambda note: None) -> dict[str, Predictions]:
  """Reads multi-label predictions: each of L labels is a binary problem.

  Args:
    path: a file as ``load`` reads it, of scores ``[N, L]``, the probability or log-odds of each label, and labels
      ``[N, L]``, 1 where an example has the label; a table has columns such as ``prob_cat`` and ``label_cat``. A label
      that is not known is NaN, -1 or an empty cell, and its pair does not count.
    groups: as in ``load``.
    by: as in ``load``.
    weights: as in ``load``, of the examples.
    logits: as in ``load``.
    percent: as in ``load``.
    order: the names of all labels in the order that the pairs of an example are to have; none for the file's.
    same: as in ``load``.
    say: as in ``load``.

  Returns:
    The predictions of all pairs of an example and a label under "", where the pairs of an example are one group, and
    the pairs of each label under its name. Class 1 has the label.

  Raises:
    UserError: as ``load``.
  """
  is_csv = pathlib.Path(path).suffix.lower() in SEPARATORS
  with _reading(path, say) as note:
    arrays = reading.arrays(path, _extra(groups, by, weights, same), note, multilabel=True)
    name, label = reading.outputs_and_labels(arrays)
    if same:
      arrays = same.joined(path, arrays, len(arrays[name]), note)
    weights = without_weight_0(arrays, name, weights, note) if weights else None
    outputs, labels = arrays[name], arrays[label]
    labels, is_known = known_labels(labels, label, note)
    if outputs.ndim != 2 or labels.shape != outputs.shape or not np.isin(labels, (0, 1)).all():
      raise FileError(f": multi-label predictions have {name} [N, L] and labels [N, L] of 0 and 1: got "
                      f"{outputs.dtype} of shape {outputs.shape} and {arrays[label].dtype} of shape {labels.shape}.")
    (count, num_labels), named = outputs.shape, reading.one_of(arrays, headers.CLASSES)
    names = class_names(named, arrays[named], num_labels) if named else tuple(map(str, range(num_labels)))
    if "" in names:
      raise FileError(f": {named} must name every label: that of place {names.index('')}, counted from 0, is empty.")
    if order:
      places = np.array([names.index(wanted) for wanted in order])
      outputs, labels, is_known, names = outputs[:, places], labels[:, places], is_known[:, places], tuple(order)
    pairs, probs = as_logits(name, outputs.reshape(-1), note, logits, percent)
    groups_of, subgroups = _groups(arrays, groups, count, is_csv), _subgroups(arrays, by, count, is_csv)
    row, kind = np.repeat(np.arange(count), num_labels), _kind(arrays)

    def part(pairs_of, groups_of, classes):  # Of the places of pairs; those with a label are used.
      used = pairs_of[is_known.ravel()[pairs_of]]
      rows = row[used]
      return Predictions(
        pairs[used], labels.ravel()[used].astype(np.int32), kind, classes=classes, of_label=True,
        groups=None if groups_of is None else groups_of[rows], probs=None if probs is None else probs[used],
        subgroups=subgroups and {key: x._replace(number=x.number[rows]) for key, x in subgroups.items()},
        weights=None if weights is None else weights[rows])

    every = np.arange(count * num_labels)
    members = np.arange(count, dtype=np.int32) if groups_of is None else groups_of
    parts = {"": part(every, members, ("absent", "present"))}
    for k, own in enumerate(names):
      if not is_known[:, k].any():
        note(f": the label {own} is missing in every row, so that it is left out.")
        continue
      parts[own] = part(every[k::num_labels], groups_of, (f"not {own}", own))
    return parts


@contextlib.contextmanager
def _reading(path: str | os.PathLike[str], say: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
  """Adds the path of a file to errors that are raised within, and to the sentences of the function that it yields."""
  with about(path):
    yield lambda text: say(f"{path}{text}")


def _check_records(arrays: Mapping[str, np.ndarray], name: str, label: str) -> None:
  """Raises a FileError unless each record has one confidence, and is either right or wrong."""
  confidence, correct = arrays[name], arrays[label]
  if confidence.size != len(confidence) or correct.size != len(confidence):
    raise FileError(f": records have one {name} and one {label} in each row: their shapes are "
                    f"{short(confidence.shape)} and {short(correct.shape)}.")
  is_binary = np.isin(correct, (0, 1) if correct.dtype.kind in "biuf" else ("0", "1", "0.0", "1.0"))
  if not is_binary.all():
    row = int(is_binary.ravel().argmin())
    raise FileError(f": {label} must be 0 or 1, false or true, or a credit between: that of row {row}, counted from 0, "
                    f"is {short(correct.ravel()[row].item())}.")
  if (kind := _kind(arrays)) == "out_of_distribution":
    raise FileError(f": its kind is {kind}, which records cannot be: no class is predicted.")


def _kind(arrays: Mapping[str, np.ndarray]) -> str:
  """Returns how the examples relate to the training data."""
  kind = str(arrays.get("kind", "in_distribution"))
  if kind not in KINDS:
    raise FileError(f": kind must be one of {', '.join(KINDS)}: got {short(kind)}.")
  return kind


def _features(features: np.ndarray | None, count: int) -> np.ndarray | None:
  """Returns features ``[N, D]``, or None without any."""
  if features is None:
    return None
  if features.ndim != 2 or len(features) != count or not is_float(features.dtype):
    raise FileError(f": features must be floats of shape [{count}, D], not {features.dtype} of shape "
                    f"{features.shape}.")
  return native("features", features)


def _train_counts(counts: np.ndarray | None, num_classes: int) -> np.ndarray | None:
  """Returns the numbers of training examples of the classes as int64 ``[K]``, or None without any."""
  if counts is None:
    return None
  if counts.shape != (num_classes,) or counts.dtype.kind not in "iu" or (
      counts.min() < 0 or counts.max() >= 2**63):
    raise FileError(f": train_counts must be {num_classes} integers of at least 0, the number of training "
                    f"examples of each class: got {counts.dtype} of shape {counts.shape}.")
  return counts.astype(np.int64)


def _groups(arrays: Mapping[str, np.ndarray], name: str, count: int, is_csv: bool) -> np.ndarray | None:
  """Returns an integer for each example, equal for examples of the same group; None without any groups."""
  if not name and name not in arrays:
    return None
  return _numbered(arrays, name, count, "groups", is_csv)[1]


def _numbered(arrays: Mapping[str, np.ndarray], name: str, count: int, what: str, is_csv: bool
              ) -> tuple[np.ndarray, np.ndarray]:
  """Returns the different values of an array of integers or texts, and for each example the place of its value."""
  if name not in arrays or arrays[name].shape != (count,) or arrays[name].dtype.kind not in "biufU":
    actual = f"{arrays[name].dtype} of shape {arrays[name].shape}" if name in arrays else "nothing of that name"
    raise FileError(f": the {what} {short(name)} must be {count} integers or texts: it holds {actual}.")
  values, number = np.unique(keys(arrays[name], name, is_empty_missing=is_csv), return_inverse=True)
  return values, number.astype(np.int32)


def _extra(groups: str, by: Sequence[str], weights: str, same: SameRows | None) -> list[str]:
  return list(dict.fromkeys(filter(None, [groups, *by, weights, *(headers.IDS if same else ())])))


def _subgroups(arrays: Mapping[str, np.ndarray], by: Sequence[str], count: int, is_csv: bool
               ) -> dict[str, Subgroups] | None:
  """Returns the subgroups by the name of their array, or None without any."""
  subgroups = {}
  for name in by:
    values, number = _numbered(arrays, name, count, "subgroups", is_csv)
    if len(values) > MOST_SUBGROUPS:
      raise FileError(f": {short(name)} has {len(values):,} different values, and at most {MOST_SUBGROUPS} subgroups "
                      "are reported: join some, or name another column in --by.")
    subgroups[name] = Subgroups(tuple(map(str, values.tolist())), number)
  return subgroups or None
