"""Calibration of records: a confidence that an answer is right, and whether it was, without classes."""

from typing import Any

import jax
import jax.numpy as jnp

from calib_jax import _checks as checks
from calib_jax._system import compilation
from calib_jax.calibrators.base import Calibrator, fit_batch, has_params, register, wrapped
from calib_jax.calibrators.logistic import platt
from calib_jax.calibrators.one_vs_rest import LEAST
from calib_jax.losses.proper import cross_entropy

Array = jax.Array
# What maps a confidence alone. Others choose among classes, or use the top label.
BASES = ("platt", "beta_calibration", "quadratic_scaling", "spline_calibration", "isotonic", "centered_isotonic",
         "histogram_binning", "venn_abers", "temperature_scaling", "structured_vector_scaling")
CHANCE_SHARES = (0.0, 0.02, 0.06, 0.2, 0.4)
OWN = ("least", "most", "chance_share")  # Its params beside the base's.
PLATT = platt()  # What chooses the share.
MOST_ODDS = 100.0  # Log-odds beyond count as these; the smallest normal float32 has -87.


@register
@has_params(least="(-inf, inf)", most="(-inf, inf)", chance_share="[0, 1)")
def record_calibration(base: str | Calibrator = "platt", **base_options: Any) -> Calibrator:
  r"""Calibration of a confidence c by a base of two classes, for which the ends 0 and 1 are drawn in.

  Use it for stated confidences without classes, which are often exactly 0 or 1.

  The two columns of logits are of a wrong and of a right answer, and labels are 1 where it was right. A confidence of
  1, which language models like to state, has infinite log-odds, and one wrong answer with it would decide the fit. It
  counts as

  .. math:: h = 1 - \min\left(\frac{1}{2 m}, \frac{1 - x}{2}\right)

  where m is how many confidences of the fit are 1, at least one, and x is the largest that is below: half a wrong
  answer among the m, but never below the middle of x and 1, so that the order stays. The lower end is drawn in
  likewise.
  Within 1e-6 of an end a confidence counts as at the end. Where answers near the ends are often wrong too, log-odds
  fit badly, so that the base gets :math:`(1 - s) c + s / 2`, with the share s of answers that are right by chance: the
  one of 0, 0.02, 0.06, 0.2 and 0.4 with which Platt scaling has the lowest NLL.

  ``apply`` keeps to the fit: confidences beyond its ends count as the ends. A base that rises with c therefore reverses
  no two confidences, but may make them equal.

  Args:
    base: the base calibrator: the name of one of ``records.BASES``, or one that its factory made.
    **base_options: options of a base chosen by name.

  Returns:
    A calibrator whose params are the base's, ``least`` and ``most``, the log-odds of the ends, and
    ``chance_share``.

  Raises:
    ValueError: for a base that does not map a confidence alone; in ``fit`` and ``apply`` for more columns than two.
    TypeError: for options beside a base that is a calibrator already.

  >>> calibrator = record_calibration("platt")
  >>> confidence, correct = jnp.array([1.0, 1.0, 1.0, 0.8, 0.6, 0.4]), jnp.array([1, 1, 0, 1, 0, 0])
  >>> params = calibrator.fit(jnp.log(jnp.stack([1 - confidence, confidence], axis=-1)), correct)
  >>> jax.nn.sigmoid(params["most"]).round(2)  # The middle of 0.8 and 1 is above 1 - 1/6.
  Array(0.9, dtype=float32)
  """
  if not isinstance(base, Calibrator):
    checks.choice("base", base, BASES)
  base = wrapped(base, base_options)
  if base.records:
    return base
  if base.name not in BASES or base.options.get("top_label"):
    raise ValueError("records have a confidence and no classes, so that the calibrators for them are "
                     f"{', '.join(BASES)}, without top_label: got {base.name or 'another one, such as auto'}.")

  def fit(logits, labels, *, where=None, weights=None):
    logits, labels, counts = fit_batch(_of_odds(logits), labels, where, weights)
    counted = {"where": counts} if counts.dtype == bool else {"weights": counts}
    ends_of, loss = (compilation.sized(function, logits.size) for function in (_ends, _nll))
    ends, every = ends_of(logits, counts), [jnp.asarray(share, logits.dtype) for share in CHANCE_SHARES]
    mixed = [_drawn_in(logits, ends | {"chance_share": share}) for share in every]
    losses = [loss(PLATT.fit(x, labels, **counted), x, labels, counts) for x in mixed]
    drawn_in = ends | {"chance_share": jnp.stack(every)[jnp.argmin(jnp.stack(losses))]}
    return base.fit(_drawn_in(logits, drawn_in), labels, **counted) | drawn_in

  def apply(params, logits):
    return base.apply(params, _drawn_in(_of_odds(logits), {name: params[name] for name in OWN}))

  return Calibrator(fit, apply, "record_calibration", {"base": base}, records=True)


def _of_odds(logits) -> Array:
  """Logits ``[..., 2]`` of the same log-odds, without any that stands for a class that its row lacks."""
  logits = checks.floating(logits, "logits")
  if not logits.ndim or logits.shape[-1] != 2:
    raise ValueError(f"records have two columns, of a wrong and of a right answer: got logits {logits.shape}.")
  checks.warn_of_probs(logits)
  return _clipped(logits)


@jax.jit
def _clipped(logits: Array) -> Array:
  odds = jnp.clip(logits[..., 1] - logits[..., 0], -MOST_ODDS, MOST_ODDS)
  return jnp.stack([jnp.zeros_like(odds), odds], axis=-1)


@jax.jit
def _drawn_in(logits: Array, params: dict) -> Array:
  """Logits as ``_of_odds`` returns them, within the ends of a fit and mixed with its share of 1/2."""
  odds, share = jnp.clip(logits[..., 1], params["least"], params["most"]), params["chance_share"]
  p, q = ((1 - share) * jax.nn.sigmoid(x) + share / 2 for x in (odds, -odds))
  odds = jnp.log(p) - jnp.log(q)
  return jnp.stack([jnp.zeros_like(odds), odds], axis=-1)


def _ends(logits: Array, counts: Array) -> dict:
  """The log-odds of the ends, of arrays as ``fit_batch`` returns them."""
  odds = logits[:, 1]
  return {"least": -_end(jax.nn.sigmoid(odds), counts), "most": _end(jax.nn.sigmoid(-odds), counts)}


def _nll(params: dict, logits: Array, labels: Array, counts: Array) -> Array:
  """The NLL of Platt scaling, but for a factor that is the same for all params."""
  return jnp.sum(counts.astype(logits.dtype) * cross_entropy(PLATT.apply(params, logits), labels))


def _end(distance: Array, counts: Array) -> Array:
  """The log-odds, above 0, of the end from which confidences have these distances."""
  is_at_end, counts = distance <= LEAST, counts.astype(distance.dtype)
  number = jnp.maximum(jnp.sum(jnp.where(is_at_end, counts, 0)), 1)
  nearest = jnp.min(jnp.where(is_at_end | (counts == 0), 1, distance))
  end = jnp.minimum(0.5 / number, nearest / 2)
  return jnp.log1p(-end) - jnp.log(end)
