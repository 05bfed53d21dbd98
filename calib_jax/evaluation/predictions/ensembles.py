"""Ensembles: the mean probabilities of several models of the same examples, judged like models of their own."""

from collections.abc import Sequence

import numpy as np

from calib_jax._system.errors import UserError
from calib_jax.confidence import negative_entropy
from calib_jax.evaluation.predictions.calibrated import Calibrated
from calib_jax.evaluation.predictions.fitting import Model, fit
from calib_jax.evaluation.predictions.joining import in_order
from calib_jax.evaluation.predictions.predictions import Predictions


def pooled(members: Sequence[Predictions | Calibrated]) -> Predictions:
  r"""Returns the predictions of an ensemble, whose logits are :math:`\log \frac1S \sum_s p_s`.

  The members have predicted the same examples, calibrated or not; other labels or numbers of classes are a UserError.
  Their ``spread`` is how much they disagree, in nats: the entropy of the mean minus the mean entropy.
  """
  if not members:
    raise UserError("an ensemble needs at least one member: got none.")
  sources = [Calibrated.of(member) for member in members]
  first, total, entropy = sources[0].part, None, 0.0
  for number, source in enumerate(sources, 1):
    joined = in_order(source.part, first.classes, (f"member {number}", "the first"))
    if not are_of_the_same(joined, first):
      raise UserError(f"the members of an ensemble need the same examples in the same order: member {number} has other "
                      "labels, or another number of classes, than the first.")
    log_probs = in_order(source.part._replace(logits=source.log_probs()), first.classes, ("", "")).logits
    entropy += _entropy(log_probs) / len(sources)
    total = log_probs if total is None else np.logaddexp(total, log_probs)
  logits = total - np.float32(np.log(len(sources)))
  return first._replace(logits=logits, probs=None, features=None, spread=np.maximum(_entropy(logits) - entropy, 0))


def are_of_the_same(part: Predictions, other: Predictions) -> bool:
  """Returns whether predictions can be of the same examples: whether their labels and numbers of classes are equal."""
  return part.logits.shape == other.logits.shape and np.array_equal(part.labels, other.labels)


def models(name: str, members: Model, validation: Sequence[Predictions]) -> dict[str, Model]:
  """Returns the ensemble of a model's seeds, with calibrators of its own, and the one of its calibrated seeds, by name.

  The first pools and then calibrates, the second calibrates every member and then pools (Rahaman & Thiery 2021). The
  second is of the first calibrator, and is left out without any. ``validation`` is what the calibrators of the members
  were fitted to, one element a seed.
  """
  title = f"{name}, ensemble of {len(validation or next(iter(members.sets.values())))}"
  calibrators = {label: calibrator for label, (calibrator, _) in members.fitted.items()}
  sets = {set_name: [pooled(parts)] for set_name, parts in members.sets.items()}
  ensembles = {title: Model(sets, fit([pooled(validation)], calibrators) if calibrators else {})}
  for label in list(calibrators)[:1]:
    sets = {set_name: [pooled(members.calibrated(set_name, label))] for set_name in members.sets}
    if not any(np.isnan(part.logits).any() for (part,) in sets.values()):  # Else the fit of a member failed.
      ensembles[f"{title}, {label} of each"] = Model(sets, {})
  return ensembles


def _entropy(log_probs: np.ndarray) -> np.ndarray:
  """The entropy of each row of log-probabilities ``[N, K]``, in nats: ``[N]``."""
  return -np.asarray(negative_entropy(np.exp(log_probs)))
