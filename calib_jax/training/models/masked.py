"""The head of MaC-Cal: a bottleneck that trains with some of its weights at a time."""

from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp

from calib_jax import _checks as checks
from calib_jax._checks.registry import register
from calib_jax.training.models.heads import HEADS, Draw, Head, LastDense
from calib_jax.training.models.layers import Features

Array = jax.Array
# The options of ``Masked`` whose defaults differ between the reading that works and the printed one.
READINGS: dict[str, Any] = {
  "": {"feedback": "drop", "predict": "mean", "measured": "validation", "keep": 0.9, "discount": 1.0},
  "printed": {"feedback": "keep", "predict": "all", "measured": "steps", "keep": 0.5, "discount": 0.95},
}


@register(HEADS, "masked")
class Masked(Head):
  r"""The head of MaC-Cal (Ni et al., Section 4.2): a bottleneck that trains with some of its weights at a time.

  In each step, each entry of a weight matrix is used with probability q and is otherwise 0 (Eq. 8 and 9). After each
  epoch q follows the confidence and accuracy of the epoch, by at most a bound that shrinks (Eq. 12 and 13):

  .. math::
    q_t = \mathrm{clip}(q_{t-1} \mp \delta_t, 0, 1), \quad
    \delta_t = \mathrm{clip}(\mathrm{Conf}_t - \gamma\,\mathrm{Acc}_t, -\eta_t, \eta_t), \quad
    \eta_t = \eta_0\,(\eta_T / \eta_0)^{t/T}

  The q of the last epoch is the one that predictions use. Eq. 12 is printed with a plus, and predictions use every
  weight (``variant="printed"``). Then an overconfident network raises q until there are no masks, and nothing is
  gained. The default reads the q of Eq. 12 as the share of weights that are dropped, which Algorithm 1 and Figure 8
  call sparsity: an overconfident network uses fewer weights, and predictions take this into account.
  experiments/results/new_heads.md has the numbers of both readings. The paper prints neither ``width`` nor
  ``discount`` (γ), whose defaults are ours. The switches ``bottleneck``, ``updates``, ``adaptive`` and ``decaying``
  give the rows of its Table 5.

  Attributes:
    width: the number of hidden units.
    bottleneck: whether there is a hidden layer; without it the head is one dense layer.
    variant: "printed" for the defaults of the equations as they are printed; empty for those that work. The options
      that are None depend on it, as ``READINGS`` says.
    keep: q, or its first value.
    adaptive: whether q changes from epoch to epoch.
    feedback: "drop", the minus, by which an overconfident network uses fewer weights; or "keep", the plus.
    predict: the weights that predictions use: "mean", each one times the mean of its factor (q, or 1 with ``rescale``);
      "all", each as it is; or "stored", each as it is, where training sets those that a mask leaves out to 0.
    decaying: whether the bound shrinks from ``first_bound`` to ``last_bound``, rather than staying at the first.
    first_bound: η_0.
    last_bound: η_T.
    discount: γ, in (0, 1].
    measured: where Conf and Acc are measured: by predicting the split "train" or "validation" after the epoch, or over
      the "steps" of the epoch, with masks. The paper prints that it is on the training set, but not whether by
      predictions or over the steps. The default "validation" departs from it.
    updates: one of "used" (Eq. 11), "gradient" and "all"; only "used" goes with the prediction "stored".
    per_epoch: whether all steps of an epoch use the same weights; "stored" needs it.
    rescale: whether weights that are used are divided by q in training.
  """

  width: int = 128
  bottleneck: bool = True
  variant: str = ""
  keep: float | None = None
  adaptive: bool = True
  feedback: str | None = None
  predict: str | None = None
  decaying: bool = True
  first_bound: float = 0.1
  last_bound: float = 0.001
  discount: float | None = None
  measured: str | None = None
  updates: str = "used"
  per_epoch: bool = False
  rescale: bool = False

  def __post_init__(self) -> None:
    """Checks the options, and fills in those that are None; a ValueError if two of them exclude each other, too."""
    checks.choice("variant", self.variant, READINGS)
    for name, value in READINGS[self.variant].items():
      if getattr(self, name) is None:
        object.__setattr__(self, name, value)
    checks.choice("feedback", self.feedback, ("drop", "keep"))
    checks.choice("predict", self.predict, ("mean", "all", "stored"))
    checks.choice("measured", self.measured, ("steps", "train", "validation"))
    checks.choice("updates", self.updates, ("used", "gradient", "all"))
    checks.options(keep=(self.keep, "[0, 1]"), discount=(self.discount, "(0, 1]"))
    if self.rescale and self.keep == 0:
      raise ValueError("keep must be above 0 with rescale: got 0.")
    if not 0 < self.last_bound <= self.first_bound:
      raise ValueError("first_bound must be at least last_bound, and both must be positive: got "
                       f"{self.first_bound:g} and {self.last_bound:g}.")
    for wrong, reason in (
      (self.variant == "printed" and (self.feedback, self.predict) != ("keep", "all"),
       "variant='printed' has feedback='keep' and predict='all'; leave it out for other readings."),
      (self.adaptive and self.feedback == "drop" and self.predict == "all" and not self.rescale,
       "feedback='drop' does not go with predict='all': fewer weights in training make predictions by all weights more "
       "confident, so that q falls to 0. Use predict='mean' or 'stored'."),
      (self.adaptive and self.feedback == "keep" and (self.predict != "all" or self.rescale),
       "feedback='keep' needs predict='all' and rescale=False: it raises q where a network is overconfident, because "
       "more weights in training lower the logits of predictions by all weights, and raise those of others. Use "
       "feedback='drop'."),
      (self.predict == "stored" and (not self.per_epoch or self.rescale or self.updates != "used"),
       "predict='stored' needs per_epoch=True, rescale=False and updates='used': weights that a mask leaves out are "
       "set to 0, and masks that change in each step would leave none."),
    ):
      if wrong:
        raise ValueError(reason)
    super().__post_init__()

  @property
  def publishes(self) -> bool:
    """Whether predictions need q, which is then a batch statistic of the head."""
    return self.predict == "mean" and not self.rescale

  @nn.compact
  def __call__(self, features: Features, *, train: bool = False, mask: Array | None = None) -> Array:
    """Maps the features of N images to float32 logits ``[N, num_classes]``, as ``Linear`` does."""
    del mask
    x, mean = features.vector, 1.0
    if self.publishes:
      keep = self.variable("batch_stats", "keep", lambda: jnp.float32(self.keep))
      mean = 1.0 if train else keep.value  # A layer of the weights q·W maps x as W maps q·x.
    if self.bottleneck:
      x = nn.relu(nn.Dense(self.width, name="hidden")(mean * x))
    return LastDense(self.num_classes, name="logits")(mean * x)

  @nn.nowrap
  def draw(self, params: Any, key: Array, step: Array, state: Any) -> Draw:
    """Returns a factor of 0 or 1 (1/q with ``rescale``) for each weight; biases have none."""
    key = jax.random.fold_in(key, state.epoch if self.per_epoch else step)
    factors = {}
    for i, (path, weight) in enumerate(sorted(flax.traverse_util.flatten_dict(params).items())):
      if path[-1] == "kernel":
        factor = jax.random.bernoulli(jax.random.fold_in(key, i), state.keep, weight.shape).astype(weight.dtype)
        # At q = 0 no factor is 1, and 0 is divided by anything but 0.
        factors[path] = factor / jnp.where(state.keep > 0, state.keep, 1) if self.rescale else factor
    return Draw(factors, "stored" if self.predict == "stored" else self.updates)
