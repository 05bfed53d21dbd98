"""A loss state is a small state beside the parameters that a step, or the end of an epoch, updates."""

from collections.abc import Callable
import inspect
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections

from calib_jax import losses
from calib_jax._checks.registry import register


class StateUpdate(NamedTuple):
  """How a loss state is made and updated.

  Attributes:
    init: returns the state, a NamedTuple of arrays whose fields are keyword arguments of the loss that reads it.
    on_step: ``(state, logits, labels, *, where, axis_name) -> state``, called in every training step after the loss;
      a head's update gets the head's output instead of logits. None if steps do not change the state.
    on_epoch: ``(state, epoch, logits, labels) -> state``, called after every epoch of a stage, which are counted from
      1, with the logits and labels of the split ``reads``, or None for both; None if epochs do not change the state.
    reads: the split that ``on_epoch`` reads, "validation" or "train", which is then predicted after every epoch; empty
      for none.
    report: a function from a state to scalars that are logged with every step; None for none.
    published: a function from the state of a head to batch statistics of the head, by name, which change with it after
      every epoch, because predictions need them; None for none.
    caution: a sentence that a run with this state says before it trains; empty for none.
  """

  init: Callable[[], Any]
  on_step: Callable[..., Any] | None = None
  on_epoch: Callable[..., Any] | None = None
  reads: str = ""
  report: Callable[[Any], dict[str, jax.Array]] | None = None
  published: Callable[[Any], dict[str, jax.Array]] | None = None
  caution: str = ""


# Functions ``(number of classes, **options) -> StateUpdate`` by the name of the loss that reads the state.
LOSS_STATES: dict[str, Callable[..., StateUpdate]] = {}


@register(LOSS_STATES, "adaptive_focal")
def adafocal(num_classes: int, *, num_bins: int = 15, gamma: float = 1.0, rate: float = 1.0, switch: float = 0.2,
             gamma_min: float = -2.0, gamma_max: float = 20.0) -> StateUpdate:
  """Returns AdaFocal's update (Ghosh et al. 2022) of bins and gammas on the validation split after every epoch."""
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
  """Returns CALS's update (Liu et al. 2023) of multipliers of classes on the validation split after every epoch."""
  def on_epoch(state, epoch, logits, labels):
    del labels
    return losses.update_class_adaptive(state, epoch, logits, margin=margin, growth=growth, tolerance=tolerance,
                                        every=every)

  return StateUpdate(lambda: losses.init_class_adaptive(num_classes, first_curvature), on_epoch=on_epoch,
                     reads="validation", report=lambda state: {"multiplier": jnp.mean(state.multipliers),
                                                               "curvature": jnp.mean(state.curvature)})


@register(LOSS_STATES, "selective_risk")
def score_counts(num_classes: int, *, variant: str = "released", num_bins: int = 64,
                 confidence: str = "msp", score_range: tuple[float, float] | None = None,
                 accumulate_counts: bool = True) -> StateUpdate:
  """Returns selective risk's update (Zhou et al. 2025), which counts the scores of an epoch's steps from zero.

  If ``accumulate_counts`` is false, a step knows only the scores of its own batch.
  """
  del num_classes
  caution = ""
  if variant in ("printed", "clamped"):
    caution = (f"caution: selective_risk with variant={variant!r} lets gradients flow through the weights, by which "
               "every example gains by being less confident: it lost accuracy on every network that was tried from "
               "scratch, and some collapsed; see docs/selective_risk.md.")
  elif variant == "released" and confidence == "negative_entropy" and score_range is None:
    caution = ("caution: selective_risk with variant='released' and confidence='negative_entropy' is a constant times "
               "cross entropy, as in the released code; take confidence='msp', or variant='stopped'.")

  def init():
    return losses.init_selective_risk(num_bins)

  def on_step(state, logits, labels, *, where, axis_name):
    del labels
    return losses.update_selective_risk(state, logits, variant=variant, confidence=confidence, score_range=score_range,
                                        where=where, axis_name=axis_name)

  def on_epoch(state, epoch, logits, labels):
    del state, epoch, logits, labels
    return init()

  if not accumulate_counts:
    return StateUpdate(init, caution=caution)
  return StateUpdate(init, on_step, on_epoch, caution=caution)


def split_options(section: ml_collections.ConfigDict) -> tuple[dict[str, Any], dict[str, Any]]:
  """Splits the options of a section into ``(options of the loss, options of its state)``; some may be in both."""
  options = {key: value for key, value in section.items() if key != "name"}
  if section.name not in LOSS_STATES:
    return options, {}
  own, shared = inspect.signature(LOSS_STATES[section.name]).parameters, losses.options(section.name)
  return ({key: value for key, value in options.items() if key in shared or key not in own},
          {key: value for key, value in options.items() if key in own})


def of_loss(section: ml_collections.ConfigDict, num_classes: int) -> dict[str, StateUpdate]:
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
      updates[part.name] = LOSS_STATES[part.name](num_classes, **split_options(part)[1])
  return updates


def after_step(states: dict[str, StateUpdate]) -> Callable[..., dict[str, Any]] | None:
  """Returns what updates all loss states in a step, by logits, and a head's by its output; None for nothing."""
  updates = {name: update.on_step for name, update in states.items() if update.on_step}

  def update(loss_states, logits, labels, *, output, **options):
    return loss_states | {name: on_step(loss_states[name], output if name == "head" else logits, labels, **options)
                          for name, on_step in updates.items()}

  return update if updates else None


def after_epoch(states: dict[str, StateUpdate]) -> Callable[..., tuple[dict[str, Any], dict[str, jax.Array]]] | None:
  """Returns what updates all loss states after an epoch, with what the head's state publishes; None for nothing."""
  updates = {name: update for name, update in states.items() if update.on_epoch}
  publish = "head" in states and states["head"].published

  def update(loss_states, epoch, predictions):
    new = loss_states | {name: update.on_epoch(loss_states[name], epoch, *predictions.get(update.reads, (None, None)))
                         for name, update in updates.items()}
    return new, publish(new["head"]) if publish else {}

  return update if updates else None


def report(states: dict[str, StateUpdate]) -> Callable[[dict[str, Any]], dict[str, jax.Array]] | None:
  """Returns what the loss states log with every step, as a function of them; None for nothing."""
  reports = {name: update.report for name, update in states.items() if update.report}
  if not reports:
    return None
  return lambda loss_states: {key: value for name, of_state in reports.items()
                              for key, value in of_state(loss_states[name]).items()}
