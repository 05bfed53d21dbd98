"""Losses for training calibrated classifiers: pure functions of ``logits`` ``[..., K]`` and ``labels`` ``[...]``.

Per-example losses return ``[...]``. Per-batch losses return a scalar, for which all leading axes are one batch;
``jax.vmap`` gives one value for each image or sequence. ``PER_EXAMPLE`` and ``PER_BATCH`` list them.

All take ``where`` ``[...]``, which is False for padding. Per-batch losses, and ``composite``, also take ``weights``
``[...]``, at least 0; an integer weight w equals w copies of the row, in value and gradient. A row
of weight 0 adds nothing, but must be valid. And they take ``axis_name``, a mapped axis over whose devices the batch is
spread.

Labels are integers. All per-batch losses, and ``cross_entropy``, ``focal`` and ``brier``, also take distributions
``[..., K]``, such as mixed or smoothed labels: where a formula asks whether the top class is the label, its probability
in the distribution stands there.

A label out of range is a ValueError or, where it is traced, makes the value NaN: of its row, or of the batch. Rows
whose ``where`` is False may hold anything. A logit of -inf masks its class, which then has probability 0 and no
gradient; if it is the label, -log p is infinite, and the row has no gradient. Losses to which that has no meaning say
so.

>>> logits, labels = jnp.array([[2.0, 0.0, -1.0], [0.0, 0.5, 0.0]]), jnp.array([0, 2])
>>> focal(logits, labels, gamma=1.0).shape
(2,)
>>> get("focal", gamma=1.0)(logits, labels).shape  # With its options bound, as composite takes it.
(2,)
>>> jax.jit(soft_avuc)(logits, labels, where=jnp.array([True, False])).shape
()
>>> images = jnp.zeros((5, 8, 8, 3)), jnp.zeros((5, 8, 8), jnp.int32)
>>> jax.jit(soft_binned_ece)(*images).shape, jax.jit(jax.vmap(soft_binned_ece))(*images).shape
((), (5,))
>>> jax.jit(jax.grad(lambda z: composite("focal", "soft_avuc", 0.5)(z, labels)[0]))(logits).shape
(2, 3)
"""

from calib_jax._checks.registry import import_modules
from calib_jax.losses.adaptive_focal import AdaptiveFocalState, init_adaptive_focal, update_adaptive_focal
from calib_jax.losses.catalogue import PER_BATCH, PER_EXAMPLE, get, options
from calib_jax.losses.class_adaptive import ClassAdaptiveState, init_class_adaptive, update_class_adaptive
from calib_jax.losses.composition import composite
from calib_jax.losses.consistency import jensen_shannon_consistency
from calib_jax.losses.selective import SelectiveRiskState, init_selective_risk, update_selective_risk
from calib_jax.losses.tasks import keras, two_class

import_modules(__name__)  # A new file of this package registers what it holds.
# Every loss is a name of this module; editors and type checkers read them in ``__init__.pyi``.
globals().update({**PER_EXAMPLE, **PER_BATCH})

__all__ = ["PER_BATCH", "PER_EXAMPLE", "AdaptiveFocalState", "ClassAdaptiveState", "SelectiveRiskState", "composite",
           "get", "init_adaptive_focal", "init_class_adaptive", "init_selective_risk", "jensen_shannon_consistency",
           "keras", "options", "two_class", "update_adaptive_focal", "update_class_adaptive", "update_selective_risk"]
__all__ += [*PER_EXAMPLE, *PER_BATCH]


def __dir__() -> list[str]:
  return sorted(__all__)
