"""Checks of the values of arrays that are not traced, each in one pass.

``check_values(False)`` or the environment variable ``CALIB_JAX_CHECK_VALUES=0`` turns them off. Each check raises
``TypeError`` for a wrong kind and ``ValueError`` for a wrong shape or value; the message names the argument, what it
was and what was expected.

Where labels cannot be read, because they are traced or the checks are off, losses and metrics are NaN if a label that
counts is not in ``[0, K)``, as optax's losses are. What is no float cannot say it: ``correct`` of ``metrics.top_label``
is False there, counts include the row, and the ``fit`` of a calibrator says ``converged`` False.
"""

from collections.abc import Callable, Iterable
import contextvars
import functools
import math
import os
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax._checks.shapes import (
  ABSENT,
  array,
  floating,
  is_readable,
  is_traced,
  mask,
  out_of_range,
  outputs_and_labels,
  same_shape,
)

Array = jax.Array
LOOKED_AT = 2**16  # Numbers of logits that are looked at for probabilities.
# Whether what is traced was read before: labels are classes, and logits are no probabilities.
WAS_READ = contextvars.ContextVar("was_read", default=False)
_values_are_checked = os.environ.get("CALIB_JAX_CHECK_VALUES", "1") != "0"


def check_values(enabled: bool) -> None:
  """Turns the checks of values, which are on by default, on or off for the whole program."""
  global _values_are_checked
  _values_are_checked = enabled


def are_checked(*arrays) -> bool:
  """Whether the values of these arrays are checked: checks are on, and none is traced."""
  return _values_are_checked and not is_traced(*arrays)


def class_values(outputs, labels, where=None, *, name: str = "probs", always: bool = False,
                 converted: tuple[Array, Array] | None = None) -> None:
  """Checks probabilities or logits ``[..., K]`` and labels; ``converted`` is what ``outputs_and_labels`` returned."""
  if not (_values_are_checked or always) or is_traced(outputs, labels, where):
    return
  if name == "logits" and are_right_on_host(outputs, labels):
    return
  checked_outputs, checked_labels = converted or outputs_and_labels(outputs, labels, name=name)
  where = mask(where, np.shape(labels))
  tolerance = sum_tolerance(outputs) if name == "probs" else None
  if not _any_row(wrong_classes, checked_outputs, checked_labels, where, tolerance):
    return
  num_classes = np.shape(outputs)[-1]
  rows, labels = np.asarray(outputs).reshape(-1, num_classes), np.asarray(labels).reshape(-1)
  with np.errstate(all="ignore"):
    narrow, rows = rows.astype(checked_outputs.dtype), rows.astype(np.float64)
    sums = rows.sum(-1)
  masked = (narrow == -np.inf) & (name == "logits")
  allowed = np.isfinite(narrow) | masked
  rules = [(f"{name} must be finite{' or -inf' * (name == 'logits')}", "be", "holds", ~allowed.all(-1),
            rows[np.arange(len(rows)), allowed.argmin(-1)]), _label_rule(labels, num_classes)]
  if name == "probs":
    rules[1:1] = [("probs must be at least 0", "be", "holds", (rows < 0).any(-1), rows.min(-1)),
                  ("probs must sum to 1 in each row", "do", "sums to", np.abs(sums - 1) > tolerance, sums)]
  else:
    rules[1:1] = [("each row of logits must hold a finite number", "do", "holds", masked.all(-1), rows[:, 0])]
    rules += [("labels must be classes that their rows have (logits less than 1e4 below the largest)", "be", "holds",
               np.asarray(_lacks_label(checked_outputs, checked_labels)).reshape(-1), labels)]
  _refuse(rules, where)


