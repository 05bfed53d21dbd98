r"""Intervals where few examples are wrong, or few are right: what was not seen yet may come.

Resamples of 60 right answers are 60 right answers, and their intervals have no width. The interval of Agresti & Coull
(1998) adds two right and two wrong answers to a share. Here the loss of the four is what the model itself expects of a
right and of a wrong answer, such as for the NLL, with confidences c and entropies H,

.. math:: \frac{\sum_i -c_i \log c_i}{\sum_i c_i} \quad\text{and}\quad \frac{\sum_i H_i + c_i \log c_i}{\sum_i 1 - c_i}

and the normal interval of the mean of all counts beside that of the resamples: ends are those that lie further out.
"""

import dataclasses

import numpy as np

from calib_jax._numerics.groups import standard_error
from calib_jax.evaluation.results import Estimate, Interval, Values

FEW = 25  # Units that are wrong, or right, below which ends are moved.
ADDED = 2.0  # Units of each kind.
WORST = 87.0  # What a wrong answer of a certain model costs in nats, as much as float32 holds.
ERRORS = ("ece", "ece_equal_mass_l2", "debiased", "adaptive", "ks", "sweep", "smooth")  # At least the mean excess.


def are_few(values: Values) -> bool:
  """Returns whether few examples, or groups that hold them, are wrong or right."""
  def units(rows):
    share = values.mean(rows).min()
    number = np.inf if values.groups is None else len(np.unique(values.groups[rows.any(axis=1)]))
    return min(share * values.num_units if values.groups is None else number, number)
  return min(units(values.correct), units(~values.correct)) < FEW


def num_wrong(values: Values) -> int:
  """Returns how many examples are wrong, or groups that hold one, the fewest of the seeds."""
  wrong = ~values.correct
  if values.groups is not None:
    return min(len(np.unique(values.groups[of_seed])) for of_seed in wrong.T)
  return int(wrong.sum(axis=0).min())


def of_right_and_wrong(values: Values) -> dict[str, tuple[float, float]]:
  """Returns by name what the model expects of a right and of a wrong answer, a mean over seeds."""
  c, entropy = values.confidence.astype(np.float64), values.entropy.astype(np.float64)
  own = -c * np.log(np.maximum(c, np.finfo(np.float32).tiny))
  right, wrong = values.mean(c).mean(), values.mean(1 - c).mean()
  classes = 1 if values.predicted is None else 2

  def pair(of_right, of_wrong, worst):
    return (float(values.mean(of_right).mean() / right) if right > 0 else worst,
            float(values.mean(of_wrong).mean() / wrong) if wrong > 1e-9 else worst)

  return {"accuracy": (1.0, 0.0), "nll": pair(own, np.maximum(entropy - own, 0), WORST),
          "brier": pair(classes * c * (1 - c) ** 2, classes * (1 - c) * c**2, float(classes)),
          "excess": pair(c * (c - 1), (1 - c) * c, 1.0)}


def with_unseen(of_examples: np.ndarray, right: float, wrong: float, values: Values) -> Interval:
  """Returns the mean of ``[N]`` values and its normal interval with ``ADDED`` units of both kinds."""
  count, mean = values.num_units, float(values.mean(of_examples))
  error = standard_error(of_examples, values.groups, values.weights)
  total = count + 2 * ADDED
  centre = (count * mean + ADDED * (right + wrong)) / total
  variance = (count * (count * error**2 + (mean - centre) ** 2)
              + ADDED * ((right - centre) ** 2 + (wrong - centre) ** 2)) / total
  margin = 1.96 * (variance / total) ** 0.5
  return Interval(mean, min(centre - margin, mean), max(centre + margin, mean))


def of_row(table: dict[str, Estimate], values: Values) -> dict[str, Estimate]:
  """Returns the estimates of a row with ends for errors that were not seen, if few were."""
  if not are_few(values):
    return table
  expected, table = of_right_and_wrong(values), dict(table)
  for name in ("accuracy", "nll", "brier"):
    interval = with_unseen(getattr(values, "correct" if name == "accuracy" else name).mean(axis=1), *expected[name],
                           values)
    table[name] = _wider(table[name], interval.low, interval.high)
  excess = with_unseen((values.confidence - values.correct).mean(axis=1), *expected["excess"], values)
  least, most = max(excess.low, -excess.high, 0.0), max(-excess.low, excess.high)
  for name in ERRORS:
    if name in table:  # Above the mean excess it has what bins show beside it.
      beyond = max(table[name].estimate - abs(excess.estimate), 0.0)
      table[name] = _wider(table[name], least, most + beyond)
  return table


def of_difference(name: str, change: Interval, values: Values, other: Values) -> Interval:
  """Returns the difference of a mean of two rows of the same examples with ends for errors that were not seen."""
  if name not in ("nll", "brier") or not (are_few(values) or are_few(other)):
    return change
  right, wrong = (np.subtract(*x) for x in zip(*(of_right_and_wrong(x)[name] for x in (values, other)), strict=True))
  interval = with_unseen(getattr(values, name).mean(axis=1) - getattr(other, name).mean(axis=1), right, wrong, values)
  return Interval(change.estimate, min(change.low, interval.low), max(change.high, interval.high))


def _wider(estimate: Estimate, low: float, high: float) -> Estimate:
  return dataclasses.replace(estimate, low=min(estimate.low, low), high=max(estimate.high, high))
