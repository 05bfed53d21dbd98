"""How often intervals hold the true value of a metric, or the true difference of two models.

Run: python -m experiments.coverage

Each simulation draws a sample from data whose posterior is known (estimators/simulation.py), computes the 95% interval
of a metric and checks whether it holds the value that the metric tends to as N grows. The differences of two models are
those of estimators/differences.py, p-values of dependent rows those of estimators/dependence.py, and samples with few
errors, by the whole of an evaluation, those of estimators/few_errors.py. In the end the tables of results/coverage.md
are written from all of them. Everything takes about five hours on one CPU core.
"""

from collections.abc import Callable
import functools
import itertools
from typing import NamedTuple
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from calib_jax import metrics
from experiments.common import commands, markdown, studies
from experiments.estimators import dependence, differences, few_errors, simulation
from experiments.estimators.simulation import dirichlet, gaussian_mixture, six_confidences

REPEATS = {100: 500, 300: 500, 1000: 500, 10_000: 200}  # Simulations by the number of examples.
SIZES = tuple(REPEATS)
SLOWEST = "smooth (smECE)"  # It is simulated last and less often.
RESAMPLES = {SLOWEST: 50, "NLL": 1000, "Brier": 1000, "AURC": 500}  # Of each interval; 200 of the other metrics.


class Metric(NamedTuple):
  """A metric, its values, the method of its interval, its key in ``simulation.limits``, and the model of its bias."""

  function: Callable
  inputs: tuple[str, ...]
  method: str
  target: str
  bias: metrics.BiasModel = metrics.CONSERVATIVE


PAIR = ("confidence", "correct")
METRICS = {
  **{name: Metric(simulation.ESTIMATORS[name][0], PAIR, "bias_corrected", simulation.ESTIMATORS[name][1], bias)
     for name, bias in simulation.BIAS.items()},
  "NLL": Metric(jnp.mean, ("nll",), "percentile", "nll"),
  "Brier": Metric(jnp.mean, ("brier",), "percentile", "brier"),
  "AURC": Metric(metrics.aurc, PAIR, "percentile", "aurc"),
}
MODELS = {  # A posterior, the exponents of a model and, where it has one, the shift of its first class.
  "calibrated": (gaussian_mixture, (1.0, 1.0)), "overconfident": (gaussian_mixture, (1.6, 1.6)),
  "underconfident": (gaussian_mixture, (0.7, 0.7)), "by class": (gaussian_mixture, (1.6, 0.7)),
  "calibrated, Dirichlet": (dirichlet, (1.0, 1.0, 1.0)),
  "by class, Dirichlet": (dirichlet, (1.6, 0.7, 0.7)),
  "shifted class": (gaussian_mixture, (1.0, 1.0), 1.0),
  "six confidences": (six_confidences, (1.0, 1.0)),
  "six confidences, overconfident": (six_confidences, (1.6, 1.6)),
}


# Compiled with all optimisations whatever the settings of the tests are, because it runs longer than it compiles.
@functools.partial(jax.jit, static_argnums=(0, 1), compiler_options={"xla_backend_optimization_level": 3})
def _intervals(metric: Metric, num_resamples: int, arrays, keys):
  def interval(x):
    return metrics.bootstrap(metric.function, *x[0], key=x[1], num_resamples=num_resamples, method=metric.method,
                             bias=metric.bias)

  return jax.lax.map(interval, (arrays, keys))


def coverage(name: str, model: str, size: int, repeats: int = 0, resamples: int = 0) -> list[dict[str, object]]:
  """The share of intervals that hold the true value, lie above it and below it; bias of the estimate; mean width."""
  metric = METRICS[name]
  repeats = repeats or (300 if name in (SLOWEST, "AURC") else REPEATS[size])
  resamples = resamples or RESAMPLES.get(name, 200)
  # Every cell has samples of its own: cells of the same samples would be low or high together.
  of_data, of_intervals = jax.random.split(jax.random.key(zlib.crc32(f"{name}, {model}, {size}".encode())))
  drawn = simulation.sample(of_data, (repeats, size), *MODELS[model])
  estimate, low, high = map(np.asarray, _intervals(metric, resamples, tuple(drawn[name] for name in metric.inputs),
                                                   jax.random.split(of_intervals, repeats)))
  truth = simulation.limits(*MODELS[model])[metric.target]
  shares = {"truth": truth, "covered": np.mean((low <= truth) & (truth <= high)), "above": np.mean(low > truth),
            "below": np.mean(high < truth), "bias": np.mean(estimate) - truth, "width": np.mean(high - low)}
  return [{"repeats": repeats, "resamples": resamples, **{key: f"{float(x):.5f}" for key, x in shares.items()}}]


def table(rows: pd.DataFrame) -> str:
  """The Markdown table of coverage and width; coverage that is too low is bold."""
  texts = rows.assign(text=studies.covered(rows)).pivot(index=["metric", "size"], columns="model", values="text")
  return markdown.table(["coverage (mean width), in %", "N", *MODELS], [
    (f"{name}, {METRICS[name].method}" if size == SIZES[0] else "", f"{size:,}", *texts.loc[(name, size), [*MODELS]])
    for name, size in itertools.product(METRICS, SIZES)]) + "\n"


CELLS = sorted(itertools.product(METRICS, MODELS, SIZES), key=lambda cell: (cell[0] == SLOWEST, cell[2]))
STUDY = studies.Study("coverage", ("metric", "model", "size"), tuple(CELLS), coverage, table)


if __name__ == "__main__":
  studies.in_docs(__spec__.name, __doc__, commands.RESULTS / "coverage.md", STUDY, differences.STUDY, dependence.STUDY,
                  few_errors.STUDY)
