"""How often the first line of a verdict is wrong where the truth is known: the table of results/verdicts.md.

Run: python -m experiments.estimators.verdicts   (about twenty minutes on two CPU cores)

Logits z of K classes are normal, and labels are drawn from softmax(z), or without regard to z. The model shows scale ·
(z + bias), so that with 1 and 0 it is calibrated. TS is fitted to as many other examples. Estimates and intervals are
computed by definition in NumPy, because a thousand whole evaluations would take hours; the rules that turn them into
sentences are those of the package.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd
from scipy.special import log_softmax

from calib_jax import calibrators, evaluation, metrics
from calib_jax.evaluation import subgroups
from calib_jax.evaluation.predictions.predictions import Subgroups
from calib_jax.evaluation.results import Recommendation, over_seeds
from calib_jax.evaluation.verdict import decisions
from calib_jax.evaluation.verdict.verdict import verdict
from experiments.common import commands, markdown, studies

POPULATION = 100_000  # Examples of which the true gain of a temperature is a mean.
NUM_REDRAWS = 99
TS = calibrators.temperature_scaling()


class Truth(NamedTuple):
  """How logits and labels are drawn."""

  n: int  # The number of examples, to fit TS to and to test it on.
  scale: float = 1.0  # The factor of the logits that the model shows; the right temperature.
  spread: float = 2.0  # The standard deviation of the logits z.
  num_classes: int = 10
  bias: float = 0.0  # How far half of the classes are raised, and the others lowered, in what the model shows.
  signal: float = 1.0  # Labels are drawn from softmax(signal · z); with 0 the model is at chance.
  num_groups: int = 0  # Groups whose examples are copies of each other; 0 for none.


def sample(rng: np.random.Generator, truth: Truth) -> tuple[np.ndarray, np.ndarray]:
  """Returns the logits that a model shows and the labels."""
  count = truth.num_groups or truth.n
  logits = truth.spread * rng.normal(size=(count, truth.num_classes))
  probs = np.exp(log_softmax(truth.signal * logits, axis=1))
  labels = (probs.cumsum(1) > rng.uniform(size=(count, 1))).argmax(1)
  rows = np.arange(truth.n) % count
  raised = np.where(np.arange(truth.num_classes) < truth.num_classes // 2, truth.bias, -truth.bias)
  return (truth.scale * (logits + raised))[rows], labels[rows]


def losses(logits: np.ndarray, labels: np.ndarray, temperature: float) -> np.ndarray:
  """Returns the log loss of each example, in nats."""
  return -log_softmax(logits / temperature, axis=1)[np.arange(len(labels)), labels]


@functools.cache
def true_gain(truth: Truth, temperature: float) -> float:
  """Returns by how much a temperature lowers the log loss of a model, in nats."""
  population = _population(truth._replace(n=POPULATION))
  return float((losses(*population, 1.0) - losses(*population, temperature)).mean())


@functools.cache
def _population(truth: Truth) -> tuple[np.ndarray, np.ndarray]:
  return sample(np.random.default_rng(1), truth)


def _normal(samples: np.ndarray) -> evaluation.Interval:
  mean, margin = samples.mean(), 1.96 * samples.std() / len(samples) ** 0.5
  return evaluation.Interval(mean, mean - margin, mean + margin)


def simulated(rng: np.random.Generator, truth: Truth) -> evaluation.Results:
  """Returns the results of a model before and after TS."""
  params = TS.fit(*(x.astype(dtype) for x, dtype in zip(sample(rng, truth), (np.float32, np.int32), strict=True)))
  temperature = float(params["temperature"])
  logits, labels = sample(rng, truth)
  groups = np.arange(truth.n) % truth.num_groups if truth.num_groups else None
  before, after = (losses(logits, labels, t) for t in (1.0, temperature))
  predicted = logits.argmax(1)[:, None]
  correct, rows = predicted == labels[:, None], {}
  for label, nll, t in (("none", before, 1.0), ("TS", after, temperature)):
    confidence = np.exp(log_softmax(logits / t, axis=1)).max(1, keepdims=True).astype(np.float32)
    outcomes = np.concatenate([correct, rng.uniform(size=(truth.n, NUM_REDRAWS)) < confidence], axis=1)
    bins = np.ceil(confidence[:, 0] * 15).astype(int)
    errors = sum(abs((confidence - outcomes)[bins == j].sum(0)) for j in range(16)) / truth.n
    ece = evaluation.Estimate(errors[0], errors[0], 0, errors[0], errors[1:].mean(),
                              np.mean(errors >= errors[0] * (1 - 1e-5)), [errors[0]])
    accuracy = evaluation.Estimate(correct.mean(), correct.mean(), 0, 1)
    values = evaluation.Values(confidence, correct, nll[:, None], *[confidence] * 2, predicted, {}, groups,
                               labels[:, None], np.full((truth.n, 1), truth.num_classes))
    estimates = {"ece": ece, "accuracy": accuracy, "nll": evaluation.Estimate(nll.mean(), nll.mean(), 0, 9)}
    rows["a", label] = evaluation.Row(estimates, values.excess(), values)
  changes = {"nll": _normal(after - before), "ece": evaluation.Interval(0, -1, 1),
             "accuracy": evaluation.Interval(0, 0, 0)}
  evaluated = evaluation.EvaluatedSet(truth.n, truth.num_classes, 1, num_groups=truth.num_groups or None, rows=rows,
                                      differences={(("a", "TS"), ("a", "none")): changes})
  return evaluation.Results(15, NUM_REDRAWS, {"test": evaluated}, {"a": {"TS": (TS, [params])}})


def recommendations(truth: Truth, repeats: int) -> list[Recommendation]:
  """Returns the first recommendation of each simulation."""
  rng = np.random.default_rng((truth.n, repeats))
  return [verdict(simulated(rng, truth)).recommendations[0] for _ in range(repeats)]


def printed_gain(truth: Truth, repeats: int) -> tuple[float, float]:
  """Returns how often the interval that "Use TS" prints misses the true gain, and the printed over the true gain."""
  used = [x.numbers for x in recommendations(truth, repeats) if x.kind == "use"]
  gains = [true_gain(truth, round(x["temperature"], 3)) for x in used]
  missed = [not x["gain_low"] <= gain <= x["gain_high"] for x, gain in zip(used, gains, strict=True)]
  printed = [x["log_loss_before"] - x["log_loss_after"] for x in used]
  return float(np.mean(missed)), float(np.mean(printed) / np.mean(gains))


# Each of the following is one simulation: it says whether the sentence of its row of the table is true of it.


def useless_calibrators(rng: np.random.Generator, i: int) -> bool:
  """One of twenty calibrators that change nothing is recommended, for 500 examples."""
  labels = [f"c{i}" for i in range(20)]
  return bool(decisions.to_use(compared({label: _normal(rng.normal(size=500)) for label in labels}), "a", labels))


def compared(differences: Mapping[str, evaluation.Interval]) -> evaluation.EvaluatedSet:
  """Returns a set with rows of the model "a" and differences of their log loss from that before calibration."""
  accuracy = {"accuracy": evaluation.Estimate(0.8, 0.8, 0, 1)}
  rows = {("a", label): evaluation.Row({**accuracy, "nll": evaluation.Estimate(x.estimate, x.estimate, -9, 9)},
                                       evaluation.Interval(0, -1, 1))
          for label, x in {"none": evaluation.Interval(0, 0, 0), **differences}.items()}
  return evaluation.EvaluatedSet(500, 10, 1, rows=rows, differences={
    (("a", label), ("a", "none")): {"nll": x, "accuracy": evaluation.Interval(0, 0, 0)}
    for label, x in differences.items()})


def equal_models(rng: np.random.Generator, i: int) -> bool:
  """One of two models of equal worth is recommended, for 500 examples."""
  first, second = ("a", "none"), ("b", "none")
  estimates = {"ece": evaluation.Estimate(0, 0, 0, 0, 0, 1), **dict.fromkeys(
    ("nll", "accuracy"), evaluation.Estimate(0.5, 0.5, 0, 1))}
  rows = dict.fromkeys((first, second), evaluation.Row(estimates, evaluation.Interval(0, 0, 0)))
  nll, correct = rng.exponential(size=(2, 500)), rng.uniform(size=(2, 500)) < 0.8
  changes = {"nll": _normal(nll[1] - nll[0]), "accuracy": _normal(correct[1] * 1.0 - correct[0]),
             "ece": evaluation.Interval(0, -1, 1)}
  sets = {"test": evaluation.EvaluatedSet(500, 10, 1, rows=rows, differences={(second, first): changes})}
  return verdict(evaluation.Results(15, 100, sets)).recommendations[0].kind == "prefer"


def one_seed_against_ten(rng: np.random.Generator, i: int) -> bool:
  """The log losses of one seed and of ten of the same method are told apart."""
  values = rng.normal(size=(200, 1)) + 0.3 * rng.normal(size=11) + rng.normal(size=(200, 11))
  interval = _normal(values[:, 0] - values[:, 1:].mean(1))
  return decisions.side(over_seeds(interval, [values[:, 0].mean()], values[:, 1:].mean(0))) != 0


@jax.jit
def _assessed(confidence: jax.Array, correct: jax.Array, key: jax.Array) -> tuple[jax.Array, ...]:
  return metrics.assess(metrics.calibration_error, confidence, correct, key=key, num_resamples=200)


def off_by_five_points(rng: np.random.Generator, i: int) -> bool:
  """Probabilities whose calibration error is 5 points are not to be relied on, for 1,000 examples."""
  confidence = rng.uniform(0.6, 0.95, 1000).astype(np.float32)
  correct = rng.uniform(size=1000) < confidence - decisions.OFF
  return bool(decisions.is_off(evaluation.Estimate.around(*_assessed(confidence, correct, jax.random.key(i))), 1))


def worse_subgroup(offsets: Sequence[float], size: int = 200, group_size: int = 1
                   ) -> Callable[[np.random.Generator, int], bool]:
  """Returns a simulation: a subgroup is worse than the others, of ``size`` examples each with an offset of their own.

  Of a group of dependent examples, which is within one subgroup, each takes the group's uniform number with
  probability 0.6.
  """
  number = np.repeat(np.arange(len(offsets)), size)
  groups = np.arange(len(number)) // group_size

  def simulation(rng, i):
    confidence = rng.beta(4, 1.2, len(number)).astype(np.float32)
    shared = rng.uniform(size=len(number)) < 0.6 * (group_size > 1)
    uniform = np.where(shared, rng.uniform(size=len(number))[groups], rng.uniform(size=len(number)))
    correct = (uniform < confidence - np.take(offsets, number))[:, None]
    values = evaluation.Values(confidence[:, None], correct, *[confidence[:, None]] * 3, number[:, None], {},
                               groups if group_size > 1 else None)
    by_name = subgroups.measured(values, Subgroups(tuple(map(str, range(len(offsets)))), number), num_resamples=1)
    return any(x.worse_p_value < decisions.SIGNIFICANCE for x in by_name.values())

  return simulation


def whole_command(rng: np.random.Generator, i: int) -> bool:
  """``evaluation.judge`` with TS and SVS does not keep a calibrated model, for 500 examples."""
  fit, test = (evaluation.Predictions(logits.astype(np.float32), labels.astype(np.int32))
               for logits, labels in (sample(rng, Truth(500)), sample(rng, Truth(500))))
  fitted = evaluation.fit([fit], {"TS": TS, "SVS": calibrators.structured_vector_scaling()})
  judged = evaluation.judge({"a": evaluation.Model({"test": [test]}, fitted)}, num_resamples=200)
  return [x.kind for x in judged.verdict.recommendations] != ["keep"]


def share(simulation: Callable[[np.random.Generator, int], bool], repeats: int) -> float:
  """Returns how often a simulation is true."""
  rng = np.random.default_rng(0)
  return sum(simulation(rng, i) for i in range(repeats)) / repeats


SAID: dict[str, Callable[[Recommendation], bool]] = {  # Whether a recommendation says so.
  "not to be kept": lambda x: x.kind != "keep", "not to use TS": lambda x: x.kind != "use",
  "to use TS": lambda x: x.kind == "use", "to try another calibrator": lambda x: x.kind == "mend",
  "no better than guessing": lambda x: x.text.startswith("No better than guessing"),
  "anything but that nothing is decided": lambda x: not x.text.startswith("Nothing is decided")}
GAIN = "an interval that does not hold the true gain"
ONLY_A_TEMPERATURE = {f"logits {scale} times too large{{}}, {n:,} examples": (Truth(n, scale), 1000)
                      for n, scale in ((1000, 1.15), (3000, 1.15), (3000, 1.08), (10_000, 1.05))}
# How examples are drawn, or a simulation, and the number of simulations, by what is true and what the first line says.
CASES: dict[tuple[str, str], tuple[Truth | Callable[[np.random.Generator, int], bool], int]] = {
  ("a calibrated model, 500 examples", "not to be kept"): (Truth(500), 2000),
  ("a calibrated model, 5,000 examples", "not to be kept"): (Truth(5000), 500),
  ("a calibrated model, 300 examples, most predictions nearly certain", "not to be kept"): (
    Truth(300, spread=12), 2000),
  ("logits twice too large, 500 examples", "not to use TS"): (Truth(500, 2), 500),
  ("logits twice too large, 5,000 examples", "not to use TS"): (Truth(5000, 2), 200),
  **{(truth.format(" and no other fault"), verdict): drawn for truth, drawn in ONLY_A_TEMPERATURE.items()
     for verdict in ("to try another calibrator", "to use TS")},
  **{(f"{truth.format('')}, of the lines that say to use TS", GAIN): drawn
     for truth, drawn in ONLY_A_TEMPERATURE.items()},
  ("half of the classes too likely, the others too unlikely, the right T near 1, 3,000 examples",
   "to try another calibrator"): (Truth(3000, scale=0.7, bias=1.0), 300),
  **{("labels without regard to the logits, 100 classes, 2,000 examples", verdict): (
    Truth(2000, signal=0.0, num_classes=100), 500) for verdict in ("to use TS", "no better than guessing")},
  **{(f"a calibrated model whose log loss is 4% below that of equal probabilities, {n:,} examples",
      "no better than guessing"): (Truth(n, spread=0.43), 1000) for n in (500, 5000)},
  ("a calibrated model, 5 groups of 100 equal examples", "anything but that nothing is decided"): (
    Truth(500, num_groups=5), 200),
  ("a calibrated model, 500 examples, by the whole command with TS and SVS", "not to be kept"): (whole_command, 300),
  ("20 calibrators that change nothing, 500 examples", "to use one"): (useless_calibrators, 1000),
  ("two equal models, 500 examples", "to use one"): (equal_models, 3000),
  ("one seed against ten of the same method", "told apart"): (one_seed_against_ten, 3000),
  ("a calibration error of 5 points, 1,000 examples", "not to rely on it"): (off_by_five_points, 400),
  ("four subgroups of 200 examples, all calibrated", "a subgroup is worse"): (worse_subgroup([0.0] * 4), 1000),
  ("four subgroups of 200 examples, all overconfident by 10 points", "a subgroup is worse"): (
    worse_subgroup([0.1] * 4), 1000),
  ("ten subgroups of 40 examples in groups of 4, all overconfident by 10 points", "a subgroup is worse"): (
    worse_subgroup([0.1] * 10, 40, 4), 1000),
  ("one of four subgroups of 200 examples overconfident by 15 points, the others calibrated", "a subgroup is worse"): (
    worse_subgroup([0.15, 0.0, 0.0, 0.0]), 1000)}


def simulated_case(truth: str, verdict: str) -> list[dict[str, object]]:
  """Returns the row of a case, in a list."""
  drawn, repeats = CASES[truth, verdict]
  if verdict == GAIN:
    how_often, ratio = printed_gain(drawn, repeats)
    return [{"share": f"{how_often:.4f}", "repeats": repeats, "ratio": f"{ratio:.3f}"}]
  how_often = (np.mean([SAID[verdict](x) for x in recommendations(drawn, repeats)]) if isinstance(drawn, Truth)
               else share(drawn, repeats))
  return [{"share": f"{how_often:.4f}", "repeats": repeats, "ratio": ""}]


def table(rows: pd.DataFrame) -> str:
  """Returns the Markdown table, in the order of the cases."""
  rows = rows.set_index(["truth", "said"])
  lines = []
  for truth, sentence in STUDY.cells:
    row = rows.loc[truth, sentence]
    ratio = "" if np.isnan(row.ratio) else f" (it prints {row.ratio:.1f} times the true gain on average)"
    lines.append((truth, sentence + ratio, f"{100 * row.share:.1f}%", int(row.repeats)))
  return markdown.table(["truth", "the first line says", "how often", "simulations"], lines) + "\n"


STUDY = studies.Study("verdicts", ("truth", "said"), tuple(CASES), simulated_case, table)

if __name__ == "__main__":
  studies.in_docs(__spec__.name, __doc__, commands.RESULTS / "verdicts.md", STUDY)
