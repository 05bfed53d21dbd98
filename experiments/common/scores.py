"""The scores of saved predictions: a row for each calibrator and seed."""

from collections.abc import Mapping, Sequence
import functools

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import calibrators, evaluation, metrics
from calib_jax.evaluation.predictions.fitting import UNCALIBRATED
from calib_jax.training.config import imports

RESAMPLES = 100  # Resamples for the correction, the noise floor and the p-value of the ECE.
CALIBRATION = {
  "ece": metrics.calibration_error,
  "ece_equal_mass_l2": functools.partial(metrics.calibration_error, binning="equal_mass", norm=2),
  "adaptive": functools.partial(metrics.calibration_error, binning="equal_mass"),
  "mce": functools.partial(metrics.calibration_error, norm="max"),
  "ks": metrics.ks_calibration_error,
}
# The ECE as other tools compute it, by the name of its column: ``metrics.CONVENTIONS``.
CONVENTIONS = {f"ece_{name}": name for name in metrics.CONVENTIONS if name not in (
  "guo", "soft_calibration", "hle")}
# The columns of a row. ``ece_corrected`` is the ECE minus its bias; ``floor`` is the ECE that a perfectly calibrated
# model with these confidences would have, and ``p_value`` the probability of such an ECE if the model is calibrated.
COLUMNS = ("accuracy", "nll", "brier", *CALIBRATION, "classwise", "aurc", "ece_corrected", "floor", "p_value",
           *CONVENTIONS)
# Columns that only the experiments have that ask for them, because they take longer.
MORE = {"sweep": lambda confidence, correct, probs, labels: metrics.sweep_calibration_error(confidence, correct),
        "marginal": lambda confidence, correct, probs, labels: metrics.classwise_calibration_error(
          probs, labels, binning="equal_mass", norm=2)}
# Columns of means over sets of other examples, of a kind such as "shifted" or "train", for experiments with such sets.
OTHER = ("accuracy", "nll", "ece")
SHIFTED = tuple(f"{name}_shifted" for name in OTHER)
# Columns of means over sets that are out of distribution: those of ``metrics.auroc`` and ``metrics.fpr_at_tpr``, of the
# confidence and with the test images as positives.
DETECTION = ("auroc_ood", "fpr95_ood")


# Columns whose noise of test images rows have too, in ``images_NAME``, and in how many blocks of images. Rows with sets
# of the same images under corruptions also have that of ``nll_shifted``.
BLOCKED = ("accuracy", "nll", "brier", "ece", "ece_equal_mass_l2", "classwise", "aurc")
BLOCKS = 20


@functools.partial(jax.jit, static_argnums=2)
def _plain(logits: jax.Array, labels: jax.Array, more: tuple[str, ...]
           ) -> tuple[dict[str, jax.Array], jax.Array, jax.Array]:
  probs = jax.nn.softmax(logits)
  confidence, correct = metrics.top_label(probs, labels)
  errors = {name: error(confidence, correct) for name, error in CALIBRATION.items()}
  errors |= {name: MORE[name](confidence, correct, probs, labels) for name in more}
  errors |= {column: metrics.CONVENTIONS[name](confidence, correct) for column, name in CONVENTIONS.items()}
  values = {"accuracy": jnp.mean(correct, dtype=jnp.float32), "nll": metrics.nll(probs, labels),
            "brier": metrics.brier_score(probs, labels), **errors, "aurc": metrics.aurc(confidence, correct),
            "classwise": metrics.classwise_calibration_error(probs, labels)}
  return values, confidence, correct


def scored(logits: jax.Array, labels: jax.Array, more: tuple[str, ...] = ()) -> dict[str, float]:
  """Returns ``COLUMNS`` and ``more`` of a model, as fractions and nats; nan where its logits are not finite."""
  if not bool(jnp.all(jnp.isfinite(logits))):
    return dict.fromkeys((*COLUMNS, *more), float("nan"))
  values, confidence, correct = _plain(logits, labels, more)
  error = metrics.assess(metrics.calibration_error, confidence, correct, key=jax.random.key(0), num_resamples=RESAMPLES)
  values |= {"ece_corrected": error.estimate, "floor": error.floor, "p_value": error.p_value}
  return {name: float(values[name]) for name in (*COLUMNS, *more)}


@jax.jit
def _without_blocks(logits: jax.Array, labels: jax.Array, kept: jax.Array) -> dict[str, jax.Array]:
  def values(indices):
    of_kept = _plain(logits[indices], labels[indices], ())[0]
    return {name: of_kept[name] for name in BLOCKED}

  return jax.lax.map(values, kept)


