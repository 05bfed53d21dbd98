"""Calibration errors in float64, plain loops over bins, written from their definitions."""

import collections
import fractions
import math

import numpy as np
from scipy import optimize


def groups(confidence, num_bins, binning="equal_width", closed="right"):
  """The members of each bin, as arrays of indices; edges compared in the precision of the data."""
  if binning == "equal_mass":
    return np.array_split(np.argsort(confidence, kind="stable"), num_bins)
  members = []
  for j in range(num_bins):
    low, high = (confidence.dtype.type(e / num_bins) for e in (j, j + 1))
    if closed == "right":
      member = (confidence > low) & (confidence <= high) | ((j == 0) & (confidence == 0))
    else:
      member = (confidence >= low) & (confidence < high) | ((j == num_bins - 1) & (confidence == 1))
    members.append(np.flatnonzero(member))
  return members


def shared(confidence, correct):
  """For each example, the share of correct ones among all with its confidence: fractions."""
  count, right = collections.Counter(confidence.tolist()), collections.Counter(confidence[correct > 0].tolist())
  share = {c: fractions.Fraction(right[c], n) for c, n in count.items()}
  return np.array([share[c] for c in confidence.tolist()], object)


def calibration_error(confidence, correct, num_bins=15, binning="equal_width", norm=1, form="bin", debias=False,
                      closed="right", ties="share", sign="both"):
  n, total, worst = len(confidence), 0.0, 0.0
  correct = shared(confidence, correct) if ties == "share" and binning == "equal_mass" else correct
  signed = {"both": np.abs, "over": lambda gap: np.maximum(-gap, 0), "under": lambda gap: np.maximum(gap, 0)}[sign]
  for index in groups(confidence, num_bins, binning, closed):
    if len(index) == 0:
      continue
    c, a = confidence[index].astype(np.float64), correct[index].astype(np.float64)
    gaps = signed(a.mean() - c if form == "label" else np.full(len(c), a.mean() - c.mean()))
    worst = max(worst, gaps.max())
    if debias:
      if len(c) > 1:
        total += len(c) / n * (gaps[0]**2 - a.mean() * (1 - a.mean()) / (len(c) - 1))
    elif norm != "max":
      total += np.sum(gaps**norm) / n
  return worst if norm == "max" else max(total, 0.0)**(1 / norm)


def _before(confidence):
  """Rows in ascending order of confidence, ties in their own order."""
  return np.argsort(confidence, kind="stable")


def classwise_calibration_error(probs, labels, num_bins=15, binning="equal_width", norm=1, ties="share"):
  errors = [calibration_error(probs[:, c], labels == c, num_bins, binning, norm, ties=ties)
            for c in range(probs.shape[1])]
  return max(errors) if norm == "max" else np.mean(np.array(errors)**norm)**(1 / norm)


def sweep_calibration_error(confidence, correct, binning="equal_mass", norm=2, ties="share"):
  number, counted = 1, shared(confidence, correct) if ties == "share" else correct.astype(int).astype(object)
  while number < len(confidence):
    members = [g for g in groups(confidence, number + 1, binning) if len(g)]
    accuracies = [fractions.Fraction(counted[g].sum()) / len(g) for g in members]
    if accuracies != sorted(accuracies):
      break
    number += 1
  return calibration_error(confidence, correct, number, binning, norm, ties=ties)


def ks_calibration_error(confidence, correct, ties="share"):
  order, counted = _before(confidence), shared(confidence, correct) if ties == "share" else correct
  gaps = np.cumsum(counted[order].astype(np.float64) - confidence[order].astype(np.float64))
  return np.abs(gaps).max() / len(gaps)


def smooth_calibration_error(confidence, correct):
  """The kernel with its images beyond both ends, summed at the points of a fine grid, and σ where the error is σ."""
  c, a = confidence.astype(np.float64), correct.astype(np.float64)
  t = (np.arange(4000) + 0.5) / 4000

  def error(sigma):
    total = np.zeros_like(t)
    for ci, ai in zip(c, a, strict=True):
      for image in range(-6, 7):
        for at in (2 * image + ci, 2 * image - ci):
          total += (ai - ci) * np.exp(-(t - at)**2 / (2 * sigma**2)) / (sigma * np.sqrt(2 * np.pi))
    return np.abs(total).mean() / len(c)

  least = 1e-3  # Four cells of the grid: what is smaller it cannot tell from 0.
  return 0.0 if error(least) <= least else optimize.brentq(lambda sigma: error(sigma) - sigma, least, 2.0, xtol=1e-10)


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
  confidence, risk = confidence.astype(np.float64), risk.astype(np.float64)
  shared = np.array([risk[confidence == c].mean() for c in confidence])
  ordered = shared[np.argsort(-confidence, kind="stable")]
  return np.array([ordered[:k].mean() for k in range(1, len(ordered) + 1)])


def auroc(scores, positives):
  above, below = scores[positives].astype(np.float64), scores[~positives].astype(np.float64)
  if not len(above) or not len(below):
    return math.nan
  return np.mean((above[:, None] > below[None, :]) + 0.5 * (above[:, None] == below[None, :]))


def fpr_at_tpr(scores, positives, tpr=0.95):
  if positives.all() or not positives.any():
    return math.nan
  for threshold in sorted(set(scores.tolist()), reverse=True):
    if np.mean(scores[positives] >= threshold) >= tpr:
      return np.mean(scores[~positives] >= threshold)
  raise AssertionError("the lowest threshold catches all")
