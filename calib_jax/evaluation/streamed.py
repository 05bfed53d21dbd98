"""Metrics of predictions with too many rows for memory: a pair of .npy is read in batches of constant size.

What is kept of the predictions is a ``metrics.CalibrationHistogram``, whose cells are so narrow that all examples of a
cell have the same confidence for any practical purpose. A part of the sample is therefore drawn as a number of right
and of wrong predictions for each cell, which are independent binomial variables.
"""

from collections.abc import Callable, Iterator
import dataclasses
import functools
import pathlib
import sys

import jax
import numpy as np

from calib_jax import metrics
from calib_jax._system import compilation
from calib_jax._system.errors import UserError
from calib_jax._system.files import read_npy
from calib_jax.evaluation import resamples, sections
from calib_jax.evaluation.measures import METRICS
from calib_jax.evaluation.results import Estimate, EvaluatedSet, Interval, Results, Row
from calib_jax.metrics import draws, resampled_errors
from calib_jax.metrics.bias_correction import moments
from calib_jax.metrics.calibration_tests import p_value_of
from calib_jax.predictions import headers, reading
from calib_jax.predictions.fitting import UNCALIBRATED
from calib_jax.predictions.scores import EXACT, NEAR, division, is_float, lacks_label, summarize, sums_to, tolerance

LARGE = 2_000_000  # Rows of a file that is streamed.
BATCH = 2**20  # Numbers of a batch.
NUM_RESAMPLES = 200
Z = 1.96  # The normal quantile of 95% intervals.
WIDTH = 30  # Characters of the progress bar.
# The names that evaluations give to what ``CalibrationHistogram.compute`` returns, and whether it is an error.
NAMES = {"accuracy": ("accuracy", False), "mean_confidence": ("mean_confidence", False),
         "ece": ("expected_calibration_error", True), "adaptive": ("adaptive_calibration_error", True),
         "mce": ("maximum_calibration_error", True), "ks": ("ks_calibration_error", True)}
NOTE = ("The predictions are streamed, because they have so many rows: only what CalibrationHistogram computes is "
        "measured, with 95% bootstrap intervals over its cells.")


def is_large(path: str) -> bool:
  """Returns whether predictions are a pair of .npy with so many rows that they are streamed."""
  pair = reading.PAIR.fullmatch(str(path))
  return bool(pair) and len(np.atleast_1d(read_npy(pair[1]))) >= LARGE


def measure(path: str, *, num_resamples: int | None = None, percent: bool = False, ignore_label: int | None = None,
            say: Callable[[str], None] = lambda note: None) -> tuple[Results, metrics.CalibrationHistogram]:
  """Measures a pair of .npy in constant memory.

  Args:
    path: ``LOGITS.npy,LABELS.npy``; the scores are probabilities if the name of their file says so, or if all rows of
      the first batch are probabilities, and else logits.
    num_resamples: the number of resamples of the intervals; None for 200.
    percent: as in ``evaluation.load``.
    ignore_label: as in ``evaluation.load``.
    say: as in ``evaluation.load``.

  Returns:
    ``(results, histogram)``. The results have the metrics of ``NAMES`` alone, in one row, which ``formats.to_lines``
    shows.

  Raises:
    UserError: if the arrays do not fit together, a row is not finite, a label is out of range, or its class has the
      logit -inf.
  """
  state, num_classes = _state(path, percent, ignore_label, say)
  num_resamples = num_resamples or NUM_RESAMPLES
  name = pathlib.Path(reading.PAIR.fullmatch(str(path))[1]).stem
  measured = estimates(state, num_resamples)
  evaluated = EvaluatedSet(int(state.bin_counts.sum()), num_classes, 1,
                           rows={(name, UNCALIBRATED): Row(measured, _excess(state))})
  results = Results(len(state.bin_counts), num_resamples, {name: evaluated}, sections=sections.empty())
  return results, state