def without_blocks(logits: jax.Array, labels: jax.Array) -> dict[str, np.ndarray]:
  """Returns ``BLOCKED`` without each of ``BLOCKS`` random blocks of examples, for a jackknife; ``[BLOCKS]`` each.

  The blocks are the same of every model of as many examples. Values are nan where logits are not finite.
  """
  kept = _kept(len(labels))
  if not kept.size or not bool(jnp.all(jnp.isfinite(logits))):
    return {name: np.full(BLOCKS, np.nan) for name in BLOCKED}
  return {name: np.asarray(x, np.float64) for name, x in _without_blocks(logits, labels, kept).items()}


def _kept(number: int) -> np.ndarray:
  """Returns the indices of the examples that are left without each block, ``[BLOCKS, n]``; n is 0 for too few."""
  order, size = np.random.default_rng(0).permutation(number), number // BLOCKS
  if not size:
    return np.zeros((BLOCKS, 0), int)
  return np.stack([np.delete(order, np.s_[i * size:(i + 1) * size]) for i in range(BLOCKS)])


def _nll_without_blocks(sets: Sequence[tuple[jax.Array, jax.Array]]) -> np.ndarray:
  """Returns the mean NLL over sets of the same images without each of their blocks, ``[BLOCKS]``, for a jackknife."""
  of_images = np.mean([_nll_of_images(logits, labels) for logits, labels in sets], axis=0, dtype=np.float64)
  kept = _kept(len(of_images))
  return of_images[kept].mean(axis=1) if kept.size else np.full(BLOCKS, np.nan)


@jax.jit
def _nll_of_images(logits: jax.Array, labels: jax.Array) -> jax.Array:
  return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1)[:, 0]


@jax.jit
def _other(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """The values of ``OTHER`` for one set."""
  probs = jax.nn.softmax(logits)
  confidence, correct = metrics.top_label(probs, labels)
  return jnp.stack([jnp.mean(correct, dtype=jnp.float32), metrics.nll(probs, labels),
                    metrics.calibration_error(confidence, correct)])


@jax.jit
def _detection(inside: jax.Array, outside: jax.Array) -> jax.Array:
  """The values of ``DETECTION`` for one set."""
  logits = jnp.concatenate([inside, outside])
  confidence, is_inside = jnp.max(jax.nn.softmax(logits), axis=-1), jnp.arange(len(logits)) < len(inside)
  return jnp.stack([metrics.auroc(confidence, is_inside), metrics.fpr_at_tpr(confidence, is_inside)])


def calibrated(validation: Sequence[evaluation.Predictions], test: Sequence[evaluation.Predictions],
               sections: Mapping[str, Mapping],
               others: Mapping[str, Sequence[Sequence[evaluation.Predictions]]] | None = None,
               more: tuple[str, ...] = ()
               ) -> list[tuple[str, int, dict[str, float], dict[str, np.ndarray]]]:
  """Scores models, of which predictions are one element a seed, before ("none") and after each calibrator.

  A section has the ``name`` of a calibrator, which may be an import path, and options; with ``num_examples``, it is
  fitted to so many of the validation examples, drawn at random; with ``fitted_to`` "train", to predictions of the
  training split, which ``others`` then holds. These are predictions of other sets by their kind, "shifted", "train" or
  "ood". ``more`` are columns of ``MORE``.

  Returns:
    ``(label, index of the seed, scores, scores without blocks)``. Scores have ``COLUMNS``, those of ``more`` and, for
    each kind of other sets, ``OTHER`` with the kind at the end, or ``DETECTION`` for "ood".
  """
  scores_of_models = []
  for label, section in {UNCALIBRATED: {"name": "identity"}, **sections}.items():
    number = section.get("num_examples")
    imports.register("evaluation.calibrators", section["name"])
    calibrator = calibrators.get(**{key: x for key, x in section.items() if key not in ("num_examples", "fitted_to")})
    apply = jax.jit(calibrator.apply)
    fitted_to = others[section["fitted_to"]][0] if "fitted_to" in section else validation
    for i, (held_out, part) in enumerate(zip(fitted_to, test, strict=True)):
      kept = np.random.default_rng(i).permutation(len(held_out.labels))[:number] if number else slice(None)
      params = calibrator.fit(held_out.logits[kept], held_out.labels[kept])
      logits = apply(params, part.logits)
      row, left_out = scored(logits, part.labels, more), without_blocks(logits, part.labels)
      for kind, sets in (others or {}).items():
        if sets:
          parts = [(apply(params, of_seed[i].logits), of_seed[i].labels) for of_seed in sets]
          values = [_detection(logits, z) if kind == "ood" else _other(z, y) for z, y in parts]
          names = DETECTION if kind == "ood" else [f"{name}_{kind}" for name in OTHER]
          row |= dict(zip(names, np.mean(values, axis=0).tolist(), strict=True))
          if kind == "shifted" and all(np.array_equal(labels, part.labels) for _, labels in parts):
            left_out["nll_shifted"] = _nll_without_blocks(parts)
      scores_of_models.append((label, i, row, left_out))
  return scores_of_models
