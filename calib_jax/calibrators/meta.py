"""Meta-Cal (Ma & Blaschko 2021): uncertain predictions become uniform; temperature scaling calibrates the others."""

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import _checks as checks
from calib_jax import confidence
from calib_jax._numerics.lbfgs import shares
from calib_jax._numerics.softmax import masked_as, tempered
from calib_jax._numerics.temperature import solve_nll
from calib_jax.calibrators.base import (
  Calibrator,
  by_row,
  fit_batch,
  has_params,
  refuse_traced,
  refuse_weights,
  register,
)

Array = jax.Array
SHARE, MOST = 10, 500  # One example in 10, and at most 500, serve to find the threshold.
BINS = 20  # The number of bins of the curve of accuracy against entropy.


@register
@has_params(temperature="(0, inf)", threshold="(-inf, inf]")
def meta_calibration(constraint: str = "miscoverage", *, target: float, seed: int = 0) -> Calibrator:
  r"""Meta-Cal: uniform where the entropy of the prediction is at or above a threshold, else temperature scaling.

  Use it to bound the miscoverage, or the accuracy lost, at the price of refusals.

  A tenth of the examples, at most 500, gives the threshold; the others give the temperature. Accuracy falls, because
  the top class of a uniform prediction is the first class that the row has.

  Args:
    constraint: ``"miscoverage"`` (MetaMis) makes the share ``target`` of correct predictions uniform: the threshold is
      the 1 - target quantile of their entropy. ``"accuracy"`` (MetaAcc) gives the predictions that are kept the
      accuracy ``target``: the threshold is read from the decreasing isotonic regression of the entropy on the accuracy
      of all predictions below it, over 20 bins. If all predictions together reach that accuracy, all are kept; if not
      even the bin of lowest entropy reaches it, only that bin is kept.
    target: the share or the accuracy, in (0, 1).
    seed: seed of the split of the examples.

  Returns:
    A calibrator whose params are the scalars ``threshold``, in nats, and temperature scaling's.
    ``fit`` splits on the host and does not run under ``jit`` or ``vmap``.

  Raises:
    ValueError, TypeError: for an unknown constraint, or an option out of range or of another type.

  References:
    Ma & Blaschko 2021 and their released code; Zhou et al. 2025, Appendix.

  >>> calibrator = meta_calibration("miscoverage", target=0.05)
  >>> logits = jnp.tile(jnp.array([[3.0, 2.0, 1.0, 0.0], [0.0, 0.0, 5.0, 0.0]]), (20, 1))
  >>> params = calibrator.fit(logits, logits.argmax(-1))
  >>> jnp.exp(calibrator.apply(params, jnp.array([[1.0, 1.0, 1.0, 1.0], [9.0, 0.0, 0.0, 0.0]]))).round(2)
  Array([[0.25, 0.25, 0.25, 0.25],
         [1.  , 0.  , 0.  , 0.  ]], dtype=float32)
  """
  checks.options(constraint=(constraint, ("miscoverage", "accuracy")), target=(target, "(0, 1)"),
                 seed=(seed, "integer (-inf, inf)"))

  def fit(logits, labels, *, where=None, weights=None):
    refuse_traced("meta_calibration", logits, labels, where, weights)
    logits, labels, counts = fit_batch(logits, labels, where, weights)
    refuse_weights(counts, "meta_calibration", "it divides the examples at random")
    threshold, kept = divide(logits, labels, np.array(counts), constraint, target, seed)
    weights = shares(jnp.asarray(kept), logits.dtype)
    return {"threshold": jnp.asarray(threshold, logits.dtype)} | _temperature(logits, labels, weights)

  return Calibrator(fit, by_row(_apply), "meta_calibration", {"constraint": constraint, "target": target, "seed": seed})


def divide(logits: Array, labels: Array, counts: np.ndarray, constraint: str, target: float, seed: int
           ) -> tuple[float, np.ndarray]:
  """Returns the threshold of the entropy, and which rows ``[N]`` give the temperature: others, below it."""
  entropy, correct = np.asarray(_entropy(logits)), np.asarray(confidence.predicted(logits) == labels)
  kind = counts & correct if constraint == "miscoverage" else counts
  candidates = np.random.default_rng(seed).permutation(np.flatnonzero(kind))
  chosen = candidates[:min(max(len(candidates) // SHARE, 1), MOST)]
  if not len(chosen):
    threshold = np.inf
  elif constraint == "miscoverage":
    threshold = np.quantile(entropy[chosen], 1 - target, method="higher")
  else:
    threshold = _accuracy_threshold(entropy[chosen], correct[chosen], target)
  others = counts.copy()
  others[chosen] = False
  return threshold, others & (entropy < threshold)


def _apply(params: dict, logits: Array) -> Array:
  is_confident = _entropy(logits) < params["threshold"]
  uniform = masked_as(jnp.zeros_like(logits), logits)
  return jax.nn.log_softmax(jnp.where(is_confident[..., None], tempered(logits, params["temperature"]), uniform))


_temperature = jax.jit(solve_nll)


@jax.jit
def _entropy(logits: Array) -> Array:
  return -confidence.negative_entropy(jax.nn.softmax(logits))


def _accuracy_threshold(entropy: np.ndarray, correct: np.ndarray, target: float) -> float:
  """The entropy below which predictions have accuracy ``target``."""
  from scipy import optimize  # Imported here, because the import takes 0.4 s and only isotonic regression needs it.

  edges = np.quantile(entropy, np.linspace(0, 1, BINS + 1))
  place = np.clip(np.searchsorted(edges, entropy, side="left") - 1, 0, BINS - 1)
  filled = np.unique(place)
  accuracy = np.array([correct[place == b].mean() for b in filled])
  middle = np.array([entropy[place == b].mean() for b in filled])
  below = np.cumsum(accuracy) / np.arange(1, len(filled) + 1)
  # The entropy falls as the accuracy of all predictions below it rises.
  order = np.argsort(below, kind="stable")
  at, fitted = below[order], optimize.isotonic_regression(middle[order], increasing=False).x
  if target <= at[0]:
    return np.inf
  return float(np.interp(target, at, fitted))
