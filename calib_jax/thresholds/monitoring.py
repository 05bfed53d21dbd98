"""Whether a promise still holds, over a stream of outcomes that somebody may look at after every one of them."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from calib_jax import _checks as checks

SHARES = tuple(float(x) for x in np.geomspace(0.01, 0.9, 12))  # What is staked, of the most that can be.
MOST = 1e200  # Evidence is not counted further.


class Monitor(NamedTuple):
  """The evidence so far against a promise, which ``update_monitor`` replaces: numbers and lists, so that JSON holds it.

  Attributes:
    risk: the promise is that at most this share are errors; None where it is that confidences are calibrated.
    level: the promise is refuted falsely at most with the probability 1 - ``level``, however often one looks.
    sums: the value of each bet, of which those that begin later are a part.
    steps: the number of outcomes.
    happened: how many of them were errors; for calibration, how many were correct.
    expected: the sum of what the promise says of each: the risk, or the confidence.
    evidence: the e-value now: what a fortune of 1 that bets against the promise has become.
    refuted_at: the number of outcomes after which the promise was refuted, or None.
  """

  risk: float | None
  level: float
  sums: list[float]
  steps: int = 0
  happened: float = 0.0
  expected: float = 0.0
  evidence: float = 1.0
  refuted_at: int | None = None


def monitor(*, risk: float | None = None, level: float = 0.95) -> Monitor:
  """Returns a monitor that has seen nothing.

  Args:
    risk: the share of errors that is promised, in (0, 1); None to watch whether confidences are calibrated.
    level: the probability, in (0, 1), that a promise that holds is never refuted.

  Raises:
    TypeError, ValueError: for another value.
  """
  checks.options(level=(level, "(0, 1)"))
  if risk is not None:
    checks.options(risk=(risk, "(0, 1)"))
  return Monitor(risk, float(level), [0.0] * (len(SHARES) * (1 if risk is not None else 2)))


def update_monitor(state: Monitor, outcomes: ArrayLike, confidence: ArrayLike | None = None) -> Monitor:
  r"""Returns the monitor after more outcomes, one after the other.

  Each bet j stakes a share of its fortune on every outcome x against the mean m that the promise gives it:

  .. math:: M_j \leftarrow (M_j + w_t)\,(1 + \lambda_j (x_t - m_t)), \qquad w_t = \frac{1}{t (t + 1)}

  While the promise holds, E[x_t] is at most m_t (or equal to it, for calibration) whatever was before, so that the mean
  over bets of :math:`M_j`, plus the :math:`1 / (t + 1)` that is still to be staked, is a supermartingale from 1 on. By
  Ville's inequality it ever reaches 1 / (1 - ``level``) with a probability of at most 1 - ``level``. The part
  :math:`w_t` that enters at step t lets bets begin anew at each step, so that good years do not hide a late drift. The
  λ are 1% to 90% of the most that keeps every fortune above 0: of 1 / ``risk``, or of 1 in both directions.

  Args:
    state: the monitor so far.
    outcomes: ``[n]`` bools, or numbers in [0, 1]: of a ``risk``, whether accepted answers were errors; else whether
      answers were correct.
    confidence: ``[n]`` floats in [0, 1] where there is no ``risk``.

  Returns:
    A new monitor; ``state`` stays as it is, and outcomes in several calls give the same bits as in one.

  Raises:
    TypeError, ValueError: if an argument has the wrong shape or value.

  References:
    Ville 1939; Waudby-Smith & Ramdas 2024, bets on bounded means, with whose code (confseq 0.0.11) each bet agrees to
    3e-15; Shin et al. 2023, bets that begin at every step.

  >>> rng = np.random.default_rng(0)
  >>> good = update_monitor(monitor(risk=0.05), rng.uniform(size=2000) < 0.04)
  >>> drifted = update_monitor(good, rng.uniform(size=2000) < 0.15)
  >>> good.refuted_at, drifted.refuted_at is not None
  (None, True)
  """
  outcomes = np.asarray(outcomes)
  checks.rank(outcomes, 1, "outcomes", "[n]")
  if (state.risk is None) != (confidence is not None):
    raise ValueError("confidence must be given where the monitor has no risk, and not where it has one.")
  means = np.full(len(outcomes), state.risk) if confidence is None else np.asarray(confidence)
  checks.pair_values(means, outcomes, names=("confidence", "outcomes"), kind=checks.CREDITS)
  x, m = outcomes.astype(np.float64), means.astype(np.float64)
  bets = np.array(SHARES) / state.risk if state.risk is not None else np.array([*SHARES, *(-s for s in SHARES)])
  sums, step, refuted_at, evidence = np.array(state.sums), state.steps, state.refuted_at, state.evidence
  for of_step, mean in zip(x, m, strict=True):
    step += 1
    sums = np.minimum((sums + 1 / (step * (step + 1))) * (1 + bets * (of_step - mean)), MOST)
    evidence = float(sums.mean()) + 1 / (step + 1)
    if refuted_at is None and evidence >= 1 / (1 - state.level):
      refuted_at = step
  return Monitor(state.risk, state.level, sums.tolist(), step, state.happened + float(x.sum()),
                 state.expected + float(m.sum()), evidence, refuted_at)


def from_json(content: Any) -> Monitor:
  """Returns the monitor of what JSON holds of ``Monitor._asdict()``; a ValueError if it is of no monitor."""
  try:
    fields = Monitor(**content)
    new = monitor(risk=fields.risk, level=fields.level)
    numbers = np.array([*fields.sums, fields.happened, fields.expected, fields.evidence], float)
    is_one = (len(fields.sums) == len(new.sums) and np.isfinite(numbers).all() and (numbers >= 0).all()
              and type(fields.steps) is int and fields.steps >= 0
              and (fields.refuted_at is None or type(fields.refuted_at) is int))
  except (TypeError, ValueError) as error:
    raise ValueError("it holds no monitor.") from error
  if not is_one:
    raise ValueError("it holds no monitor.")
  return fields
