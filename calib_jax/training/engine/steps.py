"""The training and prediction steps of one model on one device; ``mapping.mapped`` maps them over seeds and devices."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from calib_jax.training.distributed.mapping import AXIS
from calib_jax.training.engine import drawing, gradients
from calib_jax.training.models import Draw, log_mean_probs
from calib_jax.training.state import TrainState

Array = jax.Array
# Numbers to fold into the run's key for what a head draws and for the samples of predictions; no step has them.
_DRAWS, _SAMPLES = 2**32 - 3, 2**32 - 4


def init_state(model: nn.Module, optimizer: optax.GradientTransformation, example: Array, loss_states: Any, key: Array
               ) -> TrainState:
  """Returns the state before the first step; its parameters are drawn from ``key``, and ``example`` is an input."""
  variables = {"batch_stats": {}, **model.init(key, example)}
  zero = jnp.zeros((), jnp.int32)
  return TrainState(zero, variables["params"], variables["batch_stats"], optimizer.init(variables["params"]),
                    loss_states, zero)


def train_step(state: TrainState, batch: dict[str, Array], key: Array, *, objective: gradients.Objective,
               optimizer: optax.GradientTransformation, rate: float = 1.0, accumulation: int = 1,
               sharpness: float = 0.0, stage_steps: tuple[int, int] = (0, 1),
               report_states: Callable[..., Any] | None = None) -> tuple[TrainState, dict[str, Array]]:
  """Takes one step of minimising ``objective`` on the global batch; returns the new state and what the step measured.

  ``batch`` is this device's share: ``image``, ``label``, and ``mask``, False for padding. ``rate`` multiplies the
  update, ``stage_steps`` are the numbers of steps before the stage and of the stage, and ``report_states`` maps loss
  states to scalars. A step whose loss or gradients are not finite changes only the two counts of the state.
  """
  # All devices and all parts of a batch use the same weights.
  draw = objective.model.head.draw(state.params.get("head", {}), jax.random.fold_in(key, _DRAWS), state.step,
                                   state.loss_states.get("head"))
  before = gradients.Changed(state.batch_stats, state.loss_states)
  fixed_params, fixed_stats = _fixed(state, draw, objective, stage_steps)

  def gradients_at(params):
    """The gradients of the global batch; all calls have the same random numbers."""
    grads, measured, changed, *counts = gradients.of_batch(objective, params, draw, before, batch,
                                                           jax.random.fold_in(key, state.step), accumulation)
    # The psum inside the global loss transposes to a psum, so pmean gives exactly the gradient of the whole batch.
    grads, measured = jax.lax.pmean((grads, measured), AXIS)
    return drawing.restored(grads, jax.tree.map(jnp.zeros_like, grads), *fixed_params), measured, changed, counts

  grads, measured, changed, counts = gradients_at(state.params)
  correct, count = jax.lax.psum(counts, AXIS)
  if sharpness:
    grads = gradients_at(gradients.perturbed(state.params, grads, sharpness))[0]
  measured |= {"accuracy": correct / count, "gradient_norm": optax.tree.norm(grads)}
  if report_states is not None:
    measured |= report_states(state.loss_states)
  with jax.numpy_dtype_promotion("standard"):  # Optax mixes integer counts with floats.
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
  params = optax.apply_updates(state.params, jax.tree.map(lambda u: rate * u, updates) if rate != 1.0 else updates)
  params = jax.tree.map(lambda new, old, train: new if train else old, params, state.params,
                        drawing.trainable(state.params, objective.trained))
  params, opt_state = drawing.restored((params, opt_state), (state.params, state.opt_state), *fixed_params)
  if draw.updates == "stored":
    params = drawing.used(params, draw)
  batch_stats = drawing.restored(changed.batch_stats, state.batch_stats, fixed_stats)
  after = TrainState(state.step, params, batch_stats, opt_state, changed.loss_states, state.skipped)
  finite = jnp.isfinite(measured["loss"]) & jnp.isfinite(measured["gradient_norm"])
  after = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, state)
  return after._replace(step=state.step + 1, skipped=state.skipped + (~finite).astype(jnp.int32)), measured


def _fixed(state: TrainState, draw: Draw, objective: gradients.Objective,
          stage_steps: tuple[int, int]) -> tuple[tuple[dict, ...], dict]:
  """Returns the parameters, and the batch statistics, that this step leaves as they are."""
  before, num_steps = stage_steps
  fractions, taken = objective.trained(state.params), state.step - before
  stats = drawing.frozen(state.batch_stats, fractions, taken, num_steps) if objective.batch_stats == "trained" else {}
  return (drawing.unused(draw), drawing.frozen(state.params, fractions, taken, num_steps)), stats


def statistics_step(variables: dict[str, Any], batch: dict[str, Array], *, model: nn.Module,
                    normalize: Callable[..., Any]) -> tuple[Any, Array]:
  """Returns the running batch statistics after a training step without augmentation, and the number of examples."""
  mask = batch["mask"]
  _, updated = model.apply(variables, normalize(batch["image"]), train=True, mask=mask,
                           mutable=["batch_stats", "losses"], rngs={"dropout": jax.random.key(0)})
  stats = gradients.shared_statistics(model, updated["batch_stats"], mask)
  return stats, jax.lax.psum(jnp.sum(mask, dtype=jnp.float32), AXIS)


def predict_step(variables: dict[str, Any], batch: dict[str, Array], *, model: nn.Module, normalize: Callable[..., Any],
                 features: bool = False, samples: int = 0) -> dict[str, Array]:
  """Predicts ``logits``, with ``label``, ``mask`` and ``features`` of all devices' shares, with running statistics.

  With ``samples``, for which ``variables`` has the run's ``key``, the logits are logarithms of mean probabilities over
  so many draws of the model's random layers, the same for all images; with 0 these compute their means.
  """
  variables = dict(variables)
  key = variables.pop("key", None)
  images = normalize(batch["image"])
  if samples:
    # Mapped over keys, layers before the first random one are computed once, and only the others S times.
    keys = jax.random.split(jax.random.fold_in(key, _SAMPLES), samples)
    sampled = jax.vmap(lambda key: model.apply(variables, images, rngs={"samples": key}))(keys)
    outputs = {"logits": log_mean_probs(sampled)}
  else:
    predictions = model.apply(variables, images, return_features=features)
    outputs = dict(zip(("logits", "features"), predictions, strict=True)) if features else {"logits": predictions}
  return jax.lax.all_gather({**outputs, "label": batch["label"], "mask": batch["mask"]}, AXIS, tiled=True)
