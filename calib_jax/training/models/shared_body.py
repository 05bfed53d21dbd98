"""The head ``shared_body``: an ensemble of classifiers on the features of one backbone."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from calib_jax._checks.registry import register
from calib_jax.training.models.heads import HEADS, Head, LastDense, log_mean_probs
from calib_jax.training.models.layers import Features

Array = jax.Array


@register(HEADS, "shared_body")
class SharedBody(Head):
  r"""An ensemble whose members share the backbone (TreeNets; Lee et al. 2015): it costs little more than one network.

  Each member is a dense layer of ``width`` units, a ReLU and a dense layer. In training every member has its own loss,
  of which the mean is minimised. A prediction is :math:`\log \frac1M \sum_m p_m`. Members see the same examples and
  features and differ in their initial weights alone, so that they disagree less than separate networks.

  Attributes:
    members: the number M of members.
    width: the number of hidden units of each; 0 for none, which makes all members nearly the same linear classifier.
  """

  members: int = 5
  width: int = 128

  def __post_init__(self) -> None:
    """Checks the options; a ValueError if there are no members."""
    if self.members < 1 or self.width < 0:
      raise ValueError(f"members must be at least 1 and width at least 0: got {self.members} and {self.width}.")
    super().__post_init__()

  @nn.compact
  def __call__(self, features: Features, *, train: bool = False, mask: Array | None = None) -> Array:
    """Returns log-probabilities ``[N, num_classes]``, or in training the logits of all members, on a second axis."""
    del mask

    def member(i):
      x = features.vector
      if self.width:
        x = nn.relu(nn.Dense(self.width, name=f"hidden{i}")(x))
      return LastDense(self.num_classes, name=f"logits{i}")(x)

    logits = jnp.stack([member(i) for i in range(self.members)], axis=1)
    return logits if train else log_mean_probs(logits, axis=1)

  @nn.nowrap
  def objectives(self, output: Array, labels: Array, state: Any, *, where: Array, axis_name: str | None):
    """Returns the logits of each member, with the weight 1/M."""
    del labels, state, where, axis_name
    return [(1 / self.members, output[:, i]) for i in range(self.members)]

  @nn.nowrap
  def combined(self, output: Array, state: Any) -> Array:
    """Returns the logarithms of the mean probabilities ``[n, num_classes]``."""
    del state
    return log_mean_probs(output, axis=1)
