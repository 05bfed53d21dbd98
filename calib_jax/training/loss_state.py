"""A loss state is a small state beside the parameters that a step, or the end of an epoch, updates."""

from collections.abc import Callable
import inspect
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from calib_jax import losses, models
from calib_jax._checks.registry import register
from calib_jax._numerics.softmax import map_chunks


class StateUpdate(NamedTuple):
  """How a loss state is made and updated.

  Attributes:
    init: returns the state, a NamedTuple of arrays whose fields are keyword arguments of the loss that reads it.
    on_step: ``(state, logits, labels, *, where, axis_name) -> state``, called in every training step after the loss;
      that of a head gets the head's output instead of logits. None if steps do not change the state.
    on_epoch: ``(state, epoch, logits, labels) -> state``, called after every epoch of a stage, which are counted from
      1, with the logits and labels of the split ``reads``, or None for both; None if epochs do not change the state.
    reads: the split that ``on_epoch`` reads, "validation" or "train", which is then predicted after every epoch; empty
      for none.
    report: a function from a state to scalars that are logged with every step; None for none.
    published: a function from the state of a head to batch statistics of the head, by name, which change with it after
      every epoch, because predictions need them; None for none.
    caution: a sentence that a run with this state says before it trains; empty for none.
    follows_length: whether ``on_epoch`` depends on the number of epochs of the stage.
  """

  init: Callable[[], Any]
  on_step: Callable[..., Any] | None = None
  on_epoch: Callable[..., Any] | None = None
  reads: str = ""
  report: Callable[[Any], dict[str, jax.Array]] | None = None
  published: Callable[[Any], dict[str, jax.Array]] | None = None
  caution: str = ""
  follows_length: bool = False


# Functions ``(number of classes, **options) -> StateUpdate`` by the name of the loss that reads the state.
LOSS_STATES: dict[str, Callable[..., StateUpdate]] = {}


@register(LOSS_STATES, "adaptive_focal")
def adafocal(num_classes: int, *, num_bins: int = 15, gamma: float = 1.0, rate: float = 1.0, switch: float = 0.2,
             gamma_min: float = -2.0, gamma_max: float = 20.0) -> StateUpdate:
  """Returns the state update of AdaFocal (Ghosh et al. 2022), which updates bins and gammas on the validation split.

  It does so after every epoch. ``losses.init_adaptive_focal`` and ``losses.update_adaptive_focal`` explain the options.
  """
  del num_classes

  def on_epoch(state, epoch, logits, labels):
    del epoch
    confidence, correct = jnp.max(jax.nn.softmax(logits), -1), jnp.argmax(logits, -1) == labels
    return losses.update_adaptive_focal(state, confidence, correct, rate=rate, switch=switch, gamma_min=gamma_min,
                                        gamma_max=gamma_max)

  return StateUpdate(lambda: losses.init_adaptive_focal(num_bins, gamma), on_epoch=on_epoch, reads="validation")


@register(LOSS_STATES, "class_adaptive_label_smoothing")
def class_multipliers(num_classes: int, *, margin: float = 10.0, first_curvature: float = 1.0,
                      growth: float = 1.2, tolerance: float = 0.9, every: int = 10) -> StateUpdate:
  """Returns the state update of CALS (Liu et al. 2023), which updates multipliers of classes on the validation split.

  It does so after every epoch. ``losses.init_class_adaptive`` and ``losses.update_class_adaptive`` explain the options.
  """
  def on_epoch(state, epoch, logits, labels):
    del labels
    return losses.update_class_adaptive(state, epoch, logits, margin=margin, growth=growth, tolerance=tolerance,
                                        every=every)

  return StateUpdate(lambda: losses.init_class_adaptive(num_classes, first_curvature), on_epoch=on_epoch,
                     reads="validation", report=lambda state: {"multiplier": jnp.mean(state.multipliers),
                                                               "curvature": state.curvature})


