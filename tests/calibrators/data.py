"""Every calibrator by name, and logits to calibrate: synthetic ones, whose labels know a bent truth, and real ones."""

import functools
import inspect

import jax
import numpy as np
import pytest
from scipy import special
from sklearn import datasets, linear_model

from calib_jax import calibrators

# Every calibrator by name, with the options that it needs. That of records takes two columns alone: test_records.
CASES = {name: {} for name in calibrators.CALIBRATORS if name != "record_calibration" and ":" not in name} | {
  "focal_calibration": {"gamma": -0.5}, "focal_temperature_scaling": {"search": "line"},
  "meta_calibration": {"target": 0.1}}

VARIANTS = {
  **{name: (name, options) for name, options in CASES.items()},
  "TS by binned error": ("temperature_scaling", {"objective": "ece"}),
  "focal gradient": ("focal_temperature_scaling", {"search": "gradient", "objective": "nll"}),
  "metaacc": ("meta_calibration", {"constraint": "accuracy", "target": 0.9}),
  **{f"top {name}": (name, {"top_label": True}) for name in ("isotonic", "histogram_binning", "platt")},
  "cross venn_abers": ("venn_abers", {"kind": "cross", "top_label": True}),
  "equal widths": ("histogram_binning", {"binning": "equal_width"}),
  "classwise class_temperature_scaling": ("classwise_loss_scaling", {"base": "class_temperature_scaling"}),
}
# Their fits compile longest, or repeat what another variant does.
LATER = ("TS by binned error", "focal gradient", "classwise class_temperature_scaling", "top platt", "equal widths",
         "structured_vector_scaling", "dirichlet", "smart")


def grouped(names):
  """Parameters of a test: all tests of one variant run in one worker, which compiles it once."""
  return [pytest.param(name, marks=[pytest.mark.xdist_group(f"fit {name}"), *[pytest.mark.slow] * (name in LATER)])
          for name in names]


def synthetic(n, k, *, scale=3.0, seed=0):
  """Overconfident logits, unevenly so by class; labels drawn from the truth."""
  rng = np.random.default_rng(seed)
  logits = scale * rng.normal(size=(n, k))
  truth = logits / 1.7 * np.exp(0.2 * rng.normal(size=k)) + 0.5 * rng.normal(size=k)
  labels = (special.softmax(truth, axis=1).cumsum(1) < rng.uniform(size=(n, 1))).sum(1).clip(0, k - 1)
  return logits.astype(np.float32), labels.astype(np.int32)


@functools.cache
def real():
  """1,197 held-out logits of a logistic regression trained on 600 real digits, 8 by 8."""
  images, labels = datasets.load_digits(return_X_y=True)
  order = np.random.default_rng(0).permutation(len(labels))
  images, labels = images[order] / 16, labels[order]
  model = linear_model.LogisticRegression(C=100.0, max_iter=500).fit(images[:600], labels[:600])
  return model.decision_function(images[600:]).astype(np.float32), labels[600:].astype(np.int32)


SETS = {"real": real, **{f"K={k}": functools.partial(synthetic, n, k)
                         for n, k in ((300, 2), (500, 10), (1000, 100), (1500, 1000))}}

SHAPE = (600, 10)  # Of all fits in the fast tests, so that each calibrator compiles once.


def padded(name):
  """Logits ``SHAPE``, labels and ``where`` of "real" or "K=10": what does not count stands anywhere and holds NaN."""
  logits, labels = (x[1::2] if name == "real" else x for x in SETS[name]())
  where = np.zeros(SHAPE[0], bool)
  where[np.random.default_rng(0).permutation(SHAPE[0])[:len(labels)]] = True
  wide, wide_labels = np.full(SHAPE, np.nan, np.float32), np.full(SHAPE[0], -1, np.int32)
  wide[where], wide_labels[where] = logits, labels
  return wide, wide_labels, where


def sample(data):
  """``(arguments of fit, logits, labels)`` of one of ``SETS``, also "padded" ones; the last two are rows that count."""
  if not data.startswith("padded"):
    logits, labels = SETS[data]()
    return (logits, labels, None), logits, labels
  logits, labels, where = padded(data.removeprefix("padded "))
  return (logits, labels, where), logits[where], labels[where]


def made(name, **options):
  """A calibrator whose ``apply`` is compiled: the same one for the same options, so that it stays so."""
  defaults = inspect.signature(calibrators.CALIBRATORS[name]).parameters
  return _made(name, *sorted((k, v) for k, v in options.items() if k not in defaults or v != defaults[k].default))


@functools.cache
def _made(name, *options):
  calibrator = calibrators.get(name, **dict(options))
  return calibrators.Calibrator(calibrator.fit, jax.jit(calibrator.apply))
