"""How often the first line of a verdict is wrong where the truth is known: the table of docs/evaluation.md.

Run: python -m experiments.estimators.verdicts   (about twenty minutes on two CPU cores)

Logits z of K classes are normal, and labels are drawn from softmax(z), or without regard to z. The model shows
scale · (z + bias), so that with 1 and 0 it is calibrated. TS is fitted to as many other examples. Estimates and
intervals are computed by definition in NumPy, because a thousand whole evaluations would take hours; the rules that
turn them into sentences are those of the package. Rows are appended to experiments/results/verdicts.csv as they come,
and what it already holds is skipped; in the end the table is written.
"""

from collections.abc import Callable, Mapping
import functools
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd

from calib_jax import calibrators, evaluation, metrics
from calib_jax.evaluation.results import Recommendation, over_seeds
from calib_jax.verdict import decisions
from calib_jax.verdict.verdict import verdict
from experiments.common import commands, markdown, studies

POPULATION = 100_000  # Examples of which the true gain of a temperature is a mean.
NUM_REDRAWS = 99
TS = calibrators.temperature_scaling()


class Truth(NamedTuple):
  """How logits and labels are drawn.

  Attributes:
    n: the number of examples, to fit TS to and to test it on.
    scale: the factor of the logits that the model shows; the right temperature.
    spread: the standard deviation of the logits z.
    num_classes: K.
    bias: how far half of the classes are raised, and the others lowered, in what the model shows.
    signal: what labels are drawn from is softmax(signal · z); with 0 the model is at chance.
    num_groups: the number of groups whose examples are copies of each other; 0 for none.
  """

  n: int
  scale: float = 1.0
  spread: float = 2.0
  num_classes: int = 10
  bias: float = 0.0
  signal: float = 1.0
  num_groups: int = 0


