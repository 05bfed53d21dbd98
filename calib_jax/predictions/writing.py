"""Writes predictions as files that ``loading`` reads."""

from collections.abc import Sequence
import pathlib

import numpy as np

from calib_jax._system.files import write_npz


def save(path: pathlib.Path, logits: np.ndarray, labels: np.ndarray, kind: str = "in_distribution",
         features: np.ndarray | None = None, classes: Sequence[str] | None = None,
         train_counts: np.ndarray | None = None) -> None:
  """Writes predictions as an ``.npz``. The file appears only once it is complete.

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
