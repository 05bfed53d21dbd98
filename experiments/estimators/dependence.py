"""How often the p-value of a calibration error is below 5%, where seeds share examples or rows come in groups.

`python -m experiments.coverage` runs this. Outcomes are drawn from the posterior of two classes, so that entries of one
example, or of one group, share their uniform number with a probability that is the correlation of their residuals. The
calibrated model should be rejected in at most 5%; the overconfident one, with the exponent 1.15, as often as can be.
"""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy import stats

from calib_jax import metrics
from experiments.common import markdown, studies
from experiments.estimators.simulation import ESTIMATORS

REPEATS, REDRAWS, LEVEL = 1000, 99, 0.05


class Data(NamedTuple):
  """The numbers of groups, of rows of a group and of seeds, and whether all rows of a group have one confidence."""

  groups: int
  rows: int
  seeds: int
  equal: bool = False


DATA = {"five seeds, N = 1,000": Data(1000, 1, 5), "400 groups of 5 equal rows": Data(400, 5, 1, True),
        "40 groups of 25 rows": Data(40, 25, 1)}
CORRELATIONS = (0.0, 0.4, 0.8, 1.0)
EXPONENTS = {"calibrated": 1.0, "overconfident": 1.15}
METRICS = ("ECE, 15 equal-width bins", "KS")
TESTS = ("dependent", "independent")  # By groups and shared numbers, as metrics do, and as if all were independent.


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4), compiler_options={"xla_backend_optimization_level": 3})
def _p_values(data: Data, metric: str, correlation: float, exponent: float, test: str, keys: jax.Array) -> jax.Array:
  error = ESTIMATORS[metric][0]
  shape = (data.groups, data.rows, data.seeds)
  groups = np.repeat(np.arange(data.groups), data.rows) if data.rows > 1 else None

  def mean_error(confidence, correct):
    return jnp.mean(jax.vmap(error, in_axes=1)(confidence, correct))

  def p_value(key):
    of_x, of_common, of_own, of_choice, of_test = jax.random.split(key, 5)
    log_odds = jnp.abs(2 * (1 + jax.random.normal(of_x, (data.groups, 1 if data.equal else data.rows, 1))))
    log_odds = jnp.broadcast_to(log_odds, shape)
    is_common = jax.random.uniform(of_choice, shape) < jnp.sqrt(correlation)
    own, common = jax.random.uniform(of_own, shape), jax.random.uniform(of_common, (data.groups, 1, 1))
    numbers = jnp.where(is_common, common, own)
    correct = (numbers < jax.nn.sigmoid(log_odds)).reshape(-1, data.seeds)
    confidence = jax.nn.sigmoid(exponent * log_odds).reshape(-1, data.seeds)
    if test == "dependent":
      return metrics.calibration_test(mean_error, confidence, correct, key=of_test, num_resamples=REDRAWS,
                                      groups=groups)

    def redrawn(key):
      return mean_error(confidence, jax.random.uniform(key, confidence.shape) < confidence)

    values = jax.lax.map(redrawn, jax.random.split(of_test, REDRAWS))
    return (1 + jnp.sum(values >= mean_error(confidence, correct))) / (1 + REDRAWS)

  return jax.lax.map(p_value, keys)


def rejected(data: str, metric: str, correlation: float, model: str, test: str) -> list[dict[str, object]]:
  """Returns the row of a cell, in a list."""
  keys = jax.random.split(jax.random.key(0), REPEATS)
  p_values = _p_values(DATA[data], metric, correlation, EXPONENTS[model], test, keys)
  return [{"repeats": REPEATS, "redraws": REDRAWS, "rejected": f"{float(jnp.mean(p_values <= LEVEL)):.4f}"}]


def table(rows: pd.DataFrame) -> str:
  """The Markdown table of how often p is at most 5%.

  A calibrated model that is rejected in more than 6%, and more often than chance makes of 5% in one of a hundred
  simulations, is bold.
  """
  chance = stats.binom.sf((rows.rejected * rows.repeats).round() - 1, rows.repeats, LEVEL)
  is_high = (rows.model == "calibrated") & (rows.rejected > 0.06) & (chance < 0.01)
  shares = studies.percent(rows.rejected)
  texts = rows.assign(text=shares.mask(is_high, "**" + shares + "**")).pivot(
    index=["data", "metric", "correlation"], columns=["model", "test"], values="text")
  columns = list(itertools.product(EXPONENTS, TESTS))
  headings = ["p at most 5%, in %", "metric", "correlation",
              *(f"{model}, redrawn as {test}" for model, test in columns)]
  return markdown.table(headings, [(*key, *texts.loc[key, columns])
                                   for key in dict.fromkeys(cell[:3] for cell in STUDY.cells)]) + "\n"


STUDY = studies.Study("coverage_of_p_values", ("data", "metric", "correlation", "model", "test"),
                      tuple(cell for cell in itertools.product(DATA, METRICS, CORRELATIONS, EXPONENTS, TESTS)
                            if not DATA[cell[0]].equal or cell[2] in (0.0, 1.0)), rejected, table)
