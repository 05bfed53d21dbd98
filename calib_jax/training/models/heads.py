"""A head maps a backbone's features to logits. A new head is one class with ``@register(HEADS)``."""

from collections.abc import Callable, Sequence
import functools
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from calib_jax._checks.registry import register
from calib_jax._numerics.example_keys import example_keys
from calib_jax.training.models.layers import Features, random_key

Array = jax.Array
# Heads by name.
HEADS: dict[str, Callable[..., nn.Module]] = {}


# The layer whose products are logits. A TPU multiplies float32 numbers in one pass of bfloat16, two to three digits,
# unless it is told otherwise, and for this layer, which is small, all digits cost nothing.
LastDense = functools.partial(nn.Dense, precision="highest")

# How a step updates weights, if the head draws which of them it uses:
# - "used": only the used ones; the others keep their value and momentum and do not decay.
# - "gradient": all, by their true gradients; these are 0 for unused weights, which momentum and decay still move.
# - "all": all, by the gradients of their products with the factors, as if each factor were 1.
# - "stored": all, by their true gradients; the weights that the step leaves behind are multiplied by the factors too.
UPDATES = ("used", "gradient", "all", "stored")


class Draw(NamedTuple):
  """What a head draws for a training step.

  Attributes:
    factors: arrays of the shapes of weights, by their paths below ``head``. The step multiplies the weights by them.
    updates: one of ``UPDATES``.
  """

  factors: dict[tuple[str, ...], Array]
  updates: str = "used"


class Head(nn.Module):
  """The base class of heads. The other fields of a head are its options in a config (``config.head``).

  ``reads_map`` says whether the head uses the map before pooling beside the vector of features.
  """

  reads_map: ClassVar[bool] = False

  num_classes: int

  @nn.nowrap
  def draw(self, params: Any, key: Array, step: Array, state: Any) -> Draw:
    """Returns the factors of this head's weights in a training step; predictions have none.

    Args:
      params: the head's parameters.
      key: the key of the run.
      step: the number of steps before this one.
      state: the head's loss state, or None if it has none.

    Returns:
      The draw, which has no factors for most heads.
    """
    del params, key, step, state
    return Draw({})

  @nn.nowrap
  def objectives(self, output: Array, labels: Array, state: Any, *, where: Array,
                 axis_name: str | None) -> Sequence[tuple[Array | float, Array]]:
    """Returns the logits that a training step computes its loss from, each with the weight of its loss.

    Args:
      output: what the head returned for a device's share of a batch in training.
      labels: ``[n]`` integers, or ``[n, num_classes]`` if they are mixed.
      state: the head's loss state, or None if it has none.
      where: ``[n]`` bools, False for examples that do not count.
      axis_name: the mapped axis over which the batch is spread, or None.

    Returns:
      Pairs of a weight and logits ``[n, num_classes]``; for most heads the output, with weight 1.
    """
    del labels, state, where, axis_name
    return ((1.0, output),)

  @nn.nowrap
  def combined(self, output: Array, state: Any) -> Array:
    """Returns the logits ``[n, num_classes]`` that a training step measures, from the ``output`` of the head."""
    del state
    return output


@register(HEADS, "linear")
class Linear(Head):
  """A head of one dense layer, with ``kernel`` ``[D, num_classes]`` and ``bias``."""

  @nn.compact
  def __call__(self, features: Features, *, train: bool = False, mask: Array | None = None) -> Array:
    """Maps the features of N images to float32 logits ``[N, num_classes]``.

    ``train`` is true in all training steps, also where a stage freezes batch statistics. ``mask`` ``[N]`` is
    false for padding. In training steps a head may draw random numbers from the key ``self.make_rng("dropout")``, and
    may add losses per example by ``self.sow("losses", name, values)``.
    """
    del train, mask
    dense = LastDense(self.num_classes)
    nn.share_scope(self, dense)  # Stores the layer's parameters as the head's own.
    return dense(features.vector)


