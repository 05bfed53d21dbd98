"""The same calibrators by other packages, where they are installed: probmetrics, netcal, and the usual PyTorch recipe.

A peer is a function of logits ``[N, K]`` and labels ``[N]`` (NumPy) that fits, and returns a function from logits to
probabilities. ``PEERS`` lists the peers of each calibrator of calib_jax by package; those that are not installed are
left out. What a package needs as probabilities is converted before the clock starts: ``prepared``.
"""

from collections.abc import Callable
import importlib.metadata

import numpy as np
from scipy import special

Peer = Callable[[np.ndarray, np.ndarray], Callable[[np.ndarray], np.ndarray]]


def versions() -> dict[str, str]:
  """Returns the versions of the packages that are installed, by name."""
  installed = {}
  for name in ("torch", "probmetrics", "netcal"):
    try:
      installed[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      continue
  return installed


def prepared(package: str, logits: np.ndarray) -> np.ndarray:
  """Returns what a package takes: logits for torch, and else probabilities."""
  return logits if package == "torch" else special.softmax(logits, axis=1)


def _torch_temperature(logits: np.ndarray, labels: np.ndarray):
  """L-BFGS on one parameter as most often copied: step 0.01, 50 iterations, from T = 1.5 (Guo et al. 2017, code)."""
  import torch

  z, y = torch.from_numpy(np.array(logits)), torch.from_numpy(labels.astype(np.int64))
  temperature = torch.nn.Parameter(torch.full((1,), 1.5))
  optimizer = torch.optim.LBFGS([temperature], lr=0.01, max_iter=50)

  def closure():
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(z / temperature, y)
    loss.backward()
    return loss

  optimizer.step(closure)
  return lambda other: special.softmax(other / temperature.item(), axis=1)


def _torch_vector(logits: np.ndarray, labels: np.ndarray):
  """The same recipe with a scale and a bias for each class, from 1 and 0."""
  import torch

  z, y = torch.from_numpy(np.array(logits)), torch.from_numpy(labels.astype(np.int64))
  scale = torch.nn.Parameter(torch.ones(z.shape[1]))
  bias = torch.nn.Parameter(torch.zeros(z.shape[1]))
  optimizer = torch.optim.LBFGS([scale, bias], lr=0.01, max_iter=50)

  def closure():
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(z * scale + bias, y)
    loss.backward()
    return loss

  optimizer.step(closure)
  a, b = scale.detach().numpy(), bias.detach().numpy()
  return lambda other: special.softmax(other * a + b, axis=1)


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
    peer.fit(probs, labels)
    return peer.transform

  return fit


PEERS: dict[str, dict[str, Peer]] = {
  "temperature_scaling": {
    "torch": _torch_temperature, "probmetrics": _probmetrics("TemperatureScalingCalibrator"),
    "netcal": _netcal("scaling", "TemperatureScaling")},
  "ensemble_temperature_scaling": {"probmetrics": _probmetrics("ETSCalibrator", loss="ce")},
  "vector_scaling": {"torch": _torch_vector, "probmetrics": _probmetrics("VectorScalingCalibrator")},
  "structured_vector_scaling": {"probmetrics": _probmetrics("SVSCalibrator")},
  "structured_matrix_scaling": {"probmetrics": _probmetrics("SMSCalibrator")},
  "matrix_scaling": {"probmetrics": _probmetrics("MatrixScalingCalibrator")},
  "isotonic": {"probmetrics": _probmetrics("SklearnCalibrator", method="isotonic", cv="prefit"),
               "netcal": _netcal("binning", "IsotonicRegression")},
  "histogram_binning": {
    "probmetrics": _probmetrics("BinaryHistogramBinningCalibrator", one_vs_rest=True, strategy="quantile")},
}
