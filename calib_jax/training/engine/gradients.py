"""The gradients of what a step minimises, on a batch or on its parts one after another."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import optax

from calib_jax import losses
from calib_jax.training.distributed.mapping import AXIS
from calib_jax.training.engine import drawing
from calib_jax.training.models import Draw

Array = jax.Array


class Objective(NamedTuple):
  """What a step minimises: ``loss_fn + l2 * ||params||^2`` on the global batch, as a function of the stored images."""

  model: nn.Module  # The model of the stage.
  loss_fn: Callable[..., Any]  # The loss, as ``objectives.objective`` returns it.
  # The mapped axis, to compute the loss of the global batch; None for the mean of the devices' own losses.
  loss_axis: str | None
  augment: Callable[..., Any]  # The augmentation of stored images, as ``data.build_augmentation`` returns it.
  normalize: Callable[..., Any]  # Maps augmented images to the model's input.
  l2: float  # The coefficient of the squared norm.
  # A function from parameters to a tree of bools; the norm is over those for which it is true.
  decays: Callable[..., Any]
  # Whether ``loss_fn`` sums its primary over the examples. The step then minimises the sum over the global batch,
  # however the batch is divided over parts and devices.
  sums: bool = False
  trained: Callable[[Any], dict[str, float]] = lambda params: {}  # As in ``stages.Stage``.
  batch_stats: str = "all"  # As in ``stages.Phase``.
  # ``(loss_states, logits, labels, *, output, where, axis_name) -> loss_states``, called after the loss with the
  # head's output too; or None.
  update_states: Callable[..., Any] | None = None


class Changed(NamedTuple):
  """What the forward pass of a step changes beside its gradients."""

  batch_stats: Any
  loss_states: Any


class Gradients(NamedTuple):
  """The gradients of a batch or of a part of it."""

  grads: Any  # A tree like the parameters.
  measured: dict[str, Array]  # The loss, its parts and the L2 penalty.
  changed: Changed  # The new batch statistics and loss state.
  correct: Array  # The number of this device's examples whose top class is their label.
  count: Array  # The number of this device's examples.


def perturbed(params: Any, grads: Any, radius: float) -> Any:
  r"""Returns the parameters w + ρ g / ||g|| at which SAM takes its gradient (Foret et al. 2021, Eq. 2).

  The gradient g of the global batch has the penalty of L2; where it is 0 nothing moves. ``optax.contrib.sam`` returns
  the gradient alone, without the batch statistics and states that a step carries on.
  """
  norm = optax.tree.norm(grads)
  factor = radius / jnp.where(norm > 0, norm, 1)
  return jax.tree.map(lambda w, g: w + factor * g, params, grads)


def of_batch(objective: Objective, params: Any, draw: Draw, changed: Changed, batch: dict[str, Array], key: Array,
             parts: int) -> Gradients:
  """Returns the gradients of this device's share of a batch, averaged over ``parts`` by their numbers of examples."""
  if parts == 1:
    return of_part(objective, params, draw, changed, batch, key)
  divided = {name: x.reshape(parts, -1, *x.shape[1:]) for name, x in batch.items()}
  counts = jax.lax.psum(jnp.sum(divided["mask"], 1), AXIS).astype(jnp.float32)
  shares = counts / jnp.sum(counts)

  def add(total, part):
    index, share, examples = part
    new = of_part(objective, params, draw, total.changed, examples, jax.random.fold_in(key, index), share)
    # A part that holds only padding on all devices has no statistics, so the old ones are kept.
    changed = jax.tree.map(lambda new, old: jnp.where(share > 0, new, old), new.changed, total.changed)
    grads, measured = jax.tree.map(lambda sum_, x: sum_ + share * x, total[:2], new[:2])
    return Gradients(grads, measured, changed, total.correct + new.correct, total.count + new.count), None

  first_part = {name: x[0] for name, x in divided.items()}
  shapes = jax.eval_shape(lambda: of_part(objective, params, draw, changed, first_part, key))
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)._replace(changed=changed)
  total, _ = jax.lax.scan(add, zeros, (jnp.arange(parts, dtype=jnp.uint32), shares, divided))
  return total


