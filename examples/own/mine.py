"""Five parts of a run of your own: data, a model, a head, a loss and a calibrator.

Copy this file and config.py, and change what you need; config.py names the functions by ``mine:NAME``. Arguments after
a ``*``, and the fields of the two classes, are options: a config may set them, and they keep the types of their
defaults.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import calibrators, losses
from calib_jax.training import data, models


def rings(seed: int, *, num_examples: int = 1500, noise: float = 0.25) -> data.Pool:
  """Data: points of the plane on three rings, one a class. Of seed, dir and path a source takes those it needs.

  The inputs are float32 ``[N, ...]``, of which the columns are standardised; uint8 ``[N, H, W, C]`` are images, and
  int32 ``[N, ...]`` token ids or codes, which reach the model as they are. The run splits off a part of ``train`` to
  validate and calibrate on.
  """
  rng = np.random.default_rng(seed)
  labels = (np.arange(2 * num_examples) % 3).astype(np.int32)
  angle = rng.uniform(0, 2 * np.pi, len(labels))
  radius = labels + 1 + noise * rng.normal(size=len(labels))
  x = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)
  everything = data.Examples(x, labels)
  return data.Pool(train=everything.take(np.arange(num_examples)),
                   test=everything.take(np.arange(num_examples, len(labels))), num_classes=3,
                   classes=("inner", "middle", "outer"))


class Network(models.Backbone):
  """A model without its last layer: it maps inputs to ``Features``, whose vector ``[N, D]`` is what the head reads.

  ``self.dtype`` is the type to compute in. The last batch of an epoch is filled up to its size with rows that are not
  examples, where ``mask`` is False. Losses and metrics leave them out by themselves. A layer whose output for one
  example depends on the others must do so too: ``models.BatchNorm`` takes the mask, and gives the statistics of the
  batch of all devices. A model without such layers may ignore the mask. Names that begin with ``group1_``,
  ``group2_``, … say which layers are frozen together by the schedules that freeze.
  """

  width: int = 64

  @nn.compact
  def __call__(self, x, *, train=False, mask=None):
    """Maps ``x`` ``[N, ...]`` to features."""
    x = nn.Dense(self.width, dtype=self.dtype, name="group1_dense")(x.astype(self.dtype))
    x = models.BatchNorm(self.axis_name, self.dtype, name="group1_norm")(x, train=train, mask=mask)
    x = nn.relu(x)
    x = nn.relu(nn.Dense(self.width, dtype=self.dtype, name="group2_dense")(x))
    return models.Features(x.astype(jnp.float32))


class Cosine(models.Head):
  """The last layer: logits are the cosines of the features and a vector of each class, times ``scale``."""

  scale: float = 10.0

  @nn.compact
  def __call__(self, features, *, train=False, mask=None):
    """Maps ``features.vector`` ``[N, D]`` to logits ``[N, num_classes]``."""
    x = features.vector
    classes = self.param("kernel", nn.initializers.lecun_normal(), (x.shape[-1], self.num_classes))

    def unit(vectors, axis):
      return vectors * jax.lax.rsqrt(jnp.sum(vectors**2, axis, keepdims=True) + 1e-12)

    return self.scale * unit(x, -1) @ unit(classes, 0)


def bounded(logits, labels, *, power: float = 0.7):
  """The loss of each example: generalised cross entropy, (1 - p^q) / q, which bounds the loss of wrong labels.

  A function of ``logits`` and ``labels`` returns one value for each example, and its mean over the examples is
  minimised. A loss of the whole batch also takes ``where`` and ``axis_name``, and returns one number.
  """
  return (1 - jnp.exp(-power * losses.cross_entropy(logits, labels))) / power


def centred(*, strength: float = 1.0) -> calibrators.Calibrator:
  """A calibrator: shifts the logits so that the mean probability of each class is its share of the held-out labels.

  ``fit`` returns params, a dict of arrays, and ``apply`` the log-probabilities. Both are pure functions.
  """
  def fit(logits, labels):
    share = jnp.mean(jax.nn.one_hot(labels, logits.shape[-1]), axis=0)

    def step(_, bias):
      return bias + jnp.log(share) - jnp.log(jnp.mean(jax.nn.softmax(logits + bias), axis=0))

    return {"bias": jax.lax.fori_loop(0, 50, step, jnp.zeros(logits.shape[-1]))}

  def apply(params, logits):
    return jax.nn.log_softmax(logits + strength * params["bias"])

  return calibrators.Calibrator(fit, apply)
