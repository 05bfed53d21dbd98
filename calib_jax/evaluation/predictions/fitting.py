"""Fits calibrators to predictions, or to all folds but one in turn, and applies them."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import calibrators
from calib_jax._system import compilation, progress
from calib_jax._system.errors import printable
from calib_jax._system.files import release
from calib_jax.calibrators import param_tables
from calib_jax.calibrators.base import NoWeights
from calib_jax.evaluation.predictions import automatic, covariates, subgroup_fits
from calib_jax.evaluation.predictions.calibrated import Calibrated
from calib_jax.evaluation.predictions.joining import in_order
from calib_jax.evaluation.predictions.predictions import Predictions

PIECES = 64  # Of large arrays, one after another.
UNCALIBRATED = "none"  # The label of predictions before calibration.


class FittedRows(dict[str, tuple[calibrators.Calibrator, list[Any]]]):
  """Calibrators by label, each with a list of its params, one element a seed.

  Attributes:
    num_classes: the number of classes that they were fitted to; None if it is not known.
    classes: the names of these classes in the order of the logits; None if they have none.
  """

  num_classes: int | None = None
  classes: tuple[str, ...] | None = None

  @classmethod
  def of(cls, fitted: Mapping[str, Any], part: Predictions) -> "FittedRows":
    """Returns calibrators that were fitted to the classes of ``part``."""
    result = cls(fitted)
    result.num_classes, result.classes = part.logits.shape[1], None if part.of_label else part.classes
    return result



@dataclasses.dataclass(frozen=True)
class Model:
  """The predictions of one model, whose classes are joined by name: all sets have the order of what was fitted to.

  Attributes:
    sets: predictions by the name of the set, each a list of one element a seed. The first set is the test set.
    fitted: its calibrators, as ``fit`` returns them.
    out_of_fold: predictions of the first set by label, if ``fitted`` was fitted to that set.
  """

  sets: Mapping[str, Sequence[Predictions]]
  fitted: FittedRows
  out_of_fold: Mapping[str, Sequence[Calibrated]] | None = None

  def __post_init__(self):
    """Gives all sets the order of the classes of the fit or, without one, of the first set."""
    classes = getattr(self.fitted, "classes", None) or next(
      (part.classes for parts in self.sets.values() for part in parts if part.classes), None)
    object.__setattr__(self, "sets", {name: [in_order(part, classes, (name, "what was fitted to")) for part in parts]
                                      for name, parts in self.sets.items()})

  @property
  def labels(self) -> list[str]:
    """The labels of its rows."""
    return [UNCALIBRATED, *self.fitted]

  def calibrated(self, set_name: str, label: str) -> Sequence[Calibrated]:
    """Returns the predictions of a set with one calibrator, which is applied when they are read."""
    if self.out_of_fold and set_name == next(iter(self.sets)):
      return self.out_of_fold[label]
    return calibrated(self.fitted, label, self.sets[set_name])


@compilation.running_once()
def fit(validation: Sequence[Predictions], labelled: Mapping[str, calibrators.Calibrator],
        say: Callable[[str], None] = print, by: str = "") -> FittedRows:
  """Fits each calibrator to each seed's predictions, and reports fits that stopped before their optimum.

  Args:
    validation: the predictions to fit to, one element a seed. Fits that take weights have theirs, divided by the mean.
    labelled: the calibrators by label; to records each is fitted as ``calibrators.record_calibration`` does, and to
      probabilities that may be 0 as ``calibrators.probability_floor`` does.
    say: is called with a sentence for each calibrator that is known to hurt on so few examples, for such zeros, and
      for fits that take no weights.
    by: the subgroups of the predictions, of one seed; each calibrator is fitted to each of them too, as
      ``subgroup_fits`` says; "" for none.

  Returns:
    The calibrators by label, each with its fitted params of every seed.
  """
  if validation[0].records:
    labelled = {label: calibrators.record_calibration(calibrator) for label, calibrator in labelled.items()}
  for label, calibrator in labelled.items():
    if sentence := calibrators.caution(calibrator, *validation[0].logits.shape):
      say(printable(f"caution: {label}: {sentence.removeprefix(f'{label}: ')}"))
    if param_tables.are_of_classes(calibrator) and not validation[0].classes and validation[0].is_ragged:
      say(printable(f"caution: {label} has numbers for each column, and the options of the rows differ, so that a "
                    "column stands for options of several questions: take temperature_scaling."))
  zeros = max(map(_share_of_zeros, validation))
  if zeros:
    say(f"{100 * zeros:.2g}% of the probabilities are exactly 0: to calibrators they count as half of the "
        "smallest one that is not.")
  fitted, on_device = {}, [jnp.asarray(part.logits) for part in validation]
  for part in validation:
    release(part.logits)
  for label, calibrator in labelled.items():
    progress.at(f"fitting {label}")
    cross_validates = calibrator.fit is automatic.fit
    calibrator = covariates.expanded(calibrator, validation[0].covariates)
    if zeros:
      calibrator = calibrators.probability_floor(calibrator)
    params = [_params(calibrator, logits, part, say, **({"groups": part.groups} if cross_validates else {}))
              for logits, part in zip(on_device, validation, strict=True)]
    unfinished = sum(not p.get("converged", True) for p in params)
    if unfinished:
      print(f"{printable(label)}: {unfinished} of {len(params)} fits stopped before their optimum.", file=sys.stderr)
    if covariates.names_of(calibrator) and not any(float(x["penalty"]) for x in params):
      say(printable(f"{label} is one temperature: its covariates are not shown to lower the log loss in folds."))
    fitted[label] = (calibrator, params)
    if by and (of_subgroups := subgroup_fits.fit(calibrator, params[0], validation[0], by, label, say)):
      fitted[f"{label} by {by}"] = of_subgroups[0], [of_subgroups[1]]
  return FittedRows.of(fitted, validation[0])


def _params(calibrator: calibrators.Calibrator, logits: jnp.ndarray, part: Predictions, say: Callable[[str], None],
            **options) -> dict:
  """Returns the fitted params, with the weights of the examples if the fit takes them."""
  if of := covariates.names_of(calibrator):
    options |= {"covariates": covariates.matrix(of, part.covariates), "groups": part.groups}
  if part.weights is not None:
    try:
      return calibrator.fit(logits, part.labels, weights=np.float32(part.weights / part.weights.mean()), **options)
    except NoWeights as error:
      say(printable(f"caution: {str(error)[:-1]}, so it is fitted without them."))
  return calibrator.fit(logits, part.labels, **options)


def _share_of_zeros(part: Predictions) -> float:
  """Returns the share of probabilities that are exactly 0, though the row has the class; 0 of logits and of records."""
  if part.probs is None or part.records:
    return 0.0
  pieces = zip(*(np.array_split(x, PIECES) for x in (part.probs, part.logits)), strict=True)
  return sum(np.count_nonzero((probs == 0) & ~np.isneginf(logits)) for probs, logits in pieces) / part.logits.size


def calibrated(fitted: FittedRows, label: str, test: Sequence[Predictions]) -> list[Calibrated]:
  """Returns predictions with one calibrator, which is applied to some rows at a time when they are needed.

  Args:
    fitted: the calibrators and their params, as ``fit`` returns them.
    label: the label of a calibrator, or "none".
    test: the predictions, one element a seed. Their classes are joined with the fit's by name.

  Returns:
    One element a seed.

  Raises:
    UserError: if the classes have other names than the fit's.
  """
  test = [in_order(part, getattr(fitted, "classes", None), ("the test set", "what was fitted to")) for part in test]
  if label == UNCALIBRATED:
    return [Calibrated.of(part) for part in test]
  calibrator, params = fitted[label]
  if calibrator.name == subgroup_fits.NAME:
    apply_base = compilation.sized(calibrator.options["base"].apply, test[0].logits.size)
    return [subgroup_fits.calibrated(own, part, apply_base) for own, part in zip(params, test, strict=True)]
  if covariates.names_of(calibrator):
    return [covariates.calibrated(calibrator, own, part) for own, part in zip(params, test, strict=True)]
  apply_one = compilation.sized(calibrator.apply, test[0].logits.size)
  return [Calibrated(part, apply_one, (own,)).at_once_if(calibrator.together)
          for own, part in zip(params, test, strict=True)]


def of_confidences(fitted: Mapping[str, Any], label: str) -> Callable[[np.ndarray], np.ndarray] | None:
  """Returns what a calibrator of records makes of confidences ``[N]``; None if it is of subgroups, or of several."""
  calibrator, params = fitted.get(label, (None, ()))
  if calibrator is None or not calibrator.records or len(params) != 1:
    return None

  def after(confidence):
    with np.errstate(divide="ignore"):
      logits = np.log(np.maximum(np.stack([1 - confidence, confidence], axis=1), np.finfo(np.float32).tiny))
    return np.exp(np.asarray(calibrator.apply(params[0], logits)))[:, 1]

  return after


def out_of_fold(part: Predictions, labelled: Mapping[str, calibrators.Calibrator], num_folds: int,
                whole: FittedRows | None = None, by: str = "") -> dict[str, list[Calibrated]]:
  """Returns predictions by label, with those before calibration, of calibrators that are fitted to the other folds.

  Those that ``whole``, the fit to all examples, has ``by`` subgroup are shrunk in each fold as much as there.
  """
  fold, of_folds, others = subgroup_fits.folds(part, num_folds), [], []
  labelled = {label: covariates.expanded(calibrator, part.covariates) for label, calibrator in labelled.items()}
  for k in range(num_folds):
    rows = {name: getattr(part, name)[fold != k] for name in ("logits", "labels", "probs", "groups", "weights")
            if getattr(part, name) is not None}
    subgroups = part.subgroups and {name: (of, number[fold != k]) for name, (of, number) in part.subgroups.items()}
    known = part.covariates and {name: x[fold != k] for name, x in part.covariates.items()}
    others.append(part._replace(**rows, subgroups=subgroups, covariates=known))
    of_folds.append(fit([others[-1]], labelled, lambda caution: None))
  crossed = {UNCALIBRATED: [Calibrated.of(part)]}
  for label, (calibrator, _) in of_folds[0].items():
    apply, params = jax.jit(calibrator.apply), [of_fold[label][1][0] for of_fold in of_folds]
    if covariates.names_of(calibrator):
      own = [covariates.calibrated(calibrator, x, part).part.logits for x in params]
      crossed[label] = [Calibrated.of(part._replace(logits=np.stack(own)[fold, np.arange(len(fold))], probs=None))]
      continue
    crossed[label] = [Calibrated(part, apply, params, fold).at_once_if(calibrator.together)]
    if by and (own_label := f"{label} by {by}") in (whole or {}):
      n0, (names, number) = whole[own_label][1][0]["n0"], part.subgroups[by]
      own = [x for other in others for x in subgroup_fits.shrunk(calibrator, other, by, n0).values()]
      crossed[own_label] = [Calibrated(part, apply, own, fold * len(names) + number)]
  return crossed
