"""How calibration errors are biased: what stands beside each of them and is passed to its intervals."""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from calib_jax import _checks as checks

Array = jax.Array
Function = TypeVar("Function", bound=Callable)  # Type checkers see the signature that a decorated metric has.


@dataclasses.dataclass(frozen=True)
class BiasModel:
  """What the bias-corrected interval of a calibration error assumes of its bias; ``bootstrap`` has the formulas.

  Attributes:
    rate: the power of 1/N with which the bias of the squared error of a calibrated model falls, in (0, 1]: 1 for errors
      in bins, 2/3 for the smooth error.
    sure_part: the part of the measured bias that is there whatever the true error is, in [0, 1]. The upper end of an
      interval subtracts it; with 0 it is the highest.
    margin: a function of ``(confidence, correct, members, level)`` to how far above the error the upper end is at
      least; None without such a rule. ``members`` are the examples of each group, as ``draws.members`` returns them.
    with_bias: of a debiased error, the same error with its bias, whose interval it has; None of any other error. The
      true values are equal. The debiased square is clipped at 0, and what it subtracts is too much where bins share
      tied confidences: intervals from halves and fifths of it cover 85 to 97% without ties and 10 to 93% with them, and
      the intervals of the error with its bias 93 to 99% of all.
    compares: whether the intervals of differences hold the true difference, as far as was simulated.
  """

  rate: float = 1.0
  sure_part: float = 0.0
  margin: Callable[..., Array] | None = None
  with_bias: Callable[..., Array] | None = None
  compares: bool = True

  def __post_init__(self) -> None:
    """Checks the numbers."""
    checks.options(rate=(self.rate, "(0, 1]"), sure_part=(self.sure_part, "[0, 1]"))


# Its upper end subtracts no bias, as for an error about which nothing is known.
CONSERVATIVE = BiasModel()
# A squared norm-2 error has the bias of ``bootstrap``'s model whatever the gaps are. A bin whose gap is
# larger than its noise adds bias to no other error, and more to a half and a fifth of the sample: up to half of what
# is measured was not there in simulations.
NORM_2, BINNED = BiasModel(sure_part=1.0), BiasModel(sure_part=0.5)

MODELS: dict[Callable, Callable[..., BiasModel]] = {}  # Of the calibration errors of this package, by their options.
PAIRS: set[Callable] = set()  # Which of them take ``(confidence, correct)``.
MEANS: set[Callable] = {jnp.mean}  # Metrics without such a bias, whose intervals are percentiles.


def biased_as(model: Callable[..., BiasModel], *, of_pairs: bool = False) -> Callable[[Function], Function]:
  """Returns a decorator of a calibration error, whose ``BiasModel`` is ``model(**options)``.

  One ``of_pairs`` takes ``(confidence, correct)``, which are checked before they are resampled.
  """
  def add(error: Function) -> Function:
    MODELS[error] = model
    if of_pairs:
      PAIRS.add(error)
    return error

  return add


def unbiased(metric: Function) -> Function:
  """A decorator of a metric whose intervals are percentiles."""
  MEANS.add(metric)
  return metric


def of_norm(norm: float | str = 1, **_: Any) -> BiasModel:
  """The ``BiasModel`` of an error in bins."""
  return NORM_2 if norm == 2 else BINNED


def bias_model(error: Callable[..., Any], **options: Any) -> BiasModel:
  """The ``BiasModel`` of a calibration error of this package with some of its options.

  Args:
    error: the function, such as ``calibration_error``.
    **options: those that it is called with.

  Returns:
    What to pass as ``bias`` to ``bootstrap``, ``assess`` and ``paired_difference``.

  Raises:
    ValueError: if the function is no calibration error of this package.

  >>> from calib_jax.metrics import calibration_error
  >>> bias_model(calibration_error).sure_part, bias_model(calibration_error, norm=2).sure_part
  (0.5, 1.0)
  """
  if error not in MODELS:
    raise ValueError(f"error must be a calibration error of calib_jax.metrics: got {error}.")
  return _bias_model(error, **options)


@functools.cache
def _bias_model(error: Callable, **options) -> BiasModel:
  """It is cached, so that an error with its bias is compiled once."""
  model = MODELS[error](**options)
  if not options.get("debias"):
    return model
  return dataclasses.replace(model, with_bias=functools.partial(error, **{**options, "debias": False}))


def resolved(bias: BiasModel | str, metric: Callable[..., Any]) -> BiasModel:
  """The ``bias`` of ``bootstrap`` as a ``BiasModel``."""
  if isinstance(bias, BiasModel):
    return bias
  if bias != "auto":
    raise ValueError(f'bias must be "auto" or a BiasModel: got {bias!r}.')
  return bias_model(metric) if metric in MODELS else CONSERVATIVE
