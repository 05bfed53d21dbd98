"""Metrics and fits of large predictions on the device, beside the same in PyTorch where it is installed."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import calibrators, metrics
from experiments.benchmarks import timing

NUM_BINS = 15


def predictions(num_examples: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns overconfident random logits float32 ``[N, K]`` and labels drawn from their softmax at temperature 2."""
  rng = np.random.default_rng(0)
  logits = 4 * rng.standard_normal((num_examples, num_classes), np.float32)
  noise = rng.gumbel(size=logits.shape).astype(np.float32)
  return logits, np.argmax(logits / 2 + noise, axis=-1).astype(np.int32)


def measured(num_examples: int, num_classes: int, budget: float) -> dict[str, float]:
  """Returns the seconds of the ECE and of temperature scaling, both from logits on the device, and their results.

  Where PyTorch is installed it also returns the time relative to it, on its CUDA device if there is one, and how far
  the results are apart.

  Args:
    num_examples: the number of examples.
    num_classes: the number of classes.
    budget: the seconds of each comparison.
  """
  logits, labels = predictions(num_examples, num_classes)
  on_device = jnp.asarray(logits), jnp.asarray(labels)
  scaling = calibrators.temperature_scaling()
  error = jax.jit(lambda z, y: metrics.expected_calibration_error(jax.nn.softmax(z), y, num_bins=NUM_BINS))
  fit = jax.jit(lambda z, y: scaling.fit(z, y))
  ours = {"ece": lambda: float(error(*on_device)),
          "ts": lambda: float(fit(*on_device)["temperature"])}
  theirs = _pytorch(logits, labels)
  values = {}
  for name, function in ours.items():
    values[f"{name}_result"] = function()  # Compiles.
    if theirs is None:
      values[f"{name}_seconds"] = timing.seconds(function, 5)
    else:
      other = theirs[name]()
      ratio, values[f"{name}_seconds"] = timing.pairs(function, theirs[name], budget)
      values |= {f"{name}_relative_to_pytorch": ratio, f"{name}_apart": abs(values[f"{name}_result"] - other)}
  return values


def _pytorch(logits: np.ndarray, labels: np.ndarray) -> dict[str, Callable[[], float]] | None:
  """Returns the same in PyTorch as its users write it, on the GPU if it has one; None without PyTorch."""
  try:
    import torch
  except ImportError:
    return None
  device = "cuda" if torch.cuda.is_available() else "cpu"
  z, y = torch.tensor(logits, device=device), torch.tensor(labels, device=device, dtype=torch.int64)

  def ece():
    confidence, predicted = torch.softmax(z, 1).max(1)
    gap = (predicted == y).float() - confidence
    bins = torch.clamp((confidence * NUM_BINS).ceil().long() - 1, 0, NUM_BINS - 1)
    return float(torch.zeros(NUM_BINS, device=device).index_add_(0, bins, gap).abs().sum() / len(y))

  def ts():
    temperature = torch.ones(1, device=device, requires_grad=True)
    optimizer = torch.optim.LBFGS([temperature], lr=0.1, max_iter=100, line_search_fn="strong_wolfe")

    def closure():
      optimizer.zero_grad()
      loss = torch.nn.functional.cross_entropy(z / temperature, y)
      loss.backward()
      return loss

    optimizer.step(closure)
    return float(temperature)

  return {"ece": ece, "ts": ts}
