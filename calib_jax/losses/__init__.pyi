# Written by make new-check
# ruff: noqa: I001, RUF022
from collections.abc import Callable, Sequence
from typing import Literal, Protocol, overload
from jax import Array
from jax.typing import ArrayLike
from calib_jax import confidence as scores
from calib_jax.losses.selective import Loss
from calib_jax.losses.adaptive_focal import (AdaptiveFocalState, adaptive_focal, init_adaptive_focal,
  update_adaptive_focal)
from calib_jax.losses.catalogue import (PER_BATCH, PER_EXAMPLE, options)
from calib_jax.losses.class_adaptive import (ClassAdaptiveState, class_adaptive_label_smoothing, init_class_adaptive,
  update_class_adaptive)
from calib_jax.losses.class_means import (generative_cross_entropy, mdca)
from calib_jax.losses.consistency import (jensen_shannon_consistency)
from calib_jax.losses.focal import (dual_focal, focal, inverse_focal, properized_focal, sample_dependent_focal)
from calib_jax.losses.kernels import (kde_ece, mmce)
from calib_jax.losses.margins import (adaptive_conditional_label_smoothing, margin_label_smoothing,
  pairwise_constraints, square)
from calib_jax.losses.proper import (brier, brier_weighted_cross_entropy, cross_entropy)
from calib_jax.losses.selective import (SelectiveRiskState, aurc, init_selective_risk, selective_risk,
  update_selective_risk)
from calib_jax.losses.soft_binned import (soft_binned_ece, soft_binned_marginal_ece)
from calib_jax.losses.tasks import (keras, two_class)
from calib_jax.losses.uncertainty import (avuc, soft_avuc)
__all__ = ['AdaptiveFocalState', 'ClassAdaptiveState', 'PER_BATCH', 'PER_EXAMPLE', 'SelectiveRiskState',
  'adaptive_conditional_label_smoothing', 'adaptive_focal', 'aurc', 'avuc', 'brier', 'brier_weighted_cross_entropy',
  'class_adaptive_label_smoothing', 'composite', 'cross_entropy', 'dual_focal', 'focal', 'generative_cross_entropy',
  'get', 'init_adaptive_focal', 'init_class_adaptive', 'init_selective_risk', 'inverse_focal',
  'jensen_shannon_consistency', 'kde_ece', 'keras', 'margin_label_smoothing', 'mdca', 'mmce', 'options',
  'pairwise_constraints', 'properized_focal', 'sample_dependent_focal', 'selective_risk', 'soft_avuc',
  'soft_binned_ece', 'soft_binned_marginal_ece', 'square', 'two_class', 'update_adaptive_focal',
  'update_class_adaptive', 'update_selective_risk']
_PerExampleName = Literal['focal', 'sample_dependent_focal', 'inverse_focal', 'dual_focal', 'properized_focal',
  'adaptive_focal', 'cross_entropy', 'brier_weighted_cross_entropy', 'brier', 'class_adaptive_label_smoothing',
  'square', 'margin_label_smoothing', 'adaptive_conditional_label_smoothing', 'pairwise_constraints']
_PerBatchName = Literal['aurc', 'selective_risk', 'mdca', 'generative_cross_entropy', 'mmce', 'kde_ece',
  'soft_binned_ece', 'soft_binned_marginal_ece', 'avuc', 'soft_avuc']

class _PerExample(Protocol):
  def __call__(self, logits: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = ...) -> Array: ...

class _PerBatch(Protocol):
  def __call__(self, logits: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = ...,
               weights: ArrayLike | None = ..., axis_name: str | None = ...) -> Array: ...

class _TrainingLoss(Protocol):
  def __call__(self, logits: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = ...,
               weights: ArrayLike | None = ..., axis_name: str | None = ...) -> tuple[Array, dict[str, Array]]: ...

def composite(primary: _PerExampleName | _PerBatchName | Callable[..., Array],
              secondary: _PerBatchName | Callable[..., Array] | None = ..., weight: float | Array = ..., *,
              reduction: Literal["mean", "sum"] = ...) -> _TrainingLoss: ...

@overload
def get(name: Literal['focal'], *, gamma: float | Array = ..., stop_gradient: bool = ...,
  where: ArrayLike | None = ...) -> _PerExample: ...
@overload
def get(name: Literal['sample_dependent_focal'], *, thresholds: Sequence[float] | Array = ...,
  gammas: Sequence[float] | Array = ..., where: ArrayLike | None = ...) -> _PerExample: ...
@overload
def get(name: Literal['inverse_focal'], *, gamma: float | Array = ..., stop_gradient: bool = ...,
  where: ArrayLike | None = ...) -> _PerExample: ...
@overload
def get(name: Literal['dual_focal'], *, gamma: float | Array = ..., competitor: str = ...,
  stop_gradient: bool | str = ..., where: ArrayLike | None = ...) -> _PerExample: ...
