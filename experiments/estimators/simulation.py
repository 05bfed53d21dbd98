"""Data whose posterior is known exactly, models that distort it, and what metrics tend to as N grows.

``simulate`` and ``truth`` are of two classes: x is from N(-1, 1) or N(1, 1) with equal chance, and the posterior is
sigmoid(2x). The model predicts sigmoid(2ax), which is calibrated for a = 1 and overconfident for a = 1.6. The limit of
each estimator for infinitely many examples is computed by quadrature.

``sample`` and ``limits`` are of any posterior p. The model predicts ``softmax(a log p)`` where the exponent a depends
on the class that is most likely: it is calibrated if all exponents are 1, overconfident if they are above 1,
underconfident if they are below, and miscalibrated by class if they differ. A shift of the first class's log-odds
miscalibrates it too.
"""

from collections.abc import Callable
import functools

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import metrics

Array = jax.Array
REPEATS = 200
CELLS = 500  # Groups of neighbouring confidences over which the accuracy is averaged.
SHARPNESS = {"calibrated": 1.0, "overconfident": 1.6}

# Each estimator, and which truth it estimates.
ESTIMATORS = {
  "ECE, 15 equal-width bins": (metrics.calibration_error, "l1"),
  "ECE, 15 equal-mass bins": (functools.partial(metrics.calibration_error, binning="equal_mass"), "l1"),
  "equal mass, norm 2": (functools.partial(metrics.calibration_error, binning="equal_mass", norm=2), "l2"),
  "equal mass, norm 2, debiased": (
    functools.partial(metrics.calibration_error, binning="equal_mass", norm=2, debias=True), "l2"),
  "sweep, norm 2": (metrics.sweep_calibration_error, "l2"),
  "KS": (metrics.ks_calibration_error, "ks"),
  "smooth (smECE)": (metrics.smooth_calibration_error, "smooth"),
}

# The models of their bias, for their intervals.
BIAS = {
  "ECE, 15 equal-width bins": metrics.bias_model(metrics.calibration_error),
  "ECE, 15 equal-mass bins": metrics.bias_model(metrics.calibration_error),
  "equal mass, norm 2": metrics.bias_model(metrics.calibration_error, norm=2),
  "KS": metrics.bias_model(metrics.ks_calibration_error),
  "smooth (smECE)": metrics.bias_model(metrics.smooth_calibration_error),
}


def _pairs(key: Array, shape: tuple[int, ...], sharpness: float) -> tuple[Array, Array]:
  """Top-label confidences and correctness."""
  draws = jax.random.split(key, 3)
  x = jax.random.normal(draws[0], shape) + jnp.where(jax.random.bernoulli(draws[1], 0.5, shape), 1, -1)
  odds = jnp.abs(2 * x)
  return jax.nn.sigmoid(sharpness * odds), jax.random.uniform(draws[2], shape) < jax.nn.sigmoid(odds)


@functools.cache
def truth(sharpness: float) -> dict[str, float]:
  """What the estimators tend to, by quadrature in float64 (the smooth error from its own definition on a fine grid)."""
  x = np.linspace(-9, 9, 400_001)
  density = (np.exp(-(x - 1)**2 / 2) + np.exp(-(x + 1)**2 / 2)) / np.sqrt(8 * np.pi)
  odds = np.abs(2 * x)
  confidence, accuracy = (1 / (1 + np.exp(-a * odds)) for a in (sharpness, 1.0))
  return true_errors(confidence, accuracy, density * (x[1] - x[0]))


def true_errors(confidence: np.ndarray, accuracy: np.ndarray, weight: np.ndarray) -> dict[str, float]:
  """Errors of predictions with known accuracies; ``weight`` is how likely each is."""
  gap = accuracy - confidence
  order = np.argsort(confidence)
  edges = np.linspace(0, 1, 1001)  # Cells far narrower than the kernel.
  mass = np.histogram(confidence, edges, weights=weight * gap)[0]
  middle = (edges[1:] + edges[:-1]) / 2

  def smoothed(sigma):
    total = sum(np.exp(-(middle[:, None] - at[None, :])**2 / (2 * sigma**2)) @ mass
                for at in (middle, -middle, 2 - middle))
    return np.abs(total / (sigma * np.sqrt(2 * np.pi))).mean()

  low, high = 1e-4, 1.0
  for _ in range(20 if gap.any() else 0):
    sigma = (low + high) / 2
    low, high = (sigma, high) if smoothed(sigma) > sigma else (low, sigma)
  return {"l1": float(np.sum(weight * np.abs(gap))), "l2": float(np.sqrt(np.sum(weight * gap**2))),
          "ks": float(np.abs(np.cumsum((weight * gap)[order])).max()), "smooth": float(low if gap.any() else 0)}


def true_losses(log_probs: np.ndarray, posterior: np.ndarray) -> dict[str, float]:
  """The mean NLL and Brier score of log-probabilities ``[N, K]`` of examples with known posteriors ``[N, K]``."""
  probs = np.exp(log_probs)
  return {"nll": -float(np.mean(np.sum(posterior * log_probs, axis=1))),
          "brier": float(np.mean(np.sum(probs**2 - 2 * posterior * probs, axis=1))) + 1}


