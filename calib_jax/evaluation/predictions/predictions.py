"""The predictions of a classifier on a set of examples."""

from collections.abc import Mapping, Sequence
import pathlib
from typing import NamedTuple

import numpy as np

from calib_jax._system.files import write_npz
from calib_jax.evaluation.predictions.judged import Judged

# How the examples of a set may relate to the training data.
KINDS = ("in_distribution", "shifted", "out_of_distribution")


class Subgroups(NamedTuple):
  """To which subgroup each example belongs."""

  names: tuple[str, ...]  # The names of the subgroups, each of at least one example.
  number: np.ndarray  # int32 ``[N]``, the place of each example's subgroup in ``names``.


class Predictions(NamedTuple):
  """The predictions of a classifier on a set of examples.

  Attributes:
    logits: float32 ``[N, K]``, which may be log-probabilities; -inf for a class that the row does not have.
    labels: int32 ``[N]``; an out-of-distribution set's have no meaning.
    kind: how the examples relate to the training data, one of ``KINDS``.
    features: ``[N, D]``, the features before the head; None if they were not saved.
    classes: the names of the K classes; None if the file does not name them.
    groups: int32 ``[N]``, equal for examples that belong together; None if every example is on its own.
    train_counts: int64 ``[K]``, the number of training examples of each class; None if it is not known.
    probs: floats ``[N, K]``, the probabilities of the file, from which the logits come; None if logits were. Who
      replaces the logits must replace them too.
    spread: ``[N]``, how much the members of an ensemble disagree; None of a single model.
    records: whether rows are records, a confidence that an answer is right and whether it was. There are no classes
      then: the columns of ``logits`` and ``probs`` are of a wrong and of a right answer, and labels are 1 if right.
    subgroups: the subgroups that are reported one by one, by the name of the array that tells them apart; None for
      none.
    weights: float64 ``[N]`` above 0, the weights of the examples, whose ratios alone matter; None where all are
      equal.
    covariates: numbers or texts ``[N]`` by the name of their column, which calibrators take; None for none.
    judged: what a judge says of records, and of others without a person's verdict; None without one.
    of_label: whether the two classes are that a label of a multi-label file is absent or present, whose names are not
      compared with predictions of other labels.
  """

  logits: np.ndarray
  labels: np.ndarray
  kind: str = "in_distribution"
  features: np.ndarray | None = None
  classes: tuple[str, ...] | None = None
  groups: np.ndarray | None = None
  train_counts: np.ndarray | None = None
  probs: np.ndarray | None = None
  spread: np.ndarray | None = None
  records: bool = False
  subgroups: Mapping[str, Subgroups] | None = None
  weights: np.ndarray | None = None
  of_label: bool = False
  covariates: Mapping[str, np.ndarray] | None = None
  judged: Judged | None = None

  @property
  def is_ragged(self) -> bool:
    """Whether a row lacks an option that another one has."""
    return bool(np.isneginf(self.logits.min(initial=0)))


def differing(labels: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> tuple[int, int] | None:
  """Returns in which seed the labels of two models differ, so that they cannot be compared example by example.

  Seeds are compared one by one; if one model has more of them than the other, each of a model with the other's first.
  The numbers, from 0, are of a seed of the first model and of one of the other; None if no labels differ.
  """
  pairs = ([(i, i) for i in range(len(labels))] if len(labels) == len(other) else
           [*((i, 0) for i in range(len(labels))), *((0, j) for j in range(len(other)))])
  return next(((i, j) for i, j in pairs if not np.array_equal(labels[i], other[j])), None)


def save(path: pathlib.Path, logits: np.ndarray, labels: np.ndarray, kind: str = "in_distribution",
         features: np.ndarray | None = None, classes: Sequence[str] | None = None,
         train_counts: np.ndarray | None = None) -> None:
  """Writes predictions as an ``.npz`` that ``load`` reads. The file appears only once it is complete.

  Args:
    path: the file to write.
    logits: ``[N, K]``.
    labels: ``[N]``.
    kind: how the examples relate to the training data, one of ``KINDS``.
    features: ``[N, D]``, the features before the head; None to save none.
    classes: the names of the K classes; None to save none.
    train_counts: ``[K]``, the number of training examples of each class; None to save none.
  """
  extra = {"kind": None if kind == "in_distribution" else kind, "features": features, "classes": classes,
           "train_counts": train_counts}
  write_npz(path, logits=logits, labels=labels,
            **{name: np.asarray(value) for name, value in extra.items() if value is not None})