def _state(path: str, percent: bool = False, ignore_label: int | None = None,
           say: Callable[[str], None] = lambda note: None) -> tuple[metrics.CalibrationHistogram, int]:
  """Returns the histogram of a pair of .npy, and the number of classes."""
  scores_path, labels_path = reading.PAIR.fullmatch(str(path)).groups()
  scores, labels = read_npy(scores_path), read_npy(labels_path)
  fits = scores.ndim == 2 and scores.shape[1] > 1 and is_float(scores.dtype)
  if not fits or labels.shape != scores.shape[:1] or labels.dtype.kind not in "iuf":
    raise UserError(f"{path}: scores must be floats (float16 to float64) [N, K] and labels integers [N]: got "
                    f"{scores.dtype} of shape {scores.shape} and {labels.dtype} of shape {labels.shape}.")
  unit, first = 100 if percent else 1, np.asarray(scores[:max(BATCH // scores.shape[1], 1)])
  summary = summarize(first)
  says_probs = percent or any(alias in pathlib.Path(scores_path).stem.lower() for alias in headers.PROBS)
  distributions = sums_to(unit, first, summary)
  name = "probs" if says_probs or distributions else "logits"
  if not distributions and sums_to(100, first, summary):
    raise UserError(f"{path}: its scores are percentages, because each row sums to 100: add --percent (percent=True "
                    "in Python).")
  why = "" if says_probs or name == "logits" else " The first rows are probabilities, so that all must be."
  divided = distributions and summary.deviation(unit) > EXACT * unit
  off = tolerance(unit, first) if distributions else NEAR * unit
  if divided:
    say(f"{path}: {division(name, first, summary, unit)}")
  update = _update(name)
  state = metrics.CalibrationHistogram.empty()
  state = jax.tree.map(lambda x: x.copy(), state)  # Its arrays share memory, which cannot be donated twice.
  for start, batch_scores, batch_labels, where in _batches(scores_path, labels_path, unit, ignore_label):
    wrong = ~np.isfinite(batch_scores.max(1)) | (batch_labels < 0)
    wrong |= lacks_label(batch_scores, np.maximum(batch_labels, 0))
    if name == "probs":
      sums = batch_scores.sum(1)
      wrong |= ~((batch_scores >= 0).all(1) & (batch_scores <= unit * (1 + 1e-6)).all(1) & (np.abs(sums - unit) <= off))
      batch_scores /= sums[:, None] if divided else unit
    wrong &= where
    if wrong.any():
      raise UserError(f"{path}: row {start + int(wrong.argmax())} of {name} is not finite or, for probs, not in "
                      f"[0, {unit}] or without the sum {unit}, or its label is not in [0, {scores.shape[1]}) or is "
                      f"a class that the row does not have.{why}")
    # Without waiting, batches would queue in memory.
    state = jax.block_until_ready(update(state, batch_scores, batch_labels, where))
    _show(min(start + len(where), len(labels)), len(labels))
  if ignore_label is not None:
    say(reading.left_out(path, len(labels) - int(state.bin_counts.sum()), len(labels), ignore_label))
  return state, scores.shape[1]


@functools.cache
def _update(name: str) -> Callable:
  """Returns the compiled function that adds a batch of scores, ``logits`` or ``probs``, to a histogram."""
  return jax.jit(lambda state, scores, labels, where: state.merge(
    metrics.CalibrationHistogram.from_model_output(labels=labels, where=where, **{name: scores})), donate_argnums=0,
    compiler_options=compilation.frugal())


def _show(done: int, total: int) -> None:
  """Draws a progress bar on a terminal."""
  if sys.stderr.isatty():
    filled = WIDTH * done // total
    print(f"\r[{'#' * filled}{'.' * (WIDTH - filled)}] {done:,} of {total:,} rows", end="" if done < total else "\n",
          file=sys.stderr, flush=True)


def estimates(state: metrics.CalibrationHistogram, num_resamples: int) -> dict[str, Estimate]:
  """Computes the metrics of a histogram with their intervals.

  Intervals of errors are those of ``metrics.bootstrap(method="bias_corrected")``, from halves, rests and fifths of the
  sample; those of means are normal, from the same halves.

  Args:
    state: the histogram.
    num_resamples: the number of halves, of fifths, and of redraws of which predictions are right.

  Returns:
    The metrics of ``NAMES``.
  """
  computed = jax.jit(type(state).compute, compiler_options=compilation.frugal())(state)
  used = np.flatnonzero(np.asarray(state.counts))
  count, correct = (np.asarray(x)[used].astype(np.int64) for x in (state.counts, state.correct))
  confidence = np.clip(np.asarray(state.mean_confidences())[used], 0, 1)
  ordered = resampled_errors.Ordered(confidence, len(state.bin_counts))

  def measured(count, correct):
    sums = ordered.sums_of_cells(count[None], correct[None])
    accuracy, gap = (x[0, -1] / sums.count[0] for x in (sums.correct, sums.gap))
    errors = {name: METRICS[name].function(sums)[0] for name, (_, is_error) in NAMES.items() if is_error}
    return {"accuracy": accuracy, "mean_confidence": accuracy + gap / resampled_errors.UNIT, **errors}

  rng = np.random.default_rng(0)

  def drawn(share):
    """A part of the sample: every example is in it with the probability ``share``."""
    right = rng.binomial(correct, share)
    return right + rng.binomial(count - correct, share), right

  parts = []
  for _ in range(num_resamples):
    size, right = drawn(1 / 2)
    parts.append([measured(size, right), measured(count - size, correct - right), measured(*drawn(1 / draws.FIFTH)),
                  measured(count, rng.binomial(count, confidence))])
  observed, by_name, errors = measured(count, correct), {}, {}
  for name, (key, is_error) in NAMES.items():
    value = np.float64(observed[name])
    half, rest, fifth, redrawn = np.array([[part[name] for part in kinds] for kinds in parts]).T
    if is_error:
      errors[name] = resamples.Resampled(value, moments(half, rest, fifth), redrawn.mean(), p_value_of(value, redrawn))
    else:
      margin = Z * np.sqrt(np.mean(((half - rest) / 2) ** 2))
      by_name[name] = Estimate.around(np.asarray(computed[key]).item(), value, max(value - margin, 0),
                                      min(value + margin, 1))
  rules = {name: METRICS[name].bias for name in errors}
  for name, ends in resamples.intervals(errors, rules).items():
    exact = np.asarray(computed[NAMES[name][0]]).item()
    by_name[name] = Estimate.around(exact, *map(float, ends), errors[name].floor, errors[name].p_value)
  excess = _excess(state)
  above = by_name["ks"].value + (excess.high - excess.low) / 2  # The rule that ``metrics.bootstrap`` has for it.
  return by_name | {"ks": dataclasses.replace(by_name["ks"], high=max(by_name["ks"].high, above))}


def _excess(state: metrics.CalibrationHistogram) -> Interval:
  """The mean confidence minus the accuracy."""
  count, correct, confidence = (np.asarray(x, np.float64) for x in (state.counts, state.correct,
                                                                    state.mean_confidences()))
  gap = np.sum(count * confidence - correct) / count.sum()
  # The mean square of confidence minus correctness, (c - 1)^2 for right predictions and c^2 for others.
  square = np.sum(correct * (confidence - 1) ** 2 + (count - correct) * confidence**2) / count.sum()
  chance = np.sum(count * confidence * (1 - confidence))  # The variance of a calibrated model, as in Values.excess.
  margin = Z * np.sqrt(max(square - gap**2, chance / count.sum()) / count.sum())
  return Interval(gap, gap - margin, gap + margin)


def _batches(scores_path: str, labels_path: str, unit: int, ignore_label: int | None
             ) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
  """Yields batches of the same size, the last filled with rows that do not count; a label that is out of range is -1.

  The files are mapped anew for each batch, because pages of a mapping stay in memory as long as it exists.
  """
  total, num_classes = read_npy(scores_path).shape
  size = max(BATCH // num_classes, 1)
  for start in range(0, total, size):
    rows, mapped = slice(start, start + size), [read_npy(path) for path in (scores_path, labels_path)]
    if [array.shape for array in mapped] != [(total, num_classes), (total,)]:
      raise UserError(f"{scores_path} or {labels_path} was written anew while it was read: wait until both are "
                      "complete, and run the same command again.")
    scores, labels = (np.array(array[rows]) for array in mapped)
    del mapped
    where = np.ones(len(labels), bool) if ignore_label is None else labels != ignore_label
    with np.errstate(invalid="ignore", over="ignore"):  # Infinity has no remainder, and no float32 may be larger.
      is_class = (labels >= 0) & (labels < num_classes) & (labels % 1 == 0)
      scores = np.where(where[:, None], scores, unit / num_classes).astype(np.float32)
    labels = np.where(is_class, np.where(is_class, labels, 0).astype(np.int32), -1)
    fill = size - len(labels)
    yield (start, np.pad(scores, ((0, fill), (0, 0)), constant_values=unit / num_classes),
           np.pad(np.where(where, labels, 0), (0, fill)), np.pad(where, (0, fill)))
