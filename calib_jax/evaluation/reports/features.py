"""Draws what a classifier does with its features: a map of logits, angles between classes, and q over epochs.

These are Figures 2 and 8 of Ni et al. (MaC-Cal). Each function draws on Matplotlib axes and returns them.

>>> figure = Figure(figsize=(8, 3))
>>> left, right = figure.subplots(1, 2)
>>> axes = angle_matrix(left, np.eye(4))
>>> axes = keep_over_epochs(right, {"MaC-Cal": np.linspace(0.5, 0.9, 41)[None]})
>>> axes.get_ylabel()
'q, the probability that a weight is used'
"""

from collections.abc import Mapping, Sequence

import jax
import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
import numpy as np

from calib_jax.evaluation.reports.style import plain

__all__ = ["Figure", "angle_matrix", "class_angles", "keep_over_epochs", "logit_map"]


def logit_map(axes: Axes, logits: np.ndarray, labels: np.ndarray, *, class_names: Sequence[str] = (), seed: int = 0,
              num_points: int = 2000) -> Axes:
  """Draws logits in two dimensions by t-SNE, coloured by class; the paler a point, the higher its entropy.

  A point of entropy log K is nearly white, and one of entropy 0 has the full colour of its class.

  Args:
    axes: the axes to draw on.
    logits: ``[N, K]`` floats, with N at least 4.
    labels: ``[N]`` integers, the true classes.
    class_names: the names of the classes for the legend; none for no legend.
    seed: the seed of t-SNE, and of the draw of examples.
    num_points: the number of examples to draw, at most.

  Returns:
    The axes.
  """
  from sklearn.manifold import TSNE
  from threadpoolctl import threadpool_limits  # Scikit-learn requires it.

  logits, labels = np.asarray(logits, np.float64), np.asarray(labels)
  chosen = np.random.default_rng(seed).permutation(len(labels))[:num_points]
  logits, labels = logits[chosen], labels[chosen]
  log_probs = np.asarray(jax.nn.log_softmax(logits), np.float64)
  entropy = -np.sum(np.exp(log_probs) * log_probs, -1) / np.log(logits.shape[-1])
  # On a busy machine the threads of a small problem wait for each other (docs/benchmarks.md).
  with threadpool_limits(1):
    places = TSNE(perplexity=min(30, (len(labels) - 1) / 3), init="pca", random_state=seed).fit_transform(logits)
  colours = _colours(logits.shape[-1])
  intensity = 1 - 0.85 * np.clip(entropy, 0, 1)[:, None]
  axes.scatter(*places.T, s=7, c=intensity * colours[labels] + (1 - intensity), linewidths=0)
  for name, colour in zip(class_names, colours, strict=False):
    axes.scatter([], [], s=14, color=colour, label=plain(name))
  if class_names:
    axes.legend(frameon=False, fontsize=7, markerscale=1.2, handletextpad=0.2, loc="upper left",
                bbox_to_anchor=(1, 1))
  axes.set(xticks=[], yticks=[], xlabel="t-SNE, without a unit")
  return axes


def class_angles(prototypes: np.ndarray) -> np.ndarray:
  """Returns the angles between classes, in degrees.

  Args:
    prototypes: ``[K, D]`` floats, a vector a class: the weights of a last layer (its kernel, transposed), or the mean
      features of the classes.

  Returns:
    ``[K, K]`` floats in [0, 180]; nan where a vector is 0.

  >>> class_angles(np.array([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])).round()
  array([[  0.,  90., 180.],
         [ 90.,   0.,  90.],
         [180.,  90.,   0.]])
  """
  vectors = np.asarray(prototypes, np.float64)
  norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
  units = np.divide(vectors, norms, out=np.full_like(vectors, np.nan), where=norms > 0)
  # Near 0 and 180 degrees the arc cosine would lose half of the digits.
  total, difference = (np.linalg.norm(units[:, None] + sign * units[None], axis=-1) for sign in (1, -1))
  return np.degrees(2 * np.arctan2(difference, total))


def angle_matrix(axes: Axes, prototypes: np.ndarray, *, class_names: Sequence[str] = ()) -> Axes:
  """Draws the angles between classes; the lighter a cell, the nearer its angle is to the mean of all pairs.

  Args:
    axes: the axes to draw on.
    prototypes: ``[K, D]`` floats, a vector a class, as for ``class_angles``.
    class_names: the names of the classes; numbers by default.

  Returns:
    The axes, whose title says the mean and the standard deviation of the angles of pairs.
  """
  angles = class_angles(prototypes)
  pairs = angles[~np.eye(len(angles), dtype=bool)]
  shown = np.where(np.eye(len(angles), dtype=bool), np.nan, np.abs(angles - pairs.mean()))
  image = axes.imshow(shown, cmap="Blues", vmin=0, vmax=max(float(np.nanmax(shown)), 1.0))
  axes.figure.colorbar(image, ax=axes, shrink=0.8, label="degrees from the mean")
  names = list(class_names) or list(map(str, range(len(angles))))
  if len(names) <= 20:
    axes.set_xticks(range(len(names)), names, rotation=90 if class_names else 0, fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
  axes.set_title(f"{pairs.mean():.1f} ± {pairs.std():.1f} degrees", fontsize=9)
  return axes


def keep_over_epochs(axes: Axes, curves: Mapping[str, np.ndarray]) -> Axes:
  """Draws q, the probability that a step uses a weight of the head ``masked``, before the first epoch and after each.

  Args:
    axes: the axes to draw on.
    curves: ``[S, T + 1]`` floats by the name of a setting, for S seeds: the mean is a line, and the range of the seeds
      a band. A run logs q as ``train/keep``.

  Returns:
    The axes.
  """
  for (name, values), colour in zip(curves.items(), _colours(len(curves)), strict=True):
    values = np.atleast_2d(values)
    epochs = np.arange(values.shape[1])
    axes.fill_between(epochs, values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)
    axes.plot(epochs, values.mean(0), color=colour, label=plain(name))
  axes.set(xlabel="epoch", ylabel="q, the probability that a weight is used", ylim=(0, 1.02))
  axes.legend(frameon=False, fontsize=7)
  return axes


def _colours(number: int) -> np.ndarray:
  """Returns ``[number, 3]`` colours that differ."""
  if number <= 10:
    return np.array(matplotlib.colormaps["tab10"].colors)[:number]
  return matplotlib.colormaps["hsv"](np.linspace(0, 1, number, endpoint=False))[:, :3]
