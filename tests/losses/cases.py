"""Every loss with the options that tests vary, random data, and programs that are compiled once for a formula."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses
from tests.losses import references

PER_EXAMPLE = {
  # An integer is not traced: without label smoothing, another branch of the code computes the loss.
  "cross_entropy": [{"label_smoothing": 0}, {"label_smoothing": 0.0}, {"label_smoothing": 0.1},
                    {"label_smoothing": 1.0}],
  "brier": [{}],
  "brier_weighted_cross_entropy": [{}, {"gamma": 0.5, "norm": 1.0}, {"gamma": 3.0, "norm": 7.5}],
  "focal": [{}, {"gamma": 0.0}, {"gamma": 0.5}, {"gamma": 10.0}, {"stop_gradient": True}],
  "square": [{}, {"true_class_weight": 5.0, "true_class_target": 3.0}],
  "sample_dependent_focal": [{}, {"thresholds": np.array([0.1, 0.5]),
                                  "gammas": np.array([7.0, 2.5, 0.0])}],
  "inverse_focal": [{}, {"gamma": 0.0}, {"gamma": 3.5}, {"stop_gradient": True}],
  "dual_focal": [{}, {"gamma": 0.5}, {"competitor": "strongest_below"},
                 {"competitor": "strongest_below", "gamma": 5.0, "stop_gradient": "competitor"},
                 {"stop_gradient": True}],
  "adaptive_focal": [{"gammas": np.array([3.0, -1.5, 0.0, 0.7], np.float32),
                      "bin_edges": np.array([0, 0.2, 0.4, 0.7, 1], np.float32)}],
  "properized_focal": [{}, {"gamma": 0.5}, {"gamma": 6.0}],
  "margin_label_smoothing": [{}, {"margin": 1.0, "weight": 2.0}],
  "class_adaptive_label_smoothing": [{"multipliers": 0.3}, {"curvature": 4.0, "margin": 1.5}],
  "adaptive_conditional_label_smoothing": [{}, {"margin": 0.5, "weight": 1.0, "positive_weight": 0.3}],
  "pairwise_constraints": [{}, {"discrimination_weight": 0.5, "exclusion_weight": 3.0}],
}
PER_BATCH = {
  "soft_binned_ece": [{}, {"form": "bin"}, {"norm": 1.0}, {"norm": 3.5, "num_bins": 4, "temperature": 0.1},
                      {"form": "bin", "norm": 1.0, "temperature": 0.001}, {"root": False, "low": 1 / 3},
                      {"form": "bin", "low": 0.1}],
  "soft_avuc": [{}, {"threshold": 0.1, "temperature": 0.3}, {"threshold": 0.9, "temperature": 4.0}],
  "soft_binned_marginal_ece": [{}, {"norm": 1.0, "num_bins": 5, "temperature": 0.001}],
  "avuc": [{"threshold": 0.5}, {"threshold": 1.0, "stop_gradient": True}],
  "mdca": [{}],
  "generative_cross_entropy": [{}],
  "mmce": [{}, {"weighted": True}, {"weighted": True, "variant": "released"},
           {"kernel_width": 0.05, "variant": "released"}],
  "kde_ece": [{}, {"form": "canonical", "norm": 2.0}, {"form": "marginal", "bandwidth": 0.3}, {"bandwidth": 0.001}],
  "aurc": [{}, {"estimator": "log", "confidence": "margin"}, {"confidence": "negative_entropy", "loss": "brier"}],
  "selective_risk": [{}, {"low_confidence_coverage": 0.7}, {"variant": "printed", "confidence": "negative_entropy"},
                     {"variant": "stopped", "smoothing": 0.02, "num_bins": 7},
                     {"variant": "clamped", "confidence": "margin", "low_confidence_coverage": 0.5, "loss": "focal"},
                     {"variant": "stopped", "confidence": "negative_entropy", "low_confidence_coverage": 1.0,
                      "num_bins": 5, "counts": np.array([0, 9, 3, 30, 8], np.float32)}],
}
SOFT = ("cross_entropy", "brier", "focal")  # Losses whose labels may be distributions.
# Losses to which a masked class, a logit of -inf, means nothing; nor to cross entropy with label smoothing.
EVERY_CLASS = ("square", "margin_label_smoothing", "class_adaptive_label_smoothing",
               "adaptive_conditional_label_smoothing", "pairwise_constraints")
BOUNDED = ("brier",)  # Losses per example that stay finite where the label's class is masked.
FIRST = {name: options[0] for name, options in {**PER_EXAMPLE, **PER_BATCH}.items()}
EXTREMES = {
  "huge": ([[1e4, -1e4, 0], [-1e4, 1e4, 0], [0, 0, 1e4], [1e4, 1e4, -1e4]], [0, 0, 2, 1]),
  "ties": (np.zeros((4, 3)), [0, 1, 2, 0]),
  "one example": ([[2.0, 1.0, 0.0]], [1]),
  "all correct": (np.eye(4, 3) * 50 + np.eye(4, 3, -1), [0, 1, 2, 2]),
  "all wrong": (np.eye(4, 3) * 50 + np.eye(4, 3, -1), [1, 2, 0, 0]),
  "saturated": (np.eye(4, 3) * 88 + np.array([[0, -88, 0]]), [0, 0, 0, 1]),
}
EXTREMES = {edge: (np.array(logits, np.float32), np.array(labels)) for edge, (logits, labels) in EXTREMES.items()}
FLOATS, INTS = np.zeros((4, 3), np.float32), np.zeros(4, np.int32)  # Logits and labels for calls that fail.
SIZES = (1, 2, 7, 64, 512)
ROWS = SIZES[-1]


def cases(table, every=True):
  """``(name, options)`` of a table, or of the first case of each loss; those of a loss run on one worker."""
  return [_parameter(name, options) for name, each in table.items() for options in (each if every else each[:1])]


def _parameter(name, options):
  described = ",".join(f"{key}={value}" for key, value in options.items() if not isinstance(value, np.ndarray))
  return pytest.param(name, options, id=f"{name}-{described or 'default'}", marks=[pytest.mark.xdist_group(name)])


def numbers(name, options):
  """The options of a loss that are numbers or arrays: its program traces them, so that one serves all their values."""
  values = {**losses.options(name), **options}
  return {option: np.float64(value) for option, value in values.items()
          if isinstance(value, float | np.ndarray) and option != "last_constraints"}


def data(n, k, scale=2.0, seed=0):
  """Logits, and labels of which about two thirds are the top class."""
  rng = np.random.default_rng(seed)
  logits = (scale * rng.normal(size=(n, k))).astype(np.float32)
  labels = np.where(rng.uniform(size=n) < 0.6, logits.argmax(1), rng.integers(0, k, n)).astype(np.int32)
  return logits, labels


def masked(logits, mask, by=-np.inf):
  """The logits with ``by`` where ``mask``; float64 references take -1e4, whose exponential is 0."""
  return np.where(mask, np.asarray(by, logits.dtype), logits)


def other_class(labels, k, seed=5):
  """Bools ``[N, K]``, True at one class of each row that is not the label."""
  other = (labels + np.random.default_rng(seed).integers(1, k, len(labels))) % k
  return np.arange(k) == other[:, None]


_PROGRAMS = {}


def _program(name, fixed):
  """``(logits, labels, where, weights, numbers)`` to a loss, and its gradients in logits and numbers; jitted once."""
  key = name, repr(fixed)
  if key not in _PROGRAMS:
    loss = functools.partial({**losses.PER_EXAMPLE, **losses.PER_BATCH}[name], **fixed)

    @jax.jit
    def run(logits, labels, where, weights, numbers):
      batch = {"where": where} if weights is None else {"where": where, "weights": weights}
      values, pullback = jax.vjp(lambda z, x: loss(z, labels, **batch, **x), logits, numbers)
      return values, *pullback(jnp.ones_like(values))

    _PROGRAMS[key] = run
  return _PROGRAMS[key]


def step(name, options, rows=None):
  """``(logits, labels, where=None, weights=None)`` to values and gradients; ``step.slopes`` has those in numbers.

  Batches are padded to ``rows``, 64 or for a loss per batch 512, so that few programs are compiled. Padding holds NaN
  and labels out of range; no value and no gradient may reach it, nor rows whose ``where`` is False.
  """
  traced, rows = numbers(name, options), rows or (64 if name in PER_EXAMPLE else ROWS)
  run = _program(name, {option: value for option, value in options.items() if option not in traced})

  def padded(logits, labels, where=None, weights=None):
    n = len(labels)
    where = np.pad(np.ones(n, bool) if where is None else where, (0, rows - n))
    logits = np.pad(np.float32(logits), ((0, rows - n), (0, 0)), constant_values=np.nan)
    labels = np.pad(labels, ((0, rows - n), (0, 0))[:labels.ndim], constant_values=255)
    labels = labels.astype(np.int32 if labels.ndim == 1 else np.float32)
    weights = None if weights is None else np.pad(np.float32(weights), (0, rows - n))
    values, gradients, padded.slopes = jax.tree.map(np.asarray, run(
      logits, labels, where, weights, {option: x.astype(np.float32) for option, x in traced.items()}))
    assert not np.any(gradients[~where]) and not (values.ndim and np.any(values[~where]))
    return values[:n] if values.ndim else values, gradients[:n]

  return padded


def reference(name, logits, labels, options, frozen=None):
  """The reference's values ``[N]``, or its value of a loss per batch; ``labels`` integers, or targets ``[N, K]``."""
  function, labels = getattr(references, name), np.asarray(labels)
  if name in PER_EXAMPLE and labels.ndim == 1:
    labels = np.eye(logits.shape[1])[labels]
  if frozen is not None and "frozen" in inspect.signature(function).parameters:
    options = {**options, "frozen": frozen.astype(np.float64)}
  return function(np.asarray(logits, np.float64), labels, **options)


