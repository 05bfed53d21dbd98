"""What a fit is worth and takes: CalArena's metrics, and processor seconds.

Probabilities below 1.2e-7, the precision of float32, count as that, as in scikit-learn's ``log_loss``; without it one 0
from an isotonic regression is worth 87 nats.

Every fit is run once before the clock starts, so that nothing is compiled while it is timed. On the first split the
implementations of a method are then fitted in turn, three times, and the row has the medians of the processor seconds
of a fit and of an application; a fit of more than two seconds is not repeated. Processor seconds are those of all
threads.
"""

from collections.abc import Iterator, Sequence
import statistics
import time
import warnings

import numpy as np

from calib_jax import metrics
from experiments.calarena import methods
from experiments.calarena.data_sets import Experiment

FEW, ENOUGH = 500, 1000  # The examples of the smaller calibration set, and of the larger one from which it is drawn.
REPEATS, LONG = 3, 2.0
LEAST = float(np.finfo(np.float32).eps)
METRICS = ("brier", "logloss", "ece-15", "accuracy")


def sized(experiment: Experiment) -> dict[str, Experiment]:
  """Returns the experiment with all calibration examples and, where they are many, with the first 500."""
  z, y = experiment.fit
  few = {"few": experiment._replace(fit=(z[:FEW], y[:FEW]))} if len(y) > ENOUGH else {}
  return {"all": experiment, **few}


def scores(log_probs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
  """Returns ``METRICS`` of log-probabilities ``[N, K]`` and labels ``[N]``.

  The calibration error leaves out classes of which the test set has no example; of two classes it is that of the
  second class's probability, and of more that of the top label.
  """
  probs = np.exp(log_probs.astype(np.float32))
  present, among = np.unique(labels, return_inverse=True)
  shares = np.clip(probs[:, present], 1e-7, 1 - 1e-7)
  shares /= shares.sum(1, keepdims=True)
  confidence, correct = (shares[:, 1], among) if len(present) == 2 else (shares.max(1), shares.argmax(1) == among)
  loss = -float(np.mean(np.take_along_axis(log_probs, labels[:, None], axis=1), dtype=np.float64))
  return {"brier": float(metrics.brier_score(probs, labels)), "logloss": loss,
          "ece-15": float(metrics.CONVENTIONS["torchmetrics"](confidence, correct.astype(bool), num_bins=15)),
          "accuracy": float(np.mean(probs.argmax(1) == labels))}


def measured(experiment: Experiment, name: str, *, peers: bool, timed: bool) -> Iterator[dict[str, object]]:
  """Yields the rows of a method: one a package, with empty scores if it failed."""
  num_classes = experiment.fit[0].shape[1]
  implementations, texts, notes = methods.of(name, num_classes, peers), {}, {}
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Peers warn of overflows and of what will change.
    for method in implementations:
      try:
        values, notes[method] = _scored(method, experiment)
        texts[method] = {key: f"{values[key]:.6g}" for key in METRICS}
      except Exception as error:  # Some peers fail on absent classes; ours must not.
        if method.package == methods.OURS:
          raise
        notes[method] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
    seconds = _seconds(list(texts), experiment) if timed else {}
  for method in implementations:
    yield {"classes": num_classes, "cal_size": len(experiment.fit[1]), "test_size": len(experiment.test[1]),
           "package": method.package, **texts.get(method, dict.fromkeys(METRICS, "")),
           **dict(zip(("fit_seconds", "apply_seconds"), seconds.get(method, ("", "")), strict=True)),
           "note": notes[method]}


def _scored(method: methods.Method, experiment: Experiment) -> tuple[dict[str, float], str]:
  """Fits and applies a method; returns its scores, and the choice of ``select``."""
  apply = method.fit(method.inputs(experiment.fit[0]), experiment.fit[1])
  probs = np.asarray(apply(method.inputs(experiment.test[0])), np.float64)
  if probs.shape != experiment.test[0].shape or not np.isfinite(probs).all():
    raise ValueError("the probabilities are not finite, or have another shape")
  return scores(np.log(np.clip(probs, LEAST, 1)), experiment.test[1]), getattr(apply, "choice", "")


def _seconds(implementations: Sequence[methods.Method], experiment: Experiment) -> dict[methods.Method, list[str]]:
  """Returns the median processor seconds of fits and of applications, in turn; each has run before."""
  taken = {method: [] for method in implementations}
  prepared = {method: (method.inputs(experiment.fit[0]), method.inputs(experiment.test[0])) for method in taken}
  for repeat in range(REPEATS):
    for method, (inputs, test) in prepared.items():
      if repeat and taken[method][0][0] > LONG:
        continue
      started = time.process_time()
      apply = method.fit(inputs, experiment.fit[1])
      fitted = time.process_time()
      apply(test)
      taken[method].append((fitted - started, time.process_time() - fitted))
  return {method: [f"{statistics.median(column):.4g}" for column in zip(*pairs, strict=True)]
          for method, pairs in taken.items()}
