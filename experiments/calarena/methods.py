"""What is fitted on local data sets: every registered calibrator, ``select``, and the same ones of other packages."""

from collections.abc import Sequence
import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from calib_jax import calibrators
from calib_jax.cli.inputs import calibrator
from experiments.common.calibrator_peers import PEERS, Peer, prepared, versions

OURS, SELECT = "calib_jax", "select"
# Not fitted here, and why.
LEFT_OUT = {
  "focal_calibration": "needs the gamma of the training",
  "focal_temperature_scaling": "tries 4,500 pairs",
  "meta_calibration": "makes uncertain predictions uniform",
  "label_shift": "is fitted to the test examples too",
  "record_calibration": "is for a confidence without classes",
  "probability_floor": "is fitted around others, which are named",
  "classwise_loss_scaling": "is a step after another calibrator",
  "matrix_scaling": "is dirichlet where logits are log-probabilities, as here",
  "class_temperature_scaling": "no other package has it, and it takes 2 s to compile for every shape",
  "parameterized_temperature_scaling": "no other package has it, and it takes 4 s to compile for every shape",
}
# The most classes with which slow peers are fitted.
MOST_CLASSES = {("spline_calibration", "probmetrics"): 2, ("beta_calibration", "netcal"): 2, ("platt", "netcal"): 2,
                ("venn_abers", "probmetrics"): 10}
REACHES_0 = "its probabilities reach 0; ours are at least 1e-6"
NETCAL = "cuts probabilities off at 2e-16; ours, as the inputs, at 1e-38"
# Peers whose method is not the same, and what differs.
DIFFERS = {
  ("temperature_scaling", "torch"): "stops after 50 small steps",
  ("vector_scaling", "torch"): "stops after 50 small steps",
  ("platt", "scikit-learn"): "always smooths the labels as Platt 1999; of K > 2 classes it takes logits, ours log-odds",
  ("ensemble_temperature_scaling", "probmetrics"): "its temperature is from 0.05 to 5",
  ("beta_calibration", "probmetrics"): "betacal's, which cuts probabilities off at 1.2e-7; ours at 1e-38",
  ("temperature_scaling", "netcal"): NETCAL, ("platt", "netcal"): NETCAL, ("beta_calibration", "netcal"): NETCAL,
  ("isotonic", "netcal"): REACHES_0, ("isotonic", "probmetrics"): REACHES_0, ("isotonic", "scikit-learn"): REACHES_0,
  ("centered_isotonic", "probmetrics"): REACHES_0,
  ("spline_calibration", "probmetrics"): "splinecalib's: random knots, a ridge on all coefficients, and 20 examples of "
                                         "its own",
  ("histogram_binning", "probmetrics"): "10 bins; ours has 15",
  ("histogram_binning", "netcal"): "10 bins of equal width; ours has 15 of equal mass",
}


class Fitted(NamedTuple):
  """A function from logits to probabilities, and the name of the calibrator if ``select`` chose it."""

  calibrator: calibrators.Calibrator
  params: Any
  choice: str = ""

  def __call__(self, logits: np.ndarray) -> np.ndarray:
    """Returns the probabilities."""
    return np.exp(_apply(self.calibrator, self.params, logits))


class Method(NamedTuple):
  """A method by one package, "calib_jax" or that whose implementation it is."""

  package: str
  fit: Peer

  def inputs(self, log_probs: np.ndarray) -> np.ndarray:
    """Returns what ``fit`` takes: float32 as the predictions are, but float64 for packages that lose digits in it."""
    if self.package == OURS:
      return log_probs
    return prepared(self.package, log_probs.astype(np.float64) if self.package in ("netcal", "scikit-learn")
                    else log_probs)


@functools.partial(jax.jit, static_argnums=0)
def _apply(chosen: calibrators.Calibrator, params: Any, logits: np.ndarray) -> jax.Array:
  return chosen.apply(params, logits)


def _fit(text: str, logits: np.ndarray, labels: np.ndarray) -> Fitted:
  if text == SELECT:
    selection = calibrators.select(logits, labels)
    return Fitted(selection.calibrator, jax.block_until_ready(selection.params), selection.name)
  chosen = calibrator(text)
  return Fitted(chosen, jax.block_until_ready(chosen.fit(logits, labels)))


def names(chosen: Sequence[str] | None = None) -> list[str]:
  """Returns the calibrators to fit, as texts of the command line; by default all but those of ``LEFT_OUT``."""
  texts = list(chosen) if chosen else [name for name in calibrators.CALIBRATORS if name not in LEFT_OUT] + [SELECT]
  for text in texts:
    if text != SELECT:
      calibrator(text)
  return texts


def of(name: str, num_classes: int, peers: bool = True) -> list[Method]:
  """Returns a method by this package and, with ``peers``, by the packages that are installed."""
  return [Method(OURS, functools.partial(_fit, name))] + [
    Method(package, fit) for package, fit in PEERS.get(name, {}).items()
    if peers and package in versions() and num_classes <= MOST_CLASSES.get((name, package), num_classes)]