def shared_statistics(model: nn.Module, batch_stats: Any, mask: Array) -> Any:
  """Returns the new running statistics that all devices keep: the same where norms took those of the global batch.

  With ``model.norm_statistics`` "device" they are averages over devices, by their numbers of examples.
  """
  if model.backbone.axis_name is not None:
    return batch_stats
  count = jnp.sum(mask, dtype=jnp.float32)
  share = count / jnp.maximum(jax.lax.psum(count, AXIS), 1)
  return jax.lax.psum(jax.tree.map(lambda x: share * x, batch_stats), AXIS)


def of_part(objective: Objective, params: Any, draw: Draw, changed: Changed, part: dict[str, Array], key: Array,
            share: Array | float = 1.0) -> Gradients:
  """Returns the gradients of one part of a batch, which holds the fraction ``share`` of the examples."""
  augmented = objective.augment(part["image"], part["label"], part["mask"], key, AXIS)
  images, labels, mask = objective.normalize(augmented.images), augmented.labels, augmented.mask
  views = len(images) // len(mask)
  # Averages over parts, weighted by their shares, and over devices follow: this factor turns them into sums.
  devices = 1 if objective.loss_axis else jax.lax.axis_size(AXIS)
  scale = {"scale": devices / jnp.where(share > 0, share, 1)} if objective.sums else {}

  def value(params):
    trained = drawing.trainable(params, objective.trained)
    params = jax.tree.map(lambda x, train: x if train else jax.lax.stop_gradient(x), params, trained)
    output, updated = objective.model.apply(
      {"params": drawing.used(params, draw), "batch_stats": changed.batch_stats}, images, train=True,
      mask=jnp.repeat(mask, views), freeze_batch_stats=objective.batch_stats == "none",
      mutable=["batch_stats", "losses"], rngs={"dropout": key})
    head, head_state = objective.model.head, changed.loss_states.get("head")
    penalties = augmented.penalties(head.combined(output, head_state))
    output = augmented.unmix(output)
    logits, loss, terms = head.combined(output, head_state), 0.0, {}
    for weight, z in head.objectives(output, labels, head_state, where=mask, axis_name=AXIS):
      part_loss, part_terms = objective.loss_fn(z, labels, loss_states=changed.loss_states, where=mask,
                                                axis_name=objective.loss_axis, **scale)
      loss += weight * part_loss
      terms = {name: terms.get(name, 0.0) + weight * x for name, x in part_terms.items()}
    # The first view is the one of the labels. A head's own losses per example, of this view, and the augmentation's
    # are reduced as the primary is.
    own = flax.traverse_util.flatten_dict(updated.get("losses", {}))
    for name, values in ({path[-1]: values[::views] for path, values in own.items()} | penalties).items():
      reduced = losses.composite(lambda *_, values=values: values, reduction="sum" if objective.sums else "mean")
      reduced_values, _ = reduced(logits, labels, where=mask, axis_name=objective.loss_axis)
      terms[name] = scale.get("scale", 1.0) * reduced_values
      loss += terms[name]
    squares = jax.tree.map(lambda x, decay, train: jnp.sum(x**2) if decay and train else 0.0, params,
                           objective.decays(params), trained)
    penalty = objective.l2 * sum(jax.tree.leaves(squares))
    return loss + penalty, (output, logits, updated.get("batch_stats", {}), {"loss": loss, "l2": penalty, **terms})

  grads, (output, logits, batch_stats, measured) = jax.grad(value, has_aux=True)(params)
  batch_stats = shared_statistics(objective.model, batch_stats, mask)
  loss_states = changed.loss_states
  if objective.update_states is not None:
    loss_states = objective.update_states(loss_states, logits, labels, output=output, where=mask, axis_name=AXIS)
  labels = jnp.argmax(labels, -1) if labels.ndim > 1 else labels  # The accuracy counts the larger part of a mix.
  correct = jnp.sum((jnp.argmax(logits, -1) == labels) & mask)
  return Gradients(grads, measured, Changed(batch_stats, loss_states), correct, jnp.sum(mask))
