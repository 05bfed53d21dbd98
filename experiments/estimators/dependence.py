"""How often the p-value of a calibration error is below 5%, where seeds share examples or rows come in groups.

`python -m experiments.coverage` runs this. Outcomes are drawn from the posterior of two classes, so that entries of one
example, or of one group, share their uniform number with a probability that is the correlation of their residuals. The
calibrated model should be rejected in at most 5%; the overconfident one, with the exponent 1.15, as often as can be.
Rows are appended to experiments/results/coverage_of_p_values.csv as they come; what it already holds is skipped.
"""

from collections.abc import Mapping
import functools
import itertools
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from calib_jax import metrics
from experiments.common import commands
from experiments.common.rows import append, read
from experiments.estimators.simulation import ESTIMATORS

RESULTS = commands.RESULTS / "coverage_of_p_values.csv"
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


def simulate() -> None:
  """Simulates what has no row yet."""
  done = {(row["data"], row["metric"], float(row["correlation"]), row["model"], row["test"]) for row in read(RESULTS)}
  for cell in itertools.product(DATA, METRICS, CORRELATIONS, EXPONENTS, TESTS):
    data, metric, correlation, model, test = cell
    if cell in done or (data == "400 groups of 5 equal rows" and correlation not in (0.0, 1.0)):
      continue
    started = time.monotonic()
    keys = jax.random.split(jax.random.key(0), REPEATS)
    p_values = _p_values(DATA[data], metric, correlation, EXPONENTS[model], test, keys)
    rejected = float(jnp.mean(p_values <= LEVEL))
    append(RESULTS, [{"data": data, "metric": metric, "correlation": correlation, "model": model, "test": test,
                      "repeats": REPEATS, "redraws": REDRAWS, "rejected": f"{rejected:.4f}"}])
    print(f"{', '.join(map(str, cell))}: {100 * rejected:.1f}%; {time.monotonic() - started:.0f} s", flush=True)


def is_too_often(row: Mapping[str, str]) -> bool:
  """Whether more than 6% are rejected, and more than chance makes of 5% in one of a hundred simulations."""
  rejected, repeats = float(row["rejected"]), int(row["repeats"])
  return rejected > 0.06 and stats.binom.sf(round(rejected * repeats) - 1, repeats, LEVEL) < 0.01


def _percent(row: Mapping[str, str]) -> str:
  return f"{100 * float(row['rejected']):.1f}"


def table(rows: list[dict]) -> str:
  """The Markdown table of how often p is at most 5%; a calibrated model that is rejected too often is bold."""
  cells = {(row["data"], row["metric"], float(row["correlation"]), row["model"], row["test"]): row for row in rows}
  columns = list(itertools.product(EXPONENTS, TESTS))
  heads = " | ".join(f"{model}, redrawn as {test}" for model, test in columns)
  lines = [f"| p at most 5%, in % | metric | correlation | {heads} |", "|---" * (3 + len(columns)) + "|"]
  for data, metric, correlation in itertools.product(DATA, METRICS, CORRELATIONS):
    shares = [cells.get((data, metric, correlation, *column)) for column in columns]
    if None in shares:
      continue
    texts = [f"**{_percent(row)}**" if model == "calibrated" and is_too_often(row) else _percent(row)
             for row, (model, _) in zip(shares, columns, strict=True)]
    lines.append(f"| {data} | {metric} | {correlation} | {' | '.join(texts)} |")
  return "\n".join(lines) + "\n"