def log_softmax(logits: np.ndarray) -> np.ndarray:
  """Returns log-probabilities ``[N, K]``."""
  shifted = logits - logits.max(1, keepdims=True)
  return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def sample(rng: np.random.Generator, truth: Truth) -> tuple[np.ndarray, np.ndarray]:
  """Returns the logits that a model shows and the labels."""
  count = truth.num_groups or truth.n
  logits = truth.spread * rng.normal(size=(count, truth.num_classes))
  probs = np.exp(log_softmax(truth.signal * logits))
  labels = (probs.cumsum(1) > rng.uniform(size=(count, 1))).argmax(1)
  rows = np.arange(truth.n) % count
  raised = np.where(np.arange(truth.num_classes) < truth.num_classes // 2, truth.bias, -truth.bias)
  return (truth.scale * (logits + raised))[rows], labels[rows]


def losses(logits: np.ndarray, labels: np.ndarray, temperature: float) -> np.ndarray:
  """Returns the log loss of each example, in nats."""
  return -log_softmax(logits / temperature)[np.arange(len(labels)), labels]


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
    confidence = np.exp(log_softmax(logits / t)).max(1, keepdims=True).astype(np.float32)
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


def share_of(said: Callable[[Recommendation], bool], truth: Truth, repeats: int) -> float:
  """Returns how often the first recommendation is as ``said`` wants it."""
  return float(np.mean([said(x) for x in recommendations(truth, repeats)]))


def of_printed_gain(truth: Truth, repeats: int) -> tuple[float, float]:
  """Returns how often the interval that "Use TS" prints misses the true gain, and the printed over the true gain."""
  used = [x.numbers for x in recommendations(truth, repeats) if x.kind == "use"]
  gains = [true_gain(truth, round(x["temperature"], 3)) for x in used]
  missed = [not x["gain_low"] <= gain <= x["gain_high"] for x, gain in zip(used, gains, strict=True)]
  printed = [x["log_loss_before"] - x["log_loss_after"] for x in used]
  return float(np.mean(missed)), float(np.mean(printed) / np.mean(gains))


def useless_calibrators(repeats: int) -> float:
  """Returns how often one of twenty calibrators that change nothing is recommended, for 500 examples."""
  rng, labels = np.random.default_rng(0), [f"c{i}" for i in range(20)]
  return float(np.mean([bool(decisions.to_use(
    compared({label: _normal(rng.normal(size=500)) for label in labels}), "a", labels)) for _ in range(repeats)]))


def compared(differences: Mapping[str, evaluation.Interval]) -> evaluation.EvaluatedSet:
  """Returns a set with rows of the model "a" and differences of their log loss from that before calibration."""
  accuracy = {"accuracy": evaluation.Estimate(0.8, 0.8, 0, 1)}
  rows = {("a", label): evaluation.Row({**accuracy, "nll": evaluation.Estimate(x.estimate, x.estimate, -9, 9)},
                                       evaluation.Interval(0, -1, 1))
          for label, x in {"none": evaluation.Interval(0, 0, 0), **differences}.items()}
  return evaluation.EvaluatedSet(500, 10, 1, rows=rows, differences={
    (("a", label), ("a", "none")): {"nll": x, "accuracy": evaluation.Interval(0, 0, 0)}
    for label, x in differences.items()})


def equal_models(repeats: int) -> float:
  """Returns how often one of two models of equal worth is recommended, for 500 examples."""
  rng, num_used = np.random.default_rng(0), 0
  first, second = ("a", "none"), ("b", "none")
  estimates = {"ece": evaluation.Estimate(0, 0, 0, 0, 0, 1), **dict.fromkeys(
    ("nll", "accuracy"), evaluation.Estimate(0.5, 0.5, 0, 1))}
  rows = dict.fromkeys((first, second), evaluation.Row(estimates, evaluation.Interval(0, 0, 0)))
  for _ in range(repeats):
    nll, correct = rng.exponential(size=(2, 500)), rng.uniform(size=(2, 500)) < 0.8
    changes = {"nll": _normal(nll[1] - nll[0]), "accuracy": _normal(correct[1] * 1.0 - correct[0]),
               "ece": evaluation.Interval(0, -1, 1)}
    sets = {"test": evaluation.EvaluatedSet(500, 10, 1, rows=rows, differences={(second, first): changes})}
    num_used += verdict(evaluation.Results(15, 100, sets)).recommendations[0].kind == "prefer"
  return num_used / repeats


def one_seed_against_ten(repeats: int) -> float:
  """Returns how often the log losses of one seed and of ten of the same method are told apart."""
  rng, num_different = np.random.default_rng(0), 0
  for _ in range(repeats):
    values = rng.normal(size=(200, 1)) + 0.3 * rng.normal(size=11) + rng.normal(size=(200, 11))
    interval = _normal(values[:, 0] - values[:, 1:].mean(1))
    num_different += decisions.side(over_seeds(interval, [values[:, 0].mean()], values[:, 1:].mean(0))) != 0
  return num_different / repeats


def off_by_five_points(repeats: int) -> float:
  """Returns how often probabilities whose calibration error is 5 points are not to be relied on, for 1,000 examples."""
  rng, num_off = np.random.default_rng(0), 0
  assess = jax.jit(lambda confidence, correct, key: metrics.assess(
    metrics.calibration_error, confidence, correct, key=key, num_resamples=200))
  for seed in range(repeats):
    confidence = rng.uniform(0.6, 0.95, 1000).astype(np.float32)
    correct = rng.uniform(size=1000) < confidence - decisions.OFF
    num_off += decisions.is_off(evaluation.Estimate.around(*assess(confidence, correct, jax.random.key(seed))[:4]), 1)
  return num_off / repeats


def whole_command(repeats: int) -> float:
  """Returns how often ``evaluation.judge`` with TS and SVS does not keep a calibrated model, for 500 examples."""
  rng, truth, num_wrong = np.random.default_rng(0), Truth(500), 0
  labelled = {"TS": TS, "SVS": calibrators.structured_vector_scaling()}
  for _ in range(repeats):
    fit, test = (evaluation.Predictions(logits.astype(np.float32), labels.astype(np.int32))
                 for logits, labels in (sample(rng, truth), sample(rng, truth)))
    model = evaluation.Model({"test": [test]}, evaluation.fit([fit], labelled))
    kinds = [x.kind for x in evaluation.judge({"a": model}, num_resamples=200).verdict.recommendations]
    num_wrong += kinds != ["keep"]
  return num_wrong / repeats


class Case(NamedTuple):
  """A row of the table: what is true, what the first line says, and how often it does, or ``of_printed_gain``."""

  truth: str
  said: str
  value: Callable[[int], float | tuple[float, float]]
  repeats: int


def _kinds(truth: Truth, *kinds: str, differs: bool = False) -> Callable[[int], float]:
  return functools.partial(share_of, lambda x: (x.kind in kinds) != differs, truth)


def _guesses(truth: Truth) -> Callable[[int], float]:
  return functools.partial(share_of, lambda x: x.text.startswith("No better than guessing"), truth)


ONLY_A_TEMPERATURE = ((1000, 1.15), (3000, 1.15), (3000, 1.08), (10_000, 1.05))
CASES = (
  *(Case(f"a calibrated model, {n:,} examples{of}", "not to be kept",
         _kinds(Truth(n, spread=spread), "keep", differs=True), repeats)
    for n, spread, of, repeats in ((500, 2, "", 2000), (5000, 2, "", 500),
                                   (300, 12, ", most predictions nearly certain", 2000))),
  *(Case(f"logits twice too large, {n:,} examples", "not to use TS", _kinds(Truth(n, 2), "use", differs=True), repeats)
    for n, repeats in ((500, 500), (5000, 200))),
  *(Case(f"logits {scale} times too large and no other fault, {n:,} examples", said,
         _kinds(Truth(n, scale), kind), 1000) for n, scale in ONLY_A_TEMPERATURE
    for said, kind in (("to try another calibrator", "mend"), ("to use TS", "use"))),
  *(Case(f"logits {scale} times too large, {n:,} examples, of the lines that say to use TS",
         "an interval that does not hold the true gain", functools.partial(of_printed_gain, Truth(n, scale)), 1000)
    for n, scale in ONLY_A_TEMPERATURE),
  Case("half of the classes too likely, the others too unlikely, the right T near 1, 3,000 examples",
       "to try another calibrator", _kinds(Truth(3000, scale=0.7, bias=1.0), "mend"), 300),
  Case("labels without regard to the logits, 100 classes, 2,000 examples", "to use TS",
       _kinds(Truth(2000, signal=0.0, num_classes=100), "use"), 500),
  Case("labels without regard to the logits, 100 classes, 2,000 examples", "no better than guessing",
       _guesses(Truth(2000, signal=0.0, num_classes=100)), 500),
  *(Case(f"a calibrated model whose log loss is {percent}% below that of equal probabilities, {n:,} examples",
         "no better than guessing", _guesses(Truth(n, spread=spread)), 1000)
    for n, spread, percent in ((500, 0.43, 4), (5000, 0.43, 4))),
  Case("a calibrated model, 5 groups of 100 equal examples", "anything but that nothing is decided",
       functools.partial(share_of, lambda x: not x.text.startswith("Nothing is decided"), Truth(500, num_groups=5)),
       200),
  Case("a calibrated model, 500 examples, by the whole command with TS and SVS", "not to be kept", whole_command, 300),
  Case("20 calibrators that change nothing, 500 examples", "to use one", useless_calibrators, 1000),
  Case("two equal models, 500 examples", "to use one", equal_models, 3000),
  Case("one seed against ten of the same method", "told apart", one_seed_against_ten, 3000),
  Case("a calibration error of 5 points, 1,000 examples", "not to rely on it", off_by_five_points, 400),
)


def simulated_case(truth: str, said: str) -> list[dict[str, object]]:
  """Returns the row of a case, in a list."""
  case, = (case for case in CASES if (case.truth, case.said) == (truth, said))
  share, *ratio = np.atleast_1d(case.value(case.repeats))
  return [{"share": f"{share:.4f}", "repeats": case.repeats, "ratio": "".join(f"{x:.3f}" for x in ratio)}]


def table(rows: pd.DataFrame) -> str:
  """Returns the Markdown table, in the order of the cases."""
  rows = rows.set_index(["truth", "said"])
  lines = []
  for truth, sentence in STUDY.cells:
    row = rows.loc[truth, sentence]
    ratio = "" if np.isnan(row.ratio) else f" (it prints {row.ratio:.1f} times the true gain on average)"
    lines.append((truth, sentence + ratio, f"{100 * row.share:.1f}%", int(row.repeats)))
  return markdown.table(["truth", "the first line says", "how often", "simulations"], lines) + "\n"


STUDY = studies.Study("verdicts", ("truth", "said"), tuple((case.truth, case.said) for case in CASES), simulated_case,
                      table)


def main(arguments: list[str] | None = None) -> None:
  """Simulates the cases that have no rows yet, and writes the table."""
  commands.parser(__spec__.name, __doc__).parse_args(arguments)
  STUDY.run()
  studies.write("evaluation.md", "experiments.estimators.verdicts", STUDY.page())


if __name__ == "__main__":
  main()