def are_right_on_host(logits, labels) -> bool:
  """Whether NumPy sees without a copy that a fit can take arrays as they are; if not, the other checks say why."""
  # In a fit of 2,000 examples of two classes, the checks one by one take as long as the fit.
  for x in (logits, labels):
    if type(x) is not np.ndarray and not is_on_host(x):
      return False
  logits, labels = np.asarray(logits), np.asarray(labels)
  if not (logits.dtype in (np.float32, np.float64) and labels.dtype.kind in "iu" and labels.size
          and logits.shape[:-1] == labels.shape and logits.shape[-1] >= 2):
    return False
  with np.errstate(all="ignore"):
    # Fits are in float32, in which larger numbers are infinite. NaN and infinite ranges are not below any number.
    low, high = np.float32(logits.min()), np.float32(logits.max())
    return bool(high - low < -ABSENT and (low < 0 or high > 1)  # Those in [0, 1] may be probabilities.
                and labels.min() >= 0 and labels.max() < logits.shape[-1])


def is_on_host(x) -> bool:
  """Whether a JAX array is in the memory of the CPU, and not traced."""
  return (isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
          and getattr(x.device, "platform", "") == "cpu")


def label_values(labels, num_classes: int, where=None) -> bool:
  """Checks integer ``labels`` as ``class_values`` does, in O(N), and says whether all were read and are classes.

  Float labels, distributions, are not read.
  """
  if WAS_READ.get():
    return True
  if not _values_are_checked or not ((where is None and type(labels) is np.ndarray) or is_readable(labels, where)):
    return False
  labels = np.asarray(labels).reshape(-1)
  if not labels.size or labels.dtype.kind not in "iu":
    return False
  if labels.min() >= 0 and labels.max() < num_classes:
    return True
  _refuse([_label_rule(labels, num_classes)], where)
  return False


def masked_class(logits, why: str) -> None:
  """Raises a ValueError, which ``why`` opens, if a logit is -inf, for losses to which that means nothing."""
  if not _values_are_checked or not is_readable(logits):
    return
  rows = np.asarray(jnp.any(logits == -jnp.inf, axis=-1)).reshape(-1)
  if rows.any():
    raise ValueError(f"{why}, so that a masked class, a logit of -inf, has no meaning: {rows.sum()} of {len(rows)} "
                     f"rows hold one; the first is row {np.argmax(rows)}.")


def something_counts(labels, where=None) -> None:
  """Raises a ValueError if no example counts; traced arrays are not checked, as in ``class_values``."""
  if not _values_are_checked or is_traced(labels, where):
    return
  if not (np.size(labels) if where is None else np.any(where)):
    raise ValueError("there must be at least one example to fit: no row counts.")


