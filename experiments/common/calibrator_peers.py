"""The same calibrators by other packages, where they are installed, and by the usual PyTorch recipe.

A peer is a function of logits ``[N, K]`` and labels ``[N]`` (NumPy) that fits, and returns a function from logits to
probabilities. ``PEERS`` lists the peers of each calibrator of calib_jax by package; those that are not installed are
left out. What a package needs as probabilities is converted before the clock starts: ``prepared``. Those that come from
a package which probmetrics wraps (betacal, cir-model, venn-abers, splinecalib) raise ImportError without it.
"""

from collections.abc import Callable
import importlib.metadata

import numpy as np
from scipy import special

PACKAGES = ("torch", "probmetrics", "netcal", "scikit-learn")
Peer = Callable[[np.ndarray, np.ndarray], Callable[[np.ndarray], np.ndarray]]


def versions() -> dict[str, str]:
  """Returns the versions of the packages that are installed, by name."""
  installed = {}
  for name in PACKAGES:
    try:
      installed[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      continue
  return installed


def prepared(package: str, logits: np.ndarray) -> np.ndarray:
  """Returns what a package takes: logits for torch and scikit-learn, and else probabilities."""
  return logits if package in ("torch", "scikit-learn") else special.softmax(logits, axis=1)


def _torch(per_class: bool = False) -> Peer:
  """L-BFGS as most often copied, with a temperature from 1.5 (Guo et al. 2017, code), or a scale and bias a class."""
  def scaled(z, *parameters):
    return z * parameters[0] + parameters[1] if per_class else z / parameters[0]

  def fit(logits, labels):
    import torch

    z, y = torch.from_numpy(np.array(logits)), torch.from_numpy(labels.astype(np.int64))
    start = (torch.ones(z.shape[1]), torch.zeros(z.shape[1])) if per_class else (torch.full((1,), 1.5),)
    parameters = [torch.nn.Parameter(x) for x in start]
    optimizer = torch.optim.LBFGS(parameters, lr=0.01, max_iter=50)

    def closure():
      optimizer.zero_grad()
      loss = torch.nn.functional.cross_entropy(scaled(z, *parameters), y)
      loss.backward()
      return loss

    optimizer.step(closure)
    arrays = [x.detach().numpy() for x in parameters]
    return lambda other: special.softmax(scaled(other, *arrays), axis=1)

  return fit


def _probmetrics(name: str, one_vs_rest: bool = False, **options) -> Peer:
  def fit(probs, labels):
    from probmetrics import calibrators

    peer = getattr(calibrators, name)(**options)
    peer = calibrators.MulticlassOneVsRestCalibrator(peer) if one_vs_rest else peer
    peer.fit(probs, labels)
    return peer.predict_proba

  return fit


def _netcal(module: str, name: str, **options) -> Peer:
  def fit(probs, labels):
    peer = getattr(importlib.import_module(f"netcal.{module}"), name)(**options)
    if probs.shape[1] > 2:
      peer.fit(probs, labels)
      return peer.transform
    peer.fit(probs[:, 1], labels)  # Of two classes it takes the probability of class 1, and returns it.

    def apply(other):
      p = np.ravel(peer.transform(other[:, 1]))
      return np.stack([1 - p, p], axis=1)

    return apply

  return fit


def _scikit_learn(method: str) -> Peer:
  """``CalibratedClassifierCV`` around a fitted classifier whose decision function is the logits, or the log-odds."""
  def fit(logits, labels):
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    class Scores(ClassifierMixin, BaseEstimator):
      classes_ = np.arange(logits.shape[1])

      def __sklearn_is_fitted__(self):
        return True

      def fit(self, x, y):
        return self

      def decision_function(self, x):
        return x[:, 1] - x[:, 0] if x.shape[1] == 2 else x

      def predict(self, x):
        return x.argmax(1)

    peer = CalibratedClassifierCV(FrozenEstimator(Scores()), method=method)
    peer.fit(logits, labels)
    return peer.predict_proba

  return fit


PEERS: dict[str, dict[str, Peer]] = {
  "temperature_scaling": {
    "torch": _torch(), "probmetrics": _probmetrics("TemperatureScalingCalibrator"),
    "netcal": _netcal("scaling", "TemperatureScaling"), "scikit-learn": _scikit_learn("temperature")},
  "ensemble_temperature_scaling": {"probmetrics": _probmetrics("ETSCalibrator", loss="ce")},
  "vector_scaling": {"torch": _torch(per_class=True), "probmetrics": _probmetrics("VectorScalingCalibrator")},
  "structured_vector_scaling": {"probmetrics": _probmetrics("SVSCalibrator")},
  "structured_matrix_scaling": {"probmetrics": _probmetrics("SMSCalibrator")},
  "matrix_scaling": {"probmetrics": _probmetrics("MatrixScalingCalibrator")},
  "platt": {"probmetrics": _probmetrics("BinaryLogisticCalibrator", one_vs_rest=True, type="affine"),
            "netcal": _netcal("scaling", "LogisticCalibration"), "scikit-learn": _scikit_learn("sigmoid")},
  "quadratic_scaling": {"probmetrics": _probmetrics("BinaryLogisticCalibrator", one_vs_rest=True, type="quadratic")},
  "beta_calibration": {"probmetrics": _probmetrics("BetacalCalibrator", one_vs_rest=True),
                       "netcal": _netcal("scaling", "BetaCalibration")},
  "isotonic": {"probmetrics": _probmetrics("SklearnCalibrator", method="isotonic", cv="prefit"),
               "netcal": _netcal("binning", "IsotonicRegression"), "scikit-learn": _scikit_learn("isotonic")},
  "centered_isotonic": {"probmetrics": _probmetrics("CenteredIsotonicRegressionCalibrator", one_vs_rest=True)},
  "venn_abers": {"probmetrics": _probmetrics("BinaryVennAbersCalibrator", one_vs_rest=True)},
  "histogram_binning": {
    "probmetrics": _probmetrics("BinaryHistogramBinningCalibrator", one_vs_rest=True, strategy="quantile"),
    "netcal": _netcal("binning", "HistogramBinning")},
  "spline_calibration": {"probmetrics": _probmetrics("MLISplineCalibrator", one_vs_rest=True)},
}