def slope(function, logits, direction, step=1e-5):
  """The central difference of ``function`` in float64 along a direction; of each row, if ``function`` has rows."""
  logits = logits.astype(np.float64)
  return (function(logits + step * direction) - function(logits - step * direction)) / (2 * step)


def check_examples(name, options, step, logits, labels):
  """A per-example loss and its gradient against the reference, row by row."""
  values, gradients = step(logits, labels)
  np.testing.assert_allclose(values, reference(name, logits, labels, options), rtol=2e-5, atol=1e-7)
  direction = np.random.default_rng(len(labels)).normal(size=logits.shape)
  expected = slope(lambda z: reference(name, z, labels, options, logits), logits, direction)
  np.testing.assert_allclose(np.sum(gradients * direction, axis=1), expected, rtol=2e-3, atol=2e-5)


def check_batch(name, options, step, logits, labels, where=None):
  """A per-batch loss and its gradient against the reference on the rows that count and where it does not jump."""
  keep = references.away_from_jumps(name, logits.astype(np.float64), options) & (True if where is None else where)
  value, gradient = step(np.where(keep[:, None], logits, np.nan), np.where(keep, labels, 255), keep)
  logits, labels = logits[keep], labels[keep]
  # Selective risk divides the rounding of its scores, of up to log K, by ν.
  rounding = 8 * 2**-24 * np.log(logits.shape[1]) / options.get("smoothing", 0.1) if name == "selective_risk" else 0
  np.testing.assert_allclose(value, reference(name, logits, labels, options), rtol=2e-5 + rounding, atol=1e-6)
  direction = np.random.default_rng(len(labels)).normal(size=logits.shape)
  expected = slope(lambda z: reference(name, z, labels, options, logits), logits, direction)
  actual = np.sum(np.asarray(gradient, np.float64)[keep] * direction)
  np.testing.assert_allclose(actual, expected, rtol=2e-3, atol=2e-4, err_msg=f"N = {len(labels)}")
