"""Small configs, data and comparisons that the tests of training share."""

import json
import signal

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
import pytest
from scipy import special

from calib_jax import training
from calib_jax.training import config as run_config
from calib_jax.training import data, models
from calib_jax.training.data import per_image
from calib_jax.training.distributed.mapping import AXIS, mapped_steps
from calib_jax.training.engine import gradients, steps
from calib_jax.training.engine import program as programs
from tests.programs import ROOT

PLAIN = ("loss.primary.name=cross_entropy", "loss.secondary.name=")

# A run of a few seconds in a process of its own. An epoch is 6 steps on the majority and 3 on the held-out part.
RUN = ("--config=configs/digits_savuc.py", "--config.num_seeds=1", "--config.compare_with_cross_entropy=False",
       "--config.schedule.name=interleaved", "--config.data.held_out_fraction=0.3",
       "--config.training.num_steps=44", "--config.checkpoint.every_steps=4",
       "--config.evaluation.num_resamples=2", "--config.model.hidden=(16,)", "--config.evaluation.calibrators={}")


def digits(*overrides):
  """Returns the config of the digits with overrides such as ``training.num_epochs=1``."""
  return run_config.load(str(ROOT / "configs/digits_savuc.py"), [f"--config.{o}" for o in overrides])


def short(*overrides):
  """Returns the config of nine steps of a network of one hidden layer of five, unless an override names a model."""
  names_model = any(o.startswith(("model.name=", "model.hidden=")) for o in overrides)
  model = () if names_model else ("model.hidden=(5,)",)
  return digits("training.batch_size=16", "training.num_epochs=3", "training.log_every_steps=1",
                "optimizer.learning_rate=0.05", *model, *overrides)


def tiny_splits(seed=0, n=44, classes=3):
  """Returns images of 4 x 4 pixels, of which one is brighter by the class."""
  rng = np.random.default_rng(seed)
  images = rng.integers(0, 120, (n, 4, 4, 1), dtype=np.uint8)
  labels = np.arange(n, dtype=np.int32) % classes
  images[np.arange(n), labels] += 100
  part = data.Examples(images, labels)
  return data.Splits(part, part.take(np.arange(13)), part.take(np.arange(10)), classes, np.array([0.3], np.float32),
                     np.array([0.2], np.float32))


def train(config, seeds=(0,), devices=2, splits=None, **options):
  """Trains on tiny data, or on ``splits``, one a seed."""
  return training.train(config, splits or [tiny_splits(seed) for seed in seeds], seeds=list(seeds),
                        devices=jax.devices()[:devices], **options)


def finished(config, folder):
  """Trains on tiny data, as a run that leaves its directory, from which others may start; returns the state."""
  group = training.Group((0,), folder / "checkpoints" / "seed0")
  (folder / "config.json").write_text(run_config.to_json(config))
  group.write_shape(training.shape_of(tiny_splits()))
  return train(config, folder=group.folder)[0]


def built(config, splits=None, devices=2):
  """Returns the program of one seed, and the key that its stages start from."""
  program = programs.build(config, [splits or tiny_splits()], [0], jax.devices()[:devices])
  return program, jnp.stack([jax.random.key(0)])


def one_step(step, state, batch, keys):
  """Takes a step on a batch ``[devices, seeds, examples, ...]``; returns the state and what was measured ``[S]``."""
  state, measured = step(state, {name: x[:, None] for name, x in batch.items()}, keys)
  return state, {name: x[0] for name, x in measured.items()}


