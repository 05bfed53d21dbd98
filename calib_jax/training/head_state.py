"""The states of heads, which steps and the ends of epochs update as they update the states of losses."""

from collections.abc import Callable
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from calib_jax._checks.registry import register
from calib_jax._numerics.softmax import map_chunks
from calib_jax.training import models
from calib_jax.training.loss_state import StateUpdate

# Functions ``(head, number of epochs of the stage) -> StateUpdate`` by the name of the head that reads the state.
HEAD_STATES: dict[str, Callable[[models.Head, float], StateUpdate]] = {}


def counted(logits: jax.Array, labels: jax.Array, where: jax.Array | bool = True) -> tuple[jax.Array, ...]:
  """Returns the sum of the confidences of examples, the number whose top class is their label, and their number.

  ``logits`` are ``[N, K]``, ``labels`` ``[N]``, or ``[N, K]`` whose largest counts, and ``where`` ``[N]``.
  """
  labels = jnp.argmax(labels, -1) if labels.ndim > 1 else labels
  confidence = jnp.where(where, jnp.max(jax.nn.softmax(logits), -1), 0)
  correct = (jnp.argmax(logits, -1) == labels) & where
  return jnp.sum(confidence), jnp.sum(correct, dtype=jnp.float32), jnp.sum(jnp.broadcast_to(where, correct.shape),
                                                                          dtype=jnp.float32)


class MaskState(NamedTuple):
  """The state of the head ``masked``."""

  keep: jax.Array  # q, the probability that a weight is used.
  epoch: jax.Array  # The number of epochs of the stage so far.
  confidence: jax.Array  # The sum of the confidences of this epoch's examples.
  correct: jax.Array  # The number of this epoch's examples whose top class is their label.
  count: jax.Array  # The number of this epoch's examples.


@register(HEAD_STATES, "masked")
def adaptive_masks(head: models.Head, num_epochs: float) -> StateUpdate:
  """MaC-Cal's update (Eq. 12 and 13) of the probability to use a weight; ``num_epochs``, T, is the stage's."""
  zero = jnp.zeros(())

  def init():
    return MaskState(jnp.asarray(head.keep, jnp.float32), jnp.zeros((), jnp.int32), zero, zero, zero)

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
                     report=lambda state: {"keep": state.keep},
                     published=(lambda state: {"keep": state.keep}) if head.publishes else None)


class BalanceState(NamedTuple):
  """The state of the head ``simplex_etf``; its sums are at λ = 0, …, 1."""

  share: jax.Array  # λ, the share of the linear classifier.
  confidence: jax.Array  # ``[SHARES]``, the sum of the confidences of this epoch's examples.
  correct: jax.Array  # ``[SHARES]``, the number of this epoch's examples whose top class is their label.
  count: jax.Array  # The number of this epoch's examples.


SHARES = 129  # Confidence and accuracy are measured at so many λ, and interpolated between them.


@register(HEAD_STATES, "simplex_etf")
def balance(head: models.Head, num_epochs: float) -> StateUpdate:
  """Returns the state update of BalCAL (Ni et al. 2025), which sets λ by an epoch's confidence and accuracy.

  After each epoch λ is found by bisection, to 1e-4, where the mean confidence of λ·linear + (1 - λ)·ETF is δ times its
  accuracy; it is 1 if the linear classifier is no more confident than that. Both are measured in training steps, with
  the ETF logits scaled by class as in the loss, as the released code measures them, added up at evenly spaced λ.
  """
  del num_epochs
  shares, zero = jnp.linspace(0, 1, SHARES), jnp.zeros(())

  def init():
    return BalanceState(jnp.asarray(head.share, jnp.float32), jnp.zeros(SHARES), jnp.zeros(SHARES), zero)

  def on_step(state, output, labels, *, where, axis_name):
    output = head.balanced(output, labels, where=where, axis_name=axis_name)

    def measured(share):
      return counted(head.combined(output, state._replace(share=share)), labels, where)

    confidence, correct, count = map_chunks(measured, shares, 16)
    sums = jax.lax.psum((confidence, correct, count[0]), axis_name)
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
  """Returns the state update, by the key ``head``, that a head needs in a stage of so many epochs; empty for most."""
  return {"head": HEAD_STATES[name](head, num_epochs)} if name in HEAD_STATES else {}