@register(HEADS, "two_stage")
class TwoStage(Head):
  """The head of two-stage training (TST; Jordahn & Olmos 2024): D to 3 ``width``, ReLU, ``width``, ``num_classes``."""

  width: int = 128

  @nn.compact
  def __call__(self, features: Features, *, train: bool = False, mask: Array | None = None) -> Array:
    """Maps the features of N images to float32 logits ``[N, num_classes]``, as ``Linear`` does."""
    del train, mask
    x = nn.relu(nn.Dense(3 * self.width, name="hidden")(features.vector))
    return LastDense(self.num_classes, name="logits")(nn.Dense(self.width, name="narrow")(x))


def log_mean_probs(logits: Array, axis: int = 0) -> Array:
  """Returns the logarithms ``[N, K]`` of the mean probabilities of samples, whose logits have an ``axis`` of them."""
  return jax.nn.logsumexp(jax.nn.log_softmax(logits), axis) - jnp.log(jnp.float32(logits.shape[axis]))


class MappedHead(Head):
  """The base class of heads that know the mapped axis over which a batch is spread."""

  axis_name: str | None = None


class SampledHead(MappedHead):
  """The base class of heads that draw random numbers for each example."""

  def noise(self, number: int, size: int) -> Array:
    """Returns standard normal numbers ``[number, size]`` of a training step.

    They depend on the positions of the examples in the global batch, and not on the number of devices.
    """
    keys = example_keys(self.make_rng("dropout"), number, self.axis_name)
    return jax.vmap(lambda key: jax.random.normal(key, (size,)))(keys)


@register(HEADS, "variational")
class Variational(SampledHead):
  r"""The head of variational two-stage training (V-TST; Jordahn & Olmos 2024), a dense layer on a random code z.

  Two branches, each from D to 3 ``width`` units, a ReLU, and ``width``, give the mean m and the log-variance v of z.
  The log-variance is a logsigmoid and so at most 0, as in the released code. The loss of an example has the term

  .. math::
    \mathrm{KL}(q(z|x)\,\|\,N(0, I)) / \dim z \quad = \mathrm{mean}(e^v + m^2 - 1 - v) / 2

  In training z is one sample. A prediction is the log of the mean softmax over ``num_samples`` samples, whose noise is
  drawn from a key that the seed gives the model when it is initialised, and is the same for all images. With
  ``evaluation.samples`` = S it is the mean over S passes, each of one sample, in place of ``num_samples``.

  Attributes:
    width: the dimension of z.
    num_samples: the number of samples of a prediction.
    weight: the factor of the KL term.
  """

  width: int = 128
  num_samples: int = 10
  weight: float = 1.0

  def __post_init__(self) -> None:
    """Checks the options; a ValueError if there are no samples."""
    if self.num_samples < 1:
      raise ValueError(f"num_samples must be at least 1: got {self.num_samples}.")
    super().__post_init__()

  @nn.compact
  def __call__(self, features: Features, *, train: bool = False, mask: Array | None = None) -> Array:
    """Returns float32 logits ``[N, num_classes]`` of one sample in training, and else log-probabilities."""
    del mask

    def branch(name):
      x = nn.relu(nn.Dense(3 * self.width, name=f"{name}_hidden")(features.vector))
      return nn.Dense(self.width, name=name)(x)

    mean, log_variance = branch("mean"), nn.log_sigmoid(branch("log_variance"))
    key = self.variable("batch_stats", "key", lambda: jax.random.key_data(self.make_rng("params")))
    logits = LastDense(self.num_classes, name="logits")
    deviation = jnp.exp(log_variance / 2)
    if train:
      kl = jnp.mean(jnp.exp(log_variance) + mean**2 - 1 - log_variance, -1) / 2
      self.sow("losses", "kl", self.weight * kl, init_fn=lambda: None, reduce_fn=lambda old, new: new)
      return logits(mean + deviation * self.noise(*mean.shape))
    drawn = random_key(self, train)
    number = self.num_samples if drawn is None else 1
    noise = jax.random.normal(jax.random.wrap_key_data(key.value) if drawn is None else drawn, (number, 1, self.width))
    return log_mean_probs(logits(mean[None] + deviation[None] * noise))