@register(LOSS_STATES, "selective_risk")
def score_counts(num_classes: int, *, num_bins: int = 64, confidence: str = "negative_entropy",
                 score_range: tuple[float, float] | None = None, stop_gradient: bool = True,
                 accumulate_counts: bool = True) -> StateUpdate:
  """Returns the state update of selective risk (Zhou et al. 2025), which counts the scores of the steps of an epoch.

  Every epoch starts from zero. If ``accumulate_counts`` is false, a step knows only the scores of its own batch. The
  other options are those of the loss.
  """
  del num_classes
  caution = "" if stop_gradient else (
    "caution: selective_risk with stop_gradient=False lets gradients flow through the weights. From scratch it lost "
    "accuracy in all 162 settings tried, and collapsed in most with low_confidence_coverage=0.9 and in nearly all with "
    "threshold_gradient=True; see docs/selective_risk.md.")

  def init():
    return losses.init_selective_risk(num_bins)

  def on_step(state, logits, labels, *, where, axis_name):
    del labels
    return losses.update_selective_risk(state, logits, confidence=confidence, score_range=score_range, where=where,
                                        axis_name=axis_name)

  def on_epoch(state, epoch, logits, labels):
    del state, epoch, logits, labels
    return init()

  if not accumulate_counts:
    return StateUpdate(init, caution=caution)
  return StateUpdate(init, on_step, on_epoch, caution=caution)


class MaskState(NamedTuple):
  """The state of the head ``masked``.

  Attributes:
    keep: q, the probability that a weight is used.
    epoch: the number of epochs of the stage so far.
    confidence: the sum of the confidences of this epoch's examples.
    correct: the number of this epoch's examples whose top class is their label.
    count: the number of this epoch's examples.
  """

  keep: jax.Array
  epoch: jax.Array
  confidence: jax.Array
  correct: jax.Array
  count: jax.Array


# Functions ``(head, number of epochs of the stage) -> StateUpdate`` by the name of the head that reads the state.
HEAD_STATES: dict[str, Callable[[models.Head, float], StateUpdate]] = {}


@register(HEAD_STATES, "masked")
def adaptive_masks(head: models.Head, num_epochs: float) -> StateUpdate:
  """Returns the state update of MaC-Cal (Ni et al., Eq. 12 and 13), which changes the probability to use a weight.

  It does not change after the last epoch, with whose q predictions are made.

  Args:
    head: the head, whose fields explain the options.
    num_epochs: T, the number of epochs of the stage.

  Returns:
    The state update.
  """
  zero = jnp.zeros(())

  def init():
    return MaskState(jnp.asarray(head.keep, jnp.float32), jnp.zeros((), jnp.int32), zero, zero, zero)

  def counted(logits, labels, where=True):
    labels = jnp.argmax(labels, -1) if labels.ndim > logits.ndim - 1 else labels
    confidence = jnp.where(where, jnp.max(jax.nn.softmax(logits), -1), 0)
    correct = (jnp.argmax(logits, -1) == labels) & where
    return jnp.sum(confidence), jnp.sum(correct, dtype=jnp.float32), jnp.sum(jnp.broadcast_to(where, correct.shape),
                                                                            dtype=jnp.float32)

  def on_step(state, logits, labels, *, where, axis_name):
    confidence, correct, count = jax.lax.psum(counted(logits, labels, where), axis_name)
    return state._replace(confidence=state.confidence + confidence, correct=state.correct + correct,
                          count=state.count + count)

  def on_epoch(state, epoch, logits, labels):
    if not head.adaptive:
      return state._replace(epoch=state.epoch + 1)
    confidence, correct, count = state[2:] if reads == "" else counted(logits, labels)
    change = (confidence - head.discount * correct) / jnp.maximum(count, 1)
    change *= -1 if head.feedback == "drop" else 1
    bound = jnp.asarray(head.first_bound)
    if head.decaying:
      bound *= jnp.exp(math.log(head.last_bound / head.first_bound) * epoch / num_epochs)
    changed = jnp.clip(state.keep + jnp.clip(change, -bound, bound), 0, 1)
    return MaskState(jnp.where(epoch < num_epochs, changed, state.keep), state.epoch + 1, zero, zero, zero)

  reads = head.measured if head.adaptive and head.measured != "steps" else ""
  return StateUpdate(init, on_step if head.adaptive and not reads else None, on_epoch, reads=reads,
                     follows_length=head.adaptive, report=lambda state: {"keep": state.keep},
                     published=(lambda state: {"keep": state.keep}) if head.publishes else None)


class BalanceState(NamedTuple):
  """The state of the head ``simplex_etf``.

  Attributes:
    share: λ, the share of the linear classifier.
    confidence: ``[SHARES]``, the sum of the confidences of this epoch's examples at λ = 0, …, 1.
    correct: ``[SHARES]``, the number of this epoch's examples whose top class is their label, at the same λ.
    count: the number of this epoch's examples.
  """

  share: jax.Array
  confidence: jax.Array
  correct: jax.Array
  count: jax.Array


