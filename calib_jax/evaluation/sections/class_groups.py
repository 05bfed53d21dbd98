"""Accuracy, NLL and ECE of head, medium and tail classes, with intervals, where training was long-tailed."""

from collections.abc import Callable, Mapping
import functools

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import metrics
from calib_jax.evaluation import few_errors
from calib_jax.evaluation.columns import COLUMNS
from calib_jax.evaluation.numbers import cell
from calib_jax.evaluation.predictions.fitting import Model
from calib_jax.evaluation.results import Estimate, Interval, Results, RowKey, Values
from calib_jax.evaluation.sections import SECTIONS, Section, Table
from calib_jax.metrics.class_group_scores import group_of_classes

GROUPS = ("head", "medium", "tail")
MEASURED = ("accuracy", "nll", "ece")
LONG_TAIL = 5  # Training is long-tailed if a class has at least so many times as many examples as another.

Scores = dict[str, dict[str, Interval]]  # Metrics by group.


def compute(results: Results, models: Mapping[str, Model]) -> dict[str, dict[str, Scores]]:
  """Measures the groups of each row, by set without weights, where it is known that training was long-tailed."""
  content = {}
  for name, evaluated in results.measured.items():
    parts = next(model.sets[name] for model in models.values() if name in model.sets)
    test_parts = next(iter(models.values())).sets[results.first[0]]
    train_counts = parts[0].train_counts if parts[0].train_counts is not None else test_parts[0].train_counts
    if is_long_tailed(train_counts) and evaluated.num_effective is None:
      values = {row: measured.values for row, measured in evaluated.rows.items()}
      content[name] = results.named(class_groups(values, train_counts, num_bins=results.num_bins,
                                                 num_resamples=results.num_resamples))
  return content


def table(content: Mapping[str, Mapping[str, Scores]], results: Results) -> Table:
  """Returns the scores of the groups."""
  rows = [[set_name, row, group, *(cell(scores[name], COLUMNS[name].scale) for name in MEASURED)]
          for set_name, by_row in content.items() for row, groups in by_row.items() for group, scores in groups.items()]
  return Table("Head, medium and tail classes: thirds of the classes by their number of training examples. The ECE of "
               "a group is above 0 for a calibrated model too, because groups are chosen by the label",
               ["evaluated on", "row", "classes", "accuracy %", "NLL", "ECE %"], rows)


def is_long_tailed(train_counts: np.ndarray | None) -> bool:
  """Returns whether classes are so unequal in training that groups of them are reported."""
  return train_counts is not None and len(train_counts) >= len(GROUPS) and bool(
    train_counts.max() >= LONG_TAIL * max(train_counts.min(), 1))


def class_groups(rows: Mapping[RowKey, Values], train_counts: np.ndarray, *, num_bins: int = 15,
                 num_resamples: int = 1000) -> dict[RowKey, Scores]:
  """Measures the examples whose label is a head, a medium or a tail class, as means over seeds.

  ``train_counts`` ``[K]`` are the numbers of training examples of the classes. A group without examples is left out.
  """
  scores, of_class = {}, np.asarray(group_of_classes(jnp.asarray(train_counts)))
  for row, values in rows.items():
    group = of_class[values.labels]
    options = {"key": jax.random.key(0), "num_resamples": num_resamples, "groups": values.groups}
    means = metrics.bootstrap(_means, values.correct, values.nll, group, **options)
    errors = metrics.bootstrap(_errors(num_bins), values.confidence, values.correct, group, method="bias_corrected",
                               bias=metrics.bias_model(metrics.calibration_error), **options)
    ends = [np.concatenate([mean, error[None]]) for mean, error in zip(means, errors, strict=True)]
    scores[row] = {}
    for g, name in enumerate(GROUPS):
      if (group == g).any():
        of_group = {metric: Estimate.around(ends[0][m, g], *(x[m, g] for x in ends))
                    for m, metric in enumerate(MEASURED)}
        wider = few_errors.of_row(of_group, values.take((group == g).all(axis=1)))
        scores[row][name] = {metric: Interval(x.estimate, max(x.low, 0.0), min(x.high, COLUMNS[metric].most))
                             for metric, x in wider.items()}
  return scores


def _members(group: jax.Array, where: jax.Array | None) -> jax.Array:
  """Whether each example belongs to each group, bools ``[groups, N, S]``."""
  member = group[None] == jnp.arange(len(GROUPS))[:, None, None]
  return member if where is None else member & where[None, :, None]


def _means(correct: jax.Array, nll: jax.Array, group: jax.Array, *, where: jax.Array | None = None) -> jax.Array:
  """Accuracy and NLL ``[2, groups]`` of ``[N, S]`` arrays, nan of a group without members."""
  member = _members(group, where)
  count = jnp.sum(member, axis=1)
  sums = [jnp.sum(jnp.where(member, values[None], 0), axis=1) for values in (correct.astype(jnp.float32), nll)]
  return jnp.mean(jnp.stack(sums) / count[None].astype(jnp.float32), axis=-1)


@functools.cache
def _errors(num_bins: int) -> Callable[..., jax.Array]:
  """Returns a function of ``[N, S]`` arrays to the ECE ``[groups]``. It is cached, so that it is compiled once."""
  def errors(confidence, correct, group, *, where=None):
    def of_seed(confidence, correct, member):
      return metrics.calibration_error(confidence, correct, num_bins=num_bins, where=member)

    over_seeds = jax.vmap(of_seed, in_axes=(1, 1, 1))
    return jnp.mean(jax.vmap(lambda member: over_seeds(confidence, correct, member))(_members(group, where)), axis=-1)

  return errors


SECTIONS["class_groups"] = Section(compute, table, in_json=5, on_page=4)
