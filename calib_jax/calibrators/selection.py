"""The choice of a calibrator by cross-validation on the calibration set."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np

from calib_jax import _checks as checks
from calib_jax._system import compilation
from calib_jax.calibrators.base import Calibrator, get
from calib_jax.calibrators.one_vs_rest import NUM_BINS
from calib_jax.intervals.groups import standard_error, stratified_folds
from calib_jax.losses.proper import brier, cross_entropy

# From the simplest to the most flexible. No calibration is not among them: with 100 examples the rule of one standard
# error took it in 15 of 40 fits, which lost 31 thousandths of a nat on average to temperature scaling.
CANDIDATES = ("temperature_scaling", "ensemble_temperature_scaling", "structured_vector_scaling")
MATRIX_ROWS = 50  # With fewer examples a class, structured matrix scaling is no default candidate.
SPLINE_ROWS = 2000  # Nor is spline calibration of two classes with fewer examples.
CRITERIA = ("nll", "brier")
# With so many examples a class, or fewer, these had a higher NLL than temperature scaling, on average over draws, on
# every network of 10 classes that was tried.
TOO_FEW = {"vector_scaling": 50, "beta_calibration": 50, "isotonic": 200}
# The least examples, the least examples a class and the numbers of classes for which a lower NLL than the one of
# temperature scaling was measured on most data sets: docs/calibrators.md, "Which one".
MEASURED = {"structured_matrix_scaling": (1000, MATRIX_ROWS, 3, 100),
            "structured_vector_scaling": (300, 5, 4, 1000),
            "spline_calibration": (SPLINE_ROWS, 0, 2, 2)}
SB_ECE_ROWS = 500  # With fewer examples TS-SB-ECE is known to hurt.
BINS_A_CLASS = 1.5  # With so many equal-mass bins for each class, or fewer, accuracy is known to fall.


class Score(NamedTuple):
  """What a candidate scored out of fold.

  Attributes:
    name: the name of the candidate.
    score: the mean NLL in nats, or the mean Brier score, over the examples; each is predicted by a fit without its
      fold.
    excess: by how much ``score`` is above the lowest of all candidates.
    standard_error: the standard error of ``excess``, from the differences of the examples.
  """

  name: str
  score: float
  excess: float
  standard_error: float


class Selection(NamedTuple):
  """A candidate, fitted on all examples, and what all candidates scored.

  Attributes:
    name: the name of the chosen candidate.
    calibrator: the chosen candidate.
    params: its params, fitted on all examples.
    scores: one for each candidate, in their order.
  """

  name: str
  calibrator: Calibrator
  params: Any
  scores: list[Score]

  def __str__(self) -> str:
    """The table of the scores; a star marks the choice."""
    lines = [f"{'':2}{'calibrator':<32}{'score':>9}{'excess':>10}{'± SE':>9}"]
    lines += [f"{'* ' if s.name == self.name else '  '}{s.name:<32}{s.score:9.4f}{s.excess:10.4f}"
              f"{s.standard_error:9.4f}" for s in self.scores]
    return "\n".join(lines)


def select(logits: ArrayLike, labels: ArrayLike, candidates: Sequence[str] | Mapping[str, Calibrator] | None = None, *,
           criterion: str = "nll", folds: int = 5, groups: ArrayLike | None = None) -> Selection:
  """Returns the simplest calibrator that is as good as the best, by K-fold cross-validation.

  The folds are stratified by class and the same in every call. The chosen calibrator is the first candidate whose
  score exceeds the lowest by at most one standard error of that difference. Folds are masks of one shape, so that their
  fits are compiled once. They are fitted one after another, because under ``jax.vmap`` all of them would take as many
  iterations as the slowest (2 to 6 times the time for matrix scaling).

  Args:
    logits: ``[N, K]`` floats, the calibration set.
    labels: ``[N]`` integers in ``[0, K)``.
    candidates: names of calibrators, or calibrators by name, from the simplest to the most flexible; None for
      temperature scaling, its ensemble, structured vector scaling and, of three classes or more with at least 50
      examples each, structured matrix scaling, or of two classes with at least 2,000 examples, spline calibration.
    criterion: "nll" or "brier", the score.
    folds: the number of folds, from 2 to the number of examples or groups.
    groups: optional ``[N]`` integers; examples with the same integer share a fold, and count as one in standard errors.

  Returns:
    The choice; printed, it is a table of the scores.

  Raises:
    ValueError: for an unknown name or criterion, fewer examples or groups than folds, or if no candidate has finite
      scores; one that has not is never chosen.

  >>> rng = np.random.default_rng(0)
  >>> labels = rng.integers(0, 3, 300)
  >>> logits = 4 * (np.eye(3)[labels] + rng.normal(size=(300, 3)))
  >>> select(logits, labels, ["identity", "temperature_scaling"]).name
  'temperature_scaling'
  """
  passed, (logits, labels) = (logits, labels), checks.outputs_and_labels(logits, labels)
  checks.rank(logits, 2, "logits", "[N, K]")
  checks.choice("criterion", criterion, CRITERIA)
  checks.options(folds=(folds, "integer [2, inf)"))
  if candidates is None:
    candidates = CANDIDATES
    if logits.shape[1] == 2:  # Of two classes, the matrix gains nothing over the vector.
      candidates += ("spline_calibration",) * (len(labels) >= SPLINE_ROWS)
    elif len(labels) >= MATRIX_ROWS * logits.shape[1]:
      candidates += ("structured_matrix_scaling",)
  if not isinstance(candidates, Mapping):
    candidates = {name: get(name) for name in candidates}
  if not candidates:
    raise ValueError("candidates must hold at least one calibrator: got none.")
  groups = None if groups is None else np.asarray(groups)
  fold = stratified_folds(np.asarray(labels), folds, groups)
  checks.class_values(*passed, name="logits", converted=(logits, labels))  # The compiled fits of folds cannot raise.
  values = dict(zip(candidates, _out_of_fold(tuple(candidates.values()), logits, labels, fold, criterion), strict=True))
  finite = [value for value in values.values() if np.isfinite(value).all()]  # NaN is of a fit that failed.
  if not finite:
    raise ValueError(f"no candidate could be fitted: the scores of {', '.join(values)} are not finite.")
  best = min(finite, key=np.mean)
  scores = [Score(name, float(np.mean(value)), float(np.mean(value - best)),
                  standard_error(value - best, groups)) for name, value in values.items()]
  name = next(s.name for s in scores if s.excess <= s.standard_error)
  return Selection(name, candidates[name], candidates[name].fit(logits, labels), scores)


def recommended(num_examples: int, num_classes: int, *, records: bool = False, is_ragged: bool = False
                ) -> dict[str, Calibrator]:
  """Returns the calibrators that the measurements of docs/calibrators.md recommend, from the simplest on.

  Temperature scaling always, and beside it the first of structured matrix scaling (from 1,000 examples and 50 a class
  on, of 3 to 100 classes), structured vector scaling (from 300 examples and 5 a class on, of 4 to 1,000 classes) and
  spline calibration (from 2,000 examples on, of two classes).

  Args:
    num_examples: the number of examples to fit to.
    num_classes: their number of classes.
    records: whether the examples are records, a confidence and whether the answer was right. Platt scaling is then
      recommended for any number of them (experiments/results/records.md).
    is_ragged: whether rows have different options, as in several questions. Columns then have nothing in
      common, and temperature scaling is recommended alone.

  Returns:
    The calibrators by their short names.

  >>> [list(recommended(n, 10)) for n in (100, 300, 1000)], list(recommended(2000, 2))
  ([['TS'], ['TS', 'SVS'], ['TS', 'SMS']], ['TS', 'spline'])
  """
  if records:
    return {"platt": get("record_calibration", base="platt")}
  short = {"structured_matrix_scaling": "SMS", "structured_vector_scaling": "SVS", "spline_calibration": "spline"}
  able = [name for name, (rows, rows_a_class, fewest, most) in MEASURED.items() if not is_ragged
          and fewest <= num_classes <= most and num_examples >= max(rows, rows_a_class * num_classes)]
  return {"TS": get("temperature_scaling"), **{short[name]: get(name) for name in able[:1]}}


def caution(calibrator: Calibrator, num_examples: int, num_classes: int) -> str:
  """Says if a fit is known to hurt; docs/calibrators.md has the measurements.

  Args:
    calibrator: what is to be fitted, as the functions of this package make it.
    num_examples: the number of examples to fit to.
    num_classes: their number of classes.

  Returns:
    A sentence, or "" if the fit is not known to hurt.

  >>> caution(get("histogram_binning"), 5000, 3)
  ''
  >>> caution(get("histogram_binning"), 5000, 10)[:59]
  'histogram_binning: a bin of equal mass holds 333 rows, and '
  """
  name, options = calibrator.name, calibrator.options
  num_bins = options.get("num_bins", NUM_BINS)
  if (name == "histogram_binning" and options.get("binning", "equal_mass") == "equal_mass"
      and not options.get("top_label") and num_bins <= BINS_A_CLASS * num_classes):
    return (f"histogram_binning: a bin of equal mass holds {num_examples // num_bins:,} rows, and a class of "
            f"{num_classes:,} has about {num_examples // num_classes:,}, so that high probabilities share a bin with "
            "low ones and accuracy falls; prefer top_label=True.")
  if name in TOO_FEW and not options.get("top_label") and num_examples <= TOO_FEW[name] * num_classes:
    return (f"{name}: {num_examples:,} examples of {num_classes:,} classes are few, and it overfits; prefer "
            "temperature_scaling or structured_vector_scaling.")
  if name == "temperature_scaling" and options.get("objective") == "soft_binned_ece" and num_examples < SB_ECE_ROWS:
    return (f"temperature_scaling: the soft-binned error of {num_examples:,} examples is too noisy to tune by, so that "
            'the NLL may rise; prefer objective="nll".')
  return ""


def _out_of_fold(calibrators: tuple[Calibrator, ...], logits: jax.Array, labels: jax.Array, fold: np.ndarray,
                 criterion: str) -> np.ndarray:
  """The score of every example ``[len(calibrators), N]``, by calibrators fitted without the example's fold."""
  # All fits and scores of a fold are one program, which takes half the time of one for each: small ones are dispatched
  # longer than they run, and XLA computes once what they have in common.
  score = cross_entropy if criterion == "nll" else brier
  run = compilation.sized(_fold_scores, logits.size, static_argnums=(0, 1))
  values = np.empty((len(calibrators), len(fold)))
  size = np.bincount(fold).max()
  for held_out in range(fold.max() + 1):
    rows = np.flatnonzero(fold == held_out)
    rows = np.pad(rows, (0, size - len(rows)), mode="edge")  # One shape for all folds, and so one compilation.
    arrays = calibrators, score, logits, labels, fold != held_out, rows
    try:
      values[:, rows] = run(*arrays)
    except TypeError:  # Isotonic regression and others are fitted on the host, and refuse to be compiled.
      run = _fold_scores
      values[:, rows] = run(*arrays)
  return values


def _fold_scores(calibrators: tuple[Calibrator, ...], score: Callable, logits: jax.Array, labels: jax.Array,
                 where: jax.Array, rows: jax.Array) -> jax.Array:
  """The scores ``[len(calibrators), len(rows)]`` of some rows by fits to the rows of ``where``."""
  held_out, held_out_labels = checks.gathered(logits)[rows], checks.gathered(labels)[rows]
  return jnp.stack([score(calibrator.apply(calibrator.fit(logits, labels, where=where), held_out), held_out_labels)
                    for calibrator in calibrators])