def true_values(log_probs: np.ndarray, posterior: np.ndarray, *, calibrated: bool) -> dict[str, float]:
  """What metrics tend to as N grows: means over very many examples with known posteriors, without labels."""
  probs, (size, num_classes) = np.exp(log_probs), log_probs.shape
  top = probs.argmax(1)[:, None]
  confidence, accuracy = (np.take_along_axis(x, top, axis=1)[:, 0] for x in (probs, posterior))
  mean, order = accuracy.mean(), np.argsort(confidence)
  confidence, accuracy = confidence[order], accuracy[order]
  # Neighbouring confidences, whose accuracies are averaged, have thousands of examples.
  errors = true_errors(*(x.reshape(CELLS, -1).mean(1) for x in (confidence, accuracy)), np.full(CELLS, 1 / CELLS))
  gap = confidence - accuracy
  width_bins = np.split(gap, np.searchsorted(confidence, np.arange(1, 15) / 15, "right"))
  mass_bins = np.array([part.mean() for part in np.array_split(gap, 15)])
  errors |= {"ece": sum(abs(part.sum()) for part in width_bins) / size, "equal_mass": abs(mass_bins).mean(),
             "ece_equal_mass_l2": np.sqrt(np.mean(mass_bins**2)),
             "classwise": np.mean([_classwise(probs[:, k], posterior[:, k]) for k in range(min(num_classes, 10))])}
  taken, risk = np.arange(1, size + 1), 1 - accuracy[::-1]
  curve, wrong = np.cumsum(risk) / taken, risk.mean()  # The error rate of the most confident.
  best = wrong + (1 - wrong) * np.log1p(-wrong)  # The AURC of the best order, which has the errors last.
  return {"accuracy": mean, **true_losses(log_probs, posterior),
          **(dict.fromkeys(errors, 0.0) if calibrated else errors), "aurc": curve.mean(),
          "excess_aurc": curve.mean() - best,
          **{f"coverage_at_{most}": taken[curve <= most / 100].max(initial=0) / size for most in (1, 5)}}


def _classwise(probs: np.ndarray, posterior: np.ndarray) -> float:
  """The calibration error of the probability of one class."""
  bins = np.minimum((probs * 15).astype(int), 14)
  return float(abs(np.bincount(bins, probs - posterior, 15)).sum() / len(probs))


@functools.partial(jax.jit, static_argnames=("estimator", "size", "sharpness", "repeats"))
def simulate(estimator, size: int, sharpness: float, repeats: int = REPEATS) -> jax.Array:
  """The estimate of each of ``repeats`` samples of ``size``."""
  return jax.lax.map(lambda pair: estimator(*pair), _pairs(jax.random.key(0), (repeats, size), sharpness))


def gaussian_mixture(key: Array, shape: tuple[int, ...]) -> Array:
  """Log-posteriors ``[..., 2]`` of x from N(-1, 1) or N(1, 1) with equal chance; the posterior is sigmoid(2x)."""
  draws = jax.random.split(key)
  x = jax.random.normal(draws[0], shape) + jnp.where(jax.random.bernoulli(draws[1], 0.5, shape), 1, -1)
  return jax.nn.log_sigmoid(jnp.stack([-2 * x, 2 * x], axis=-1))


def dirichlet(key: Array, shape: tuple[int, ...]) -> Array:
  """Log-posteriors ``[..., 3]`` from the Dirichlet distribution whose three parameters are 1/2."""
  # A squared normal variable has the gamma distribution of shape 1/2.
  return jax.nn.log_softmax(2 * jnp.log(jnp.abs(jax.random.normal(key, (*shape, 3)))))


def six_confidences(key: Array, shape: tuple[int, ...]) -> Array:
  """Log-posteriors ``[..., 2]`` of which only six differ, so that most examples are tied."""
  of_first = jax.random.choice(key, jnp.array([0.5, 0.6, 0.7, 0.8, 0.9, 0.97]), shape)
  return jnp.log(jnp.stack([of_first, 1 - of_first], axis=-1))


def sample(key: Array, shape: tuple[int, ...], posterior: Callable, exponents: tuple[float, ...], shift: float = 0.0
           ) -> dict[str, Array]:
  """Confidence, correctness (0 or 1), NLL and Brier score of each example, ``shape`` each."""
  of_posterior, of_labels = jax.random.split(key)
  log_p = posterior(of_posterior, shape)
  log_q = model_log_probs(log_p, exponents, shift)
  is_label = jax.nn.one_hot(jax.random.categorical(of_labels, log_p), log_p.shape[-1])
  q = jnp.exp(log_q)
  is_top = jax.nn.one_hot(jnp.argmax(log_q, axis=-1), log_p.shape[-1])
  return {"confidence": jnp.max(q, axis=-1), "correct": jnp.sum(is_top * is_label, axis=-1),
          "nll": -jnp.sum(log_q * is_label, axis=-1), "brier": jnp.sum((q - is_label) ** 2, axis=-1)}


def model_log_probs(log_p: Array, exponents: tuple[float, ...], shift: float = 0.0) -> Array:
  """The model's log-probabilities ``[..., K]``."""
  scores = jnp.asarray(exponents)[jnp.argmax(log_p, axis=-1)][..., None] * log_p
  return jax.nn.log_softmax(scores.at[..., 0].add(shift))


@functools.cache
def limits(posterior: Callable, exponents: tuple[float, ...], shift: float = 0.0, num_points: int = 1_000_000
           ) -> dict[str, float]:
  """What metrics tend to as N grows, from means over ``num_points`` posteriors: see ``true_values``."""
  log_p = posterior(jax.random.key(1), (num_points,))
  log_q, p = (np.asarray(x, np.float64) for x in (model_log_probs(log_p, exponents, shift), jnp.exp(log_p)))
  return true_values(log_q, p, calibrated=set(exponents) == {1.0} and not shift)
