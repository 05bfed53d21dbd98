"""What a user asks of the confidences of the first model: where to cut, sets of classes, and decisions under costs."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from calib_jax.evaluation.predictions.calibrated import Calibrated


class Asked(NamedTuple):
  """What is asked; None or empty where it is not."""

  risk: float | None = None  # The largest share of errors among accepted predictions.
  level: float = 0.95  # The probability of the guarantee of a cut, and of the intervals.
  stored: Mapping[str, float] = {}  # A cut from before by the label of its calibrator: it is judged, and none chosen.
  coverage: float | None = None  # How often a set of classes is to hold the true one.
  costs: np.ndarray | None = None  # ``[acts, K]``, the cost of each act by the class.
  acts: tuple[str, ...] = ()  # The names of the acts.
  # The predictions on which cuts and sets are chosen, by label, each with a phrase that says which they are.
  chosen_on: Mapping[str, tuple[Calibrated, str]] = {}
  judges: bool = True  # Whether the sets of the evaluation are others than these, so that they judge the cuts.
  ece_limit: float | None = None  # The ECE above which a set fails.
  upper_limit: float | None = None  # What the true error must be shown not to exceed on any set.
