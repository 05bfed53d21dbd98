"""CALS: label smoothing whose strength follows each class's logits on the validation split."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax._numerics.softmax import pick, predicted
from calib_jax.losses.catalogue import PER_EXAMPLE, register
from calib_jax.losses.proper import cross_entropy

Array = jax.Array
LEAST, MOST = 1e-6, 1e6  # Of the multipliers; the least is also their first value.
MOST_CURVATURE = 10.0


class ClassAdaptiveState(NamedTuple):
  """What CALS learns.

  Attributes:
    multipliers: λ ``[K]``, one for each class.
    curvature: ρ ``[K]``.
    last_constraints: the mean constraint of each class on the validation split after the epoch before, ``[K]``,
      infinite at first; the loss does not read it.
  """

  multipliers: Array
  curvature: Array
  last_constraints: Array


@register(PER_EXAMPLE)
def class_adaptive_label_smoothing(logits: ArrayLike, labels: ArrayLike, *, multipliers: ArrayLike = LEAST,
                                   curvature: ArrayLike = 1.0, last_constraints: ArrayLike = 0.0,
                                   margin: float | Array = 10.0, where: ArrayLike | None = None) -> Array:
  r"""Class adaptive label smoothing (CALS): cross entropy in nats, and a penalty of large distances between logits.

  Use it where classes need different amounts of smoothing, such as many or long-tailed classes.

  .. math::
    L = -\log p_y + \frac{1}{K} \sum_k P\Big(\frac{\max_j z_j - z_k}{m} - 1, \lambda_k, \rho_k\Big), \qquad
    P(h, \lambda, \rho) = \begin{cases} \lambda h + \tfrac{\rho}{2} h^2 & \lambda + \rho h \ge 0 \\
    -\lambda^2 / (2 \rho) & \text{otherwise} \end{cases}

  This is the augmented Lagrangian (of Powell, Hestenes and Rockafellar) of the constraints that no logit is more than m
  below the largest. ``update_class_adaptive`` moves λ and ρ after each epoch.

  Args:
    logits: ``[..., K]`` floats.
    labels: ``[...]`` integers in ``[0, K)``.
    multipliers: λ, ``[K]`` floats of at least 0, or one for all classes, by default the first epoch's. They carry
      no gradient.
    curvature: ρ, above 0, ``[K]`` or one for all classes. It carries no gradient.
    last_constraints: the field of ``ClassAdaptiveState``, which is not used.
    margin: m, above 0. The released configs have 20.
    where: optional ``[...]`` bools, False for rows that are ignored.

  Returns:
    ``[...]`` values, 0 where ``where`` is False. O(NK).

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range, or a logit is -inf: the penalty of a
      masked class would be infinite. Where that is traced, it gives inf.

  References:
    Liu et al. 2023, Class Adaptive Network Calibration, as in its released code, which has the mean over classes.

  >>> class_adaptive_label_smoothing(jnp.array([[3.0, 0.0]]), jnp.array([0]), multipliers=0.5, margin=1.0).round(2)
  Array([1.49], dtype=float32)
  """
  del last_constraints
  logits, labels = checks.examples(logits, labels, where)
  checks.options(margin=(margin, "(0, inf)"))
  checks.masked_class(logits, "class_adaptive_label_smoothing depends on the logit of every class")
  multipliers, curvature = (jax.lax.stop_gradient(checks.floating(x, name)).astype(logits.dtype)
                            for x, name in ((multipliers, "multipliers"), (curvature, "curvature")))
  for x, name in ((multipliers, "multipliers"), (curvature, "curvature")):
    if x.shape not in ((), logits.shape[-1:]):
      raise ValueError(f"{name} must be [K] or one number: got shape {x.shape} and logits {logits.shape}.")
  h = _constraints(logits, margin)
  multipliers, curvature = (jnp.broadcast_to(x, h.shape) for x in (multipliers, curvature))
  slope, inside = multipliers + curvature * h, multipliers * h + curvature / 2 * h**2
  # (slope² - λ²) / (2ρ) is the first case, too, but loses the digits of a small λ.
  penalties = jnp.where(slope >= 0, inside, -multipliers**2 / (2 * curvature))
  values = cross_entropy(logits, labels) + jnp.mean(penalties, axis=-1)
  return checks.example_values(values, labels, where, logits.shape[-1])


def _constraints(logits: Array, margin: float) -> Array:
  """The constraints h ``[..., K]``, above 0 where a logit is more than the margin below the largest."""
  return (pick(logits, predicted(logits))[..., None] - logits) / margin - 1


def init_class_adaptive(num_classes: int, curvature: float | Array = 1.0) -> ClassAdaptiveState:
  """The state before training.

  Args:
    num_classes: K.
    curvature: ρ of every class.

  Returns:
    The state, whose multipliers are all 1e-6.

  Raises:
    TypeError, ValueError: if an argument has the wrong kind or range.

  >>> init_class_adaptive(2).multipliers
  Array([1.e-06, 1.e-06], dtype=float32)
  """
  checks.options(num_classes=(num_classes, "integer [1, inf)"), curvature=(curvature, "(0, inf)"))
  return ClassAdaptiveState(*(jnp.full(num_classes, x, jnp.float32) for x in (LEAST, curvature, jnp.inf)))


def update_class_adaptive(state: ClassAdaptiveState, epoch: ArrayLike, logits: ArrayLike, *,
                          margin: float | Array = 10.0, growth: float | Array = 1.2, tolerance: float | Array = 0.9,
                          every: int = 10) -> ClassAdaptiveState:
  r"""The state after an epoch, from the logits of the validation split.

  With :math:`h_{ik}` the constraint of example i and class k,

  .. math::
    \lambda_k \leftarrow \frac{1}{N} \sum_i \mathrm{clip}(\lambda_k + \rho_k\, h_{ik},\, 10^{-6},\, 10^6),

  the mean derivative of the penalty. In every ``every``-th epoch :math:`\rho_k` becomes min(10, ``growth`` ·
  :math:`\rho_k`) where the class's mean constraint :math:`\bar h_k` is above ``tolerance`` times max(0, that after the
  epoch before).

  Args:
    state: the state after the epoch before.
    epoch: the number of the epoch, counted from 1.
    logits: ``[N, K]`` floats.
    margin: m, as in the loss.
    growth: what ρ is multiplied by, at least 1.
    tolerance: the part of the last constraint that is progress enough, at least 0.
    every: the number of epochs between changes of ρ.

  Returns:
    The new state.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range.

  References:
    Liu et al. 2023, as in the released code.

  >>> state = update_class_adaptive(init_class_adaptive(2), 1, jnp.array([[3.0, 0.0], [1.0, 0.0]]), margin=1.0)
  >>> state.multipliers.round(3), state.last_constraints.round(3)
  (Array([0., 1.], dtype=float32), Array([-1.,  1.], dtype=float32))
  """
  checks.options(margin=(margin, "(0, inf)"), growth=(growth, "[1, inf)"), tolerance=(tolerance, "[0, inf)"),
                 every=(every, "integer [1, inf)"))
  logits = checks.floating(logits, "logits")
  if logits.ndim != 2 or logits.shape[1:] != state.multipliers.shape:
    raise ValueError(f"logits must be [N, {len(state.multipliers)}], one column for each multiplier: "
                     f"got shape {logits.shape}.")
  h = _constraints(logits, margin)
  constraints = jnp.mean(h, axis=0)
  grows = (epoch % every == 0) & (constraints > tolerance * jnp.maximum(state.last_constraints, 0))
  curvature = jnp.where(grows, jnp.minimum(growth * state.curvature, MOST_CURVATURE), state.curvature)
  multipliers = jnp.mean(jnp.clip(state.multipliers[None] + state.curvature[None] * h, LEAST, MOST), axis=0)
  return ClassAdaptiveState(multipliers, curvature, constraints)