def warn_of_probs(logits: Array, where: Array | None = None, *, fewest: int = 1, what: str = "calibrators") -> None:
  """Warns if the logits ``[..., K]`` look like probabilities: rows in [0, 1] whose sum is within 1e-3 of 1.

  Fewer than ``fewest`` rows may be so by chance; ``what`` takes logits.
  """
  if WAS_READ.get() or not _values_are_checked or not is_readable(logits, where):
    return
  shard = logits.addressable_shards[0]  # What one device holds is read without a copy from the others.
  most = max(LOOKED_AT // max(math.prod(shard.data.shape[1:]), 1), 1)
  rows = np.asarray(shard.data[:most] if len(shard.data) > most else shard.data)
  if where is not None:
    rows = rows[np.asarray(where)[shard.index[:-1]][:most]]
  rows = rows.reshape(-1, logits.shape[-1])
  first = rows[:1]  # It alone shows of most logits that they are none.
  if len(rows) >= fewest and ((first >= 0) & (first <= 1)).all() and _are_probs(rows):
    warnings.warn(f"logits look like probabilities (rows in [0, 1] that sum to 1), and {what} take logits: pass "
                  "jnp.log(probs) instead, or jnp.log(jnp.maximum(probs, 1e-37)) if some are 0 by rounding.",
                  UserWarning, stacklevel=_level_outside())


def _are_probs(rows: np.ndarray) -> bool:
  if not ((rows >= 0) & (rows <= 1)).all():
    return False
  return bool((np.abs(rows.astype(np.float64).sum(-1) - 1) <= sum_tolerance(rows)).all())


def _level_outside() -> int:
  """The ``stacklevel`` for which a warning of the calling function names a line outside this package."""
  level, frame = 0, sys._getframe()
  while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == __name__.partition(".")[0]:
    level, frame = level + 1, frame.f_back
  return level


# What the second of a pair may be: any finite number; 0 or 1; or ``correct``, which may be a credit between them.
ANY, BINARY, CREDITS = "any", "binary", "credits"
CREDIT_RULE = ("must be bools, zeros and ones, or credits in [0, 1] (a loss of each example is passed as risk=, and "
               "labels are passed to metrics of probs and labels)")


def pair_values(scores, values, where=None, *, names: tuple[str, str] = ("confidence", "correct"),
                high: float = 1.0, kind: str = ANY) -> None:
  """Checks that a pair is finite, the first in ``[1 - high, high]``, and the second of its ``kind``."""
  if not _values_are_checked or is_traced(scores, values, where):
    return
  scores = array(scores, names[0])
  checked = (scores if isinstance(scores, np.ndarray) and scores.dtype in (np.float32, np.float64) else
             floating(scores, names[0])), array(values, names[1])
  same_shape(*checked, names)
  where = mask(where, np.shape(scores))
  if _any_pair(_wrong_pairs, *checked, where, (high, kind)):
    scores, values = (np.asarray(x).astype(np.float64).reshape(-1) for x in (scores, values))
    wrong = (values != 0) & (values != 1) if kind == BINARY else (values < 0) | (values > 1)
    text = CREDIT_RULE if kind == CREDITS else "must be bools, or zeros and ones"
    _refuse([(f"{names[0]} must be finite", "be", "holds", ~np.isfinite(scores), scores),
             (f"{names[0]} must be in [0, 1]", "be", "holds", (scores < 1 - high) | (scores > high), scores),
             (f"{names[1]} must be finite", "be", "holds", ~np.isfinite(values), values),
             (f"{names[1]} {text}", "be", "holds", wrong, values)], where)


def credits(confidence, correct, where=None, *, names: tuple[str, str] = ("confidence", "correct"), high: float = 1.0):
  """``correct`` once it is checked with ``confidence``: as bools or, where some may be credits, as it is."""
  confidence, correct = array(confidence, names[0]), array(correct, names[1])
  pair_values(confidence, correct, where, names=names, high=high, kind=CREDITS)
  if correct.dtype == bool or is_traced(correct, where) or not _values_are_checked:
    return correct
  where = mask(where, np.shape(correct))
  if _any_pair(_is_between, correct, None, where):
    return correct
  return correct > 0


def _is_between(credits: Array, *_: None) -> Array:
  return (credits > 0) & (credits < 1)


def is_outside(credits: Array) -> Array:
  """Which of traced credits are none, because they are not in [0, 1]: metrics are NaN where one counts."""
  return ~((credits >= 0) & (credits <= 1))


def _any_row(rule: Callable, scores, values, where: Array | None, option) -> bool:
  """Whether the ``rule`` holds for a row that counts; False if nothing can be read, because a caller is traced."""
  any_row = _compiled_rule(rule, scores, values, where, option)
  return not is_traced(any_row) and bool(any_row)


def _any_pair(rule: Callable, scores, values, where, option=None) -> bool:
  """``_any_row`` of a rule for NumPy's arrays too, which compiles nothing for a new number of rows on the host."""
  if not all(x is None or isinstance(x, np.ndarray) or is_on_host(x) for x in (scores, values, where)):
    return _any_row(rule, scores, values, where, option)
  scores, values, where = (x if x is None else np.asarray(x, jax.dtypes.canonicalize_dtype(x.dtype))
                           for x in (scores, values, where))
  rows = rule(scores, values, option)
  return bool(np.any(rows if where is None else rows & where))


@functools.partial(jax.jit, static_argnums=(0, 4))
def _compiled_rule(rule: Callable, scores: Array, values: Array, where: Array | None, option) -> Array:
  rows = rule(scores, values, option)
  return jnp.any(rows if where is None else rows & where)


def wrong_classes(outputs: Array, labels: Array, tolerance: float | None) -> Array:
  """Which rows break a rule of ``class_values``, in one pass; ``tolerance`` of sums is None for logits."""
  if tolerance is not None:
    total, num_negative = sum_and_count(outputs, outputs < 0)  # A row with a NaN sums to NaN.
    wrong = ~(jnp.abs(total - 1) <= tolerance) | (num_negative > 0)
  else:
    wrong = _lacks_label(outputs, labels)
  return wrong | out_of_range(labels, outputs.shape[-1])


def sum_and_count(values: Array, flags: Array) -> tuple[Array, Array]:
  """The sums of floats over the classes, and how many flags are True: ``[..., K]`` to ``[...]``, without a gradient."""
  # XLA:CPU vectorises a reduction of floats and integers together, but not of floats that a select makes: the two
  # are one pass, where the sum alone takes ten times as long. XLA drops a count that nobody uses, and is slow again.
  def combine(a, b):
    return a[0] + b[0], a[1] + b[1]

  start = jnp.zeros((), values.dtype), jnp.int32(0)
  return tuple(jax.lax.reduce((values, flags.astype(jnp.int32)), start, combine, (values.ndim - 1,)))


def _lacks_label(logits: Array, labels: Array) -> Array:
  """Which rows do not have the class of their label; also rows with NaN or inf, and rows of -inf alone."""
  is_label = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
  return ~(jnp.sum(logits, axis=-1, where=is_label) - jnp.max(logits, axis=-1) > ABSENT)


def _label_rule(labels: np.ndarray, num_classes: int) -> tuple[str, str, str, np.ndarray, np.ndarray]:
  """The rule of ``_refuse`` for labels ``[N]``."""
  return f"labels must be in [0, {num_classes})", "be", "holds", out_of_range(labels, num_classes), labels


def sum_tolerance(probs) -> float:
  """How far the sum of a row of probabilities may be from 1, by their dtype."""
  return max(1e-3, 4 * float(jnp.finfo(probs.dtype).eps))


def _wrong_pairs(scores: Array, values: Array, option: tuple[float, str]) -> Array:
  """Which pairs break a rule of ``pair_values``, whose ``(high, kind)`` is the option, of JAX's arrays or NumPy's."""
  high, kind = option
  is_value = (values == values if values.dtype == jnp.bool_ else abs(values) < jnp.inf if kind == ANY else
              (values == 0) | (values == 1) if kind == BINARY else (values >= 0) & (values <= 1))
  return ~((abs(scores) < jnp.inf) & (scores >= 1 - high) & (scores <= high) & is_value)


def _refuse(rules: Iterable[tuple[str, str, str, np.ndarray, np.ndarray]], where: Array | None) -> None:
  """Raises a ValueError for the first broken rule ``(text, verb, verb before the number, broken, number)``."""
  for rule, verb, shows, wrong, numbers in rules:
    wrong = wrong if where is None else wrong & np.asarray(where).reshape(-1)
    if wrong.any():
      first, count = int(np.argmax(wrong)), int(wrong.sum())
      verb = {"be": ("is", "are"), "do": ("does", "do")}[verb][count > 1]
      number = f"{numbers[first]:.6g}" if numbers.dtype.kind == "f" else numbers[first]
      # PyTorch's losses leave out rows whose label is -100.
      padding = (f" (rows to ignore are left out by where=labels != {number}, which losses, metrics and fits take)"
                 ) if numbers.dtype.kind == "i" and numbers[first] < 0 else ""
      from_1 = " If they go from 1, pass labels - 1." if numbers.dtype.kind == "i" and numbers.min() == 1 else ""
      raise ValueError(f"{rule}: {count} of {len(wrong)} rows {verb} not; the first, row {first}, {shows} {number}"
                       f"{padding}.{from_1}")
