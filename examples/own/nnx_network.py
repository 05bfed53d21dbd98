"""A model of Flax NNX in a run: ``nnx.bridge.ToLinen`` makes it a part of a ``models.Backbone``.

Run: python main.py --config=examples/own/config.py --workdir=runs/nnx --config.model.name=nnx_network:FromNNX
"""

from flax import linen, nnx
import jax.numpy as jnp

from calib_jax.training import models


class Net(nnx.Module):
  """Layers of NNX.

  An ``nnx.BatchNorm`` would be nan on a device that has only the rows which fill up a batch: between two modules of NNX
  take ``models.BatchNorm``, as ``Network`` of mine.py does.
  """

  def __init__(self, inputs: int, width: int, *, rngs: nnx.Rngs):
    """Makes the layers."""
    self.first, self.second = nnx.Linear(inputs, width, rngs=rngs), nnx.Linear(width, width, rngs=rngs)
    self.norm = nnx.LayerNorm(width, rngs=rngs)

  def __call__(self, x):
    """Maps ``x`` ``[N, D]`` to features."""
    return nnx.relu(self.second(nnx.relu(self.norm(self.first(x)))))


class FromNNX(models.Backbone):
  """The backbone of a config, whose parameters are those of the NNX module."""

  width: int = 64

  @linen.compact
  def __call__(self, x, *, train=False, mask=None):
    """Maps ``x`` ``[N, D]`` to ``Features``."""
    net = nnx.bridge.ToLinen(Net, (x.shape[-1], self.width), name="group1_net")
    return models.Features(net(x.astype(self.dtype)).astype(jnp.float32))
