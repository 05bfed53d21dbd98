"""Calibration errors in float64, plain loops over bins, written from their definitions."""

import itertools
import math

import numpy as np
from scipy import optimize, special


def scores(probs, labels):
  """Of each example whether it is right, its NLL, Brier score and entropy, by the names of their means."""
  p = probs.astype(np.float64)
  return {"accuracy": p.argmax(1) == labels, "nll": -np.log(np.maximum(p[np.arange(len(p)), labels], 2.0**-126)),
          "brier_score": ((p - np.eye(p.shape[1])[labels])**2).sum(1), "mean_entropy": -special.xlogy(p, p).sum(1)}


def groups(confidence, num_bins):
  """The members of each bin of equal mass, as arrays of indices."""
  return np.array_split(np.argsort(confidence, kind="stable"), num_bins)


def shared(confidence, correct, weights=None):
  """For each example, the (weighted) share of correct ones among all with its confidence."""
  _, place = np.unique(confidence, return_inverse=True)
  weights = np.ones(len(place)) if weights is None else weights
  return (np.bincount(place, weights * correct) / np.bincount(place, weights))[place]


def rows(confidence, correct, weights=None, ties="share"):
  """In ascending order of confidence: the confidences, correctness (that of ties may be ``shared``), and weights."""
  order = np.argsort(confidence, kind="stable")
  weights = np.ones(len(order)) if weights is None else weights.astype(np.float64)
  correct = shared(confidence, correct, weights) if ties == "share" else correct.astype(np.float64)
  return confidence[order], correct[order], weights[order]


def parts(confidence, weights, num_bins, binning="equal_width", closed="right"):
  """For each bin, how much of the weight of each row, in ascending order, is in it; edges as precise as the data."""
  ends = np.cumsum(weights)
  if binning == "equal_mass":
    edges = ends[-1] * np.arange(num_bins + 1) / num_bins
    if (weights == np.floor(weights)).all():  # Groups of whole examples.
      edges = np.cumsum([0, *(len(group) for group in np.array_split(np.arange(int(ends[-1])), num_bins))])
    for low, high in itertools.pairwise(edges):
      yield np.maximum(np.minimum(ends, high) - np.maximum(ends - weights, low), 0)
  else:
    edges = (np.arange(1, num_bins) / num_bins).astype(confidence.dtype)
    index = np.searchsorted(edges, confidence, side="left" if closed == "right" else "right")
    for j in range(num_bins):
      yield weights * (index == j)


def calibration_error(confidence, correct, num_bins=15, binning="equal_width", norm=1, form="bin", debias=False,
                      closed="right", ties="share", sign="both", weights=None):
  sorted_confidence, a, weights = rows(confidence, correct, weights, ties if binning == "equal_mass" else "order")
  c, gaps, masses = sorted_confidence.astype(np.float64), [], []
  signed = {"both": np.abs, "over": lambda gap: np.maximum(-gap, 0), "under": lambda gap: np.maximum(gap, 0)}[sign]
  for part in parts(sorted_confidence, weights, num_bins, binning, closed):
    mass, inside = part.sum(), part > 1e-4  # Less of a row is rounding.
    if mass == 0 or (debias and mass < 2):
      continue
    accuracy = part @ a / mass
    if form == "label":
      gaps.extend(signed(accuracy - c[inside]))
      masses.extend(part[inside])
    else:
      gap = signed(accuracy - part @ c / mass)
      gaps.append(gap**2 - accuracy * (1 - accuracy) / (mass - 1) if debias else gap)
      masses.append(mass)
  if norm == "max":
    return max(gaps, default=0.0)
  total = np.sum(masses * np.array(gaps) ** (1 if debias else norm)) / weights.sum()
  return max(total, 0.0) ** (1 / norm)


def classwise_calibration_error(probs, labels, num_bins=15, binning="equal_width", norm=1, ties="share", weights=None):
  errors = [calibration_error(probs[:, c], labels == c, num_bins, binning, norm, ties=ties, weights=weights)
            for c in range(probs.shape[1])]
  return max(errors) if norm == "max" else np.mean(np.array(errors)**norm)**(1 / norm)