SHARES = 129  # Confidence and accuracy are measured at so many λ, and interpolated between them.


@register(HEAD_STATES, "simplex_etf")
def balance(head: models.Head, num_epochs: float) -> StateUpdate:
  """Returns the state update of BalCAL (Ni et al. 2025), which sets λ by an epoch's confidence and accuracy.

  After each epoch λ is found by bisection, to 1e-4, where the mean confidence of λ·linear + (1 - λ)·ETF is δ times its
  accuracy. It is 1 if the linear classifier is no more confident than that. Both are those of the training steps, with
  the ETF logits scaled by class as in the loss, which is what the released code measures. They are added up at evenly
  spaced λ, so that no logits need be kept.

  Args:
    head: the head, whose fields explain the options.
    num_epochs: the number of epochs of the stage, which is not used.

  Returns:
    The state update.
  """
  del num_epochs
  shares, zero = jnp.linspace(0, 1, SHARES), jnp.zeros(())

  def init():
    return BalanceState(jnp.asarray(head.share, jnp.float32), jnp.zeros(SHARES), jnp.zeros(SHARES), zero)

  def on_step(state, output, labels, *, where, axis_name):
    output = head.balanced(output, labels, where=where, axis_name=axis_name)
    labels = jnp.argmax(labels, -1) if labels.ndim > 1 else labels

    def measured(share):
      logits = head.combined(output, state._replace(share=share))
      correct = (jnp.argmax(logits, -1) == labels) & where
      return jnp.sum(jnp.where(where, jnp.max(jax.nn.softmax(logits), -1), 0)), jnp.sum(correct, dtype=jnp.float32)

    confidence, correct = map_chunks(measured, shares, 16)
    sums = jax.lax.psum((confidence, correct, jnp.sum(where, dtype=jnp.float32)), axis_name)
    return BalanceState(state.share, *(old + new for old, new in zip(state[1:], sums, strict=True)))

  def on_epoch(state, epoch, logits, labels):
    del epoch, logits, labels
    excess = (state.confidence - head.target * state.correct) / jnp.maximum(state.count, 1)

    def halve(_, bounds):
      low, high = bounds
      middle = (low + high) / 2
      over = jnp.interp(middle, shares, excess) > 0
      return jnp.where(over, low, middle), jnp.where(over, middle, high)

    halvings = math.ceil(math.log2(1e4))
    low, high = jax.lax.fori_loop(0, halvings, halve, (zero, zero + 1))
    return init()._replace(share=jnp.where(excess[-1] <= 0, 1, (low + high) / 2))

  return StateUpdate(init, on_step, on_epoch, report=lambda state: {"share": state.share},
                     published=lambda state: {"share": state.share})


def of_head(name: str, head: models.Head, num_epochs: float) -> dict[str, StateUpdate]:
  """Returns the state update that a head needs, by the name ``head``; empty for most heads.

  Args:
    name: the name of the head.
    head: the head.
    num_epochs: the number of epochs of the stage that trains it.
  """
  return {"head": HEAD_STATES[name](head, num_epochs)} if name in HEAD_STATES else {}


def split_options(name: str, options: dict) -> tuple[dict, dict]:
  """Splits the options of a config's section into ``(options of the loss, options of its state)``.

  An option that both have is in both.
  """
  if name not in LOSS_STATES:
    return dict(options), {}
  own, shared = inspect.signature(LOSS_STATES[name]).parameters, losses.options(name)
  return ({key: value for key, value in options.items() if key in shared or key not in own},
          {key: value for key, value in options.items() if key in own})


def of_loss(section: ConfigDict, num_classes: int) -> dict[str, StateUpdate]:
  """Returns the state updates that the losses of a config need.

  Args:
    section: a config's section ``loss``.
    num_classes: the number of classes of the data.

  Returns:
    The state updates by the name of the loss that reads their state; empty for most losses.

  Raises:
    ValueError: if both losses are of one name that has a state.
  """
  updates = {}
  if section.primary.name == section.secondary.name and section.primary.name in LOSS_STATES:
    raise ValueError(f"the primary and the secondary loss are both {section.primary.name!r}, which has a state that "
                     "they would share; use it once.")
  for part in (section.primary, section.secondary):
    if part.name in LOSS_STATES:
      _, options = split_options(part.name, {key: value for key, value in part.items() if key != "name"})
      updates[part.name] = LOSS_STATES[part.name](num_classes, **options)
  return updates