def gradient_step(model, loss, batch, devices, *, change=lambda params: params, augmentation="none", l2=0.0,
                  decays=models.decay_mask, **options):
  """Takes a step of gradient descent at the rate 0.5; returns the state before, the one after it, and what it measured.

  ``loss`` has the fields of ``config.loss`` that are set, ``change`` gives the parameters to start from, and
  ``augmentation`` is a name, or a dict with options too.
  """
  loss = ml_collections.ConfigDict({"secondary": {"name": ""}, "weight": 1.0, **loss})
  section = {"name": augmentation} if isinstance(augmentation, str) else augmentation
  objective = gradients.Objective(
    model, training.objective(loss), AXIS, augment=data.build_augmentation(num_classes=3, **section),
    normalize=lambda x: x.astype(jnp.float32) / 255, l2=l2, decays=decays, sums=loss.get("reduction") == "sum")
  step = mapped_steps(steps.train_step, devices, 1, image_shape=batch["image"].shape[1:], objective=objective,
                      optimizer=optax.sgd(0.5), **options)
  state = steps.init_state(model, optax.sgd(0.5), jnp.zeros((1, *batch["image"].shape[1:])), {}, jax.random.key(0))
  state = state._replace(params=change(state.params))
  shares = {name: x.reshape(len(devices), 1, -1, *x.shape[1:]) for name, x in batch.items()}
  after, measured = one_step(step, jax.tree.map(lambda x: x[None].copy(), state), shares, jax.random.key(0)[None])
  return state, *alone((after, measured))


def linear_step(devices, mask, **options):
  """Takes ``gradient_step`` on softmax regression, whose result is known in closed form; eight examples have ``mask``.

  Returns the head's parameters before, the state after, what was measured, and the images and labels that count.
  """
  model = models.get("mlp", num_classes=3, hidden=(), axis_name=AXIS)
  images = np.random.default_rng(2).integers(0, 256, (8, 2, 2, 1), dtype=np.uint8)
  batch = {"image": images, "label": np.arange(8, dtype=np.int32) % 3, "mask": mask}
  before, after, measured = gradient_step(
    model, {"primary": {"name": "cross_entropy"}}, batch, devices,
    change=lambda params: jax.tree.map(lambda x: x + 0.3, params), **options)  # Biases start at 0.
  head = {name: np.asarray(before.params["head"][name], np.float64) for name in ("kernel", "bias")}
  return head, after, measured, images[mask].reshape(-1, 4).astype(np.float64) / 255, batch["label"][mask]


def softmax_gradient(x, labels, kernel, bias):
  """Returns the probabilities of softmax regression, and the gradient of its summed cross entropy."""
  probs = special.softmax(x @ kernel + bias, axis=1)
  error = probs - np.eye(probs.shape[1])[labels]
  return probs, (x.T @ error, error.sum(0))


def alone(tree):
  """Returns the arrays of the first seed."""
  return jax.tree.map(lambda x: x[0], tree)


def stop(config, step, folder, number=signal.SIGTERM, message=None):
  """Trains in ``folder`` until a signal after ``step``; ``message`` is a pattern of what the run then says."""
  def interrupt(done, measured):
    if done == step:
      signal.raise_signal(number)

  with pytest.raises(training.Stopped, match=message):
    train(config, folder=folder, hooks=[interrupt])


def logged(folder, config, **options):
  """Trains with a log in ``folder``; returns the result, and the lines of the log without times."""
  folder.mkdir(exist_ok=True)
  log = training.MetricLog(folder)
  result = train(config, log=log, **options)
  log.close()
  lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
  return result, [{key: x for key, x in line.items() if not key.startswith("time/")} for line in lines]


def draw_fast(monkeypatch):
  """Lets mixup and AugMix draw their shares, with alpha = 1 alone, by samplers that compile fast, and one operation."""
  monkeypatch.setattr(jax.random, "beta", lambda key, a, b, shape=(): jax.random.uniform(key, shape))
  monkeypatch.setattr(jax.random, "loggamma",
                      lambda key, alpha, shape, dtype: jnp.log(jax.random.exponential(key, shape, dtype)))
  monkeypatch.setattr(per_image, "operate", lambda image, index, amount, **_: image ^ (16 * index).astype(jnp.uint8))


def assert_same(one, other, **tolerance):
  """Asserts that two trees are equal, to the bit unless there is a tolerance."""
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
    if tolerance:
      np.testing.assert_allclose(a, b, **tolerance)
    else:
      np.testing.assert_array_equal(a, b)