@overload
def get(name: Literal['properized_focal'], *, gamma: float | Array = ...,
  where: ArrayLike | None = ...) -> _PerExample: ...
@overload
def get(name: Literal['adaptive_focal'], *, gammas: ArrayLike, bin_edges: ArrayLike,
  where: ArrayLike | None = ...) -> _PerExample: ...
@overload
def get(name: Literal['cross_entropy'], *, label_smoothing: float | Array = ...,
  where: ArrayLike | None = ...) -> _PerExample: ...
@overload
def get(name: Literal['brier_weighted_cross_entropy'], *, gamma: float | Array = ..., norm: float | Array = ...,
  where: ArrayLike | None = ...) -> _PerExample: ...
@overload
def get(name: Literal['brier'], *, where: ArrayLike | None = ...) -> _PerExample: ...
@overload
def get(name: Literal['class_adaptive_label_smoothing'], *, multipliers: ArrayLike = ..., curvature: ArrayLike = ...,
  last_constraints: ArrayLike = ..., margin: float | Array = ..., where: ArrayLike | None = ...) -> _PerExample: ...
@overload
def get(name: Literal['square'], *, true_class_weight: float | Array = ..., true_class_target: float | Array = ...,
  where: ArrayLike | None = ...) -> _PerExample: ...
@overload
def get(name: Literal['margin_label_smoothing'], *, margin: float | Array = ..., weight: float | Array = ...,
  where: ArrayLike | None = ...) -> _PerExample: ...
@overload
def get(name: Literal['adaptive_conditional_label_smoothing'], *, margin: float | Array = ...,
  weight: float | Array = ..., positive_weight: float | Array = ..., negative_weight: float | Array = ...,
  where: ArrayLike | None = ...) -> _PerExample: ...
@overload
def get(name: Literal['pairwise_constraints'], *, discrimination_weight: float | Array = ...,
  exclusion_weight: float | Array = ..., where: ArrayLike | None = ...) -> _PerExample: ...
@overload
def get(name: Literal['aurc'], *, confidence: scores.Score = ..., loss: Loss = ..., estimator: str = ...,
  where: ArrayLike | None = ..., weights: ArrayLike | None = ..., axis_name: str | None = ...) -> _PerBatch: ...
@overload
def get(name: Literal['selective_risk'], *, variant: str = ..., low_confidence_coverage: float | Array = ...,
  smoothing: float | Array = ..., num_bins: int = ..., confidence: scores.Score = ..., score_range: tuple[float,
  float] | None = ..., loss: Loss = ..., counts: ArrayLike | None = ..., where: ArrayLike | None = ...,
  weights: ArrayLike | None = ..., axis_name: str | None = ...) -> _PerBatch: ...
@overload
def get(name: Literal['mdca'], *, where: ArrayLike | None = ..., weights: ArrayLike | None = ...,
  axis_name: str | None = ...) -> _PerBatch: ...
@overload
def get(name: Literal['generative_cross_entropy'], *, where: ArrayLike | None = ..., weights: ArrayLike | None = ...,
  axis_name: str | None = ...) -> _PerBatch: ...
@overload
def get(name: Literal['mmce'], *, kernel_width: float | Array = ..., weighted: bool = ..., variant: str = ...,
  where: ArrayLike | None = ..., weights: ArrayLike | None = ..., axis_name: str | None = ...) -> _PerBatch: ...
@overload
def get(name: Literal['kde_ece'], *, bandwidth: float | Array = ..., norm: float | Array = ..., form: str = ...,
  where: ArrayLike | None = ..., weights: ArrayLike | None = ..., axis_name: str | None = ...) -> _PerBatch: ...
@overload
def get(name: Literal['soft_binned_ece'], *, num_bins: int = ..., temperature: float | Array = ...,
  norm: float | Array = ..., form: str = ..., root: bool = ..., low: float | Array = ..., where: ArrayLike | None = ...,
  weights: ArrayLike | None = ..., axis_name: str | None = ...) -> _PerBatch: ...
@overload
def get(name: Literal['soft_binned_marginal_ece'], *, num_bins: int = ..., temperature: float | Array = ...,
  norm: float | Array = ..., where: ArrayLike | None = ..., weights: ArrayLike | None = ...,
  axis_name: str | None = ...) -> _PerBatch: ...
@overload
def get(name: Literal['avuc'], *, threshold: float | Array, stop_gradient: bool = ..., where: ArrayLike | None = ...,
  weights: ArrayLike | None = ..., axis_name: str | None = ...) -> _PerBatch: ...
@overload
def get(name: Literal['soft_avuc'], *, threshold: float | Array = ..., temperature: float | Array = ...,
  where: ArrayLike | None = ..., weights: ArrayLike | None = ..., axis_name: str | None = ...) -> _PerBatch: ...