def sweep_calibration_error(confidence, correct, binning="equal_mass", norm=2, ties="share", weights=None):
  number, (c, a, w) = 1, rows(confidence, correct, weights, ties)
  while number < len(confidence):
    accuracies = [part @ a / part.sum() for part in parts(c, w, number + 1, binning) if part.sum() > 0]
    if (np.diff(accuracies) < -1e-6).any():  # Different accuracies of so few examples differ by more.
      break
    number += 1
  return calibration_error(confidence, correct, number, binning, norm, ties=ties, weights=weights)


def ks_calibration_error(confidence, correct, ties="share", weights=None):
  c, a, w = rows(confidence, correct, weights, ties)
  return np.abs(np.cumsum(w * (a - c))).max() / w.sum()


def smooth_calibration_error(confidence, correct, weights=1.0):
  """The kernel with its images beyond both ends, summed at the points of a fine grid, and σ where the error is σ."""
  c, place = np.unique(confidence.astype(np.float64), return_inverse=True)
  t, weights = (np.arange(4000) + 0.5) / 4000, np.broadcast_to(weights, len(confidence)).astype(np.float64)
  residuals = np.bincount(place, weights * (correct - confidence.astype(np.float64)))

  def error(sigma):
    reach, total = 1 + int(4 * sigma), np.zeros_like(t)  # Images further away have a density below exp(-32).
    for ci, residual in zip(c, residuals, strict=True):
      for image in range(-reach, reach + 1):
        for at in (2 * image + ci, 2 * image - ci):
          total += residual * np.exp(-(t - at)**2 / (2 * sigma**2)) / (sigma * np.sqrt(2 * np.pi))
    return np.abs(total).mean() / weights.sum()

  least = 1e-3  # Four cells of the grid: what is smaller it cannot tell from 0.
  return 0.0 if error(least) <= least else optimize.brentq(lambda sigma: error(sigma) - sigma, least, 1.001, xtol=1e-10)


def kde_calibration_error(probs, labels, bandwidth=0.1, norm=1.0, form="top_label"):
  """Popordanoska et al. 2022, with the Beta and Dirichlet densities from their definitions."""
  p, n, k = np.clip(probs.astype(np.float64), 1e-6, 1 - 1e-6), len(probs), probs.shape[1]
  y, tops = np.eye(k)[labels], probs.argmax(1)
  if form == "canonical":
    problems = [(p, y)]
  else:
    columns = [p[np.arange(n), tops]] if form == "top_label" else list(p.T)
    events = [tops == labels] if form == "top_label" else list(y.T)
    problems = [(np.stack([c, 1 - c], 1), e[:, None].astype(float)) for c, e in zip(columns, events, strict=True)]
  logs = []
  for points, _ in problems:
    alpha = points / bandwidth + 1
    log_beta = np.array([sum(math.lgamma(v) for v in row) - math.lgamma(1 / bandwidth + len(row)) for row in alpha])
    logs.append((alpha - 1) @ np.log(points).T - log_beta[:, None])  # [j, i]: the density of j at i.
  total = likelihood = 0.0
  for (points, events), log_k in zip(problems, logs, strict=True):
    for i in range(n):
      others = np.arange(n) != i
      top = log_k[others, i].max()
      weights = np.exp(log_k[others, i] - top)
      likelihood += top + math.log(weights.sum() / (n - 1))
      ratio = weights @ events[others] / weights.sum()
      total += np.sum(np.abs(ratio - points[i][:len(ratio)])**norm)
  return total / n, likelihood


def risk_coverage(confidence, risk):
  """Mean risk of the k surest, tied scores standing for their mean."""
  ordered = shared(confidence, risk.astype(np.float64))[np.argsort(-confidence.astype(np.float64), kind="stable")]
  return np.cumsum(ordered) / np.arange(1, len(ordered) + 1)


def auroc(scores, positives, weights=None):
  if positives.all() or not positives.any():
    return math.nan
  w = np.ones(len(scores)) if weights is None else weights.astype(np.float64)
  above, below = scores[positives][:, None], scores[~positives][None]
  return np.average((above > below) + 0.5 * (above == below), weights=w[positives][:, None] * w[~positives])


def fpr_at_tpr(scores, positives, tpr=0.95, weights=None):
  if positives.all() or not positives.any():
    return math.nan
  w = np.ones(len(scores)) if weights is None else weights.astype(np.float64)
  rates = [[np.average(scores[kind] >= t, weights=w[kind]) for kind in (positives, ~positives)]
           for t in np.unique(scores)[::-1]]
  return next(false for true, false in rates if true >= tpr)
