"""The losses in float64 numpy, written from the papers.

Per-example losses take logits and targets ``[N, K]`` (one-hot unless a loss allows others) and return ``[N]``;
per-batch losses take logits ``[N, K]`` and labels, integers ``[N]`` or targets ``[N, K]``, and return a number.
``frozen`` logits stand where the papers' losses stop gradients, so that differences of these functions are the
gradients that the losses have.
"""

import functools

import numpy as np
from scipy import special

softmax = functools.partial(special.softmax, axis=-1)


def log_softmax(z):
  below = z - z.max(-1, keepdims=True)
  # The top class is left out of log1p's argument: its own 1 would round the sum of the others away.
  others = below.copy()
  np.put_along_axis(others, z.argmax(-1)[..., None], -np.inf, -1)
  return below - np.log1p(np.exp(others).sum(-1, keepdims=True))


def log_one_minus(z):
  """log(1 - p) of every class."""
  log_p = log_softmax(z)
  is_top = np.arange(z.shape[-1]) == z.argmax(-1)[..., None]
  log_others = special.logsumexp(np.where(is_top, -np.inf, log_p), axis=-1, keepdims=True)
  return np.where(is_top, log_others, np.log1p(-np.exp(np.where(is_top, -1, log_p))))


def _at(values, index):
  return np.take_along_axis(values, np.asarray(index)[:, None], -1)[:, 0]


def _onehot(labels, num_classes):
  return labels if labels.ndim == 2 else np.eye(num_classes)[labels]


def cross_entropy(z, t, label_smoothing=0.0):
  return -np.sum(((1 - label_smoothing) * t + label_smoothing / z.shape[1]) * log_softmax(z), axis=1)


def brier(z, t):
  return np.sum((softmax(z) - t)**2, axis=1)


def brier_weighted_cross_entropy(z, t, frozen=None, gamma=1.0, norm=2.0):
  """BSCE-GRA of Lin et al. 2025."""
  fixed = z if frozen is None else frozen
  distance = np.where(t == 1, np.exp(log_one_minus(fixed)), softmax(fixed))
  return -np.sum(distance**norm, axis=1)**(gamma / norm) * np.sum(t * log_softmax(z), axis=1)


def _stopped_if(z, frozen, stop_gradient):
  """The logits that a factor without gradient is computed from."""
  return frozen if stop_gradient and frozen is not None else z


def focal(z, t, frozen=None, gamma=2.0, stop_gradient=False):
  """``gamma``: a number, or one for each row, ``[N, 1]``."""
  return np.sum(-t * np.exp(gamma * log_one_minus(_stopped_if(z, frozen, stop_gradient))) * log_softmax(z), axis=1)


def square(z, t, true_class_weight=1.0, true_class_target=1.0):
  return np.where(t == 1, true_class_weight * (z - true_class_target)**2, z**2).mean(1)


def sample_dependent_focal(z, t, frozen=None, thresholds=(0.2,), gammas=(5.0, 3.0)):
  p = np.sum(softmax(z if frozen is None else frozen) * t, axis=1)
  return focal(z, t, gamma=np.array(gammas)[np.sum(p[:, None] >= np.array(thresholds), axis=1)][:, None])


def inverse_focal(z, t, frozen=None, gamma=2.0, stop_gradient=False):
  fixed, log_p = (np.sum(t * log_softmax(x), axis=1) for x in (_stopped_if(z, frozen, stop_gradient), z))
  return -(1 + np.exp(fixed))**gamma * log_p


def dual_focal(z, t, frozen=None, gamma=2.0, competitor="strongest", stop_gradient=False):
  y, fixed, rest = t.argmax(1), _stopped_if(z, frozen, stop_gradient), _stopped_if(z, frozen, stop_gradient is True)
  rivals = t == 0 if competitor == "strongest" else fixed < _at(fixed, y)[:, None]
  rival = np.max(np.where(rivals, softmax(fixed), 0), axis=1)
  return -(np.exp(_at(log_one_minus(rest), y)) + rival)**gamma * _at(log_softmax(z), y)


def adaptive_focal(z, t, frozen=None, gammas=None, bin_edges=None):
  p = np.sum(softmax(z if frozen is None else frozen) * t, axis=1)
  gamma = np.asarray(gammas, np.float64)[np.sum(p[:, None] >= bin_edges[1:-1], axis=1)]
  return np.where(gamma >= 0, focal(z, t, gamma=np.maximum(gamma, 0)[:, None]),
                  inverse_focal(z, t, gamma=np.maximum(-gamma, 0)))


def properized_focal(z, t, gamma=2.0):
  """Propositions 2 and 4 of Komisarenko & Kull 2024; the inverse of the map by bisection.

  The map takes q to w(q) / Σ w(q), with w increasing: log w(q_k) = log p_k + c, and c is such that the q sum to 1.
  """
  log_p = log_softmax(z)

  def log_w(s):  # Of log-odds s of q.
    log_q, log_not = -np.logaddexp(0, -s), -np.logaddexp(0, s)
    rest = np.exp(log_not)
    ratio = np.where(rest < 1e-9, 1 - rest / 2, -np.exp(log_q) * log_q / np.maximum(rest, 1e-300))
    return log_q - gamma * log_not - np.log1p(gamma * ratio)

  def root(increasing, low, high):
    for _ in range(54):
      middle = (low + high) / 2
      above = increasing(middle) > 0
      low, high = np.where(above, low, middle), np.where(above, middle, high)
    return (low + high) / 2

  width = 50 + 2 * np.max(np.abs(log_p), axis=1, keepdims=True)

  def odds(c):
    return root(lambda s: log_w(s) - log_p - c, np.broadcast_to(-2 * width, z.shape), np.broadcast_to(width, z.shape))

  def excess(c):
    # Above 0 where the q sum to more than 1: log of the others' sum against log(1 - q) of the top class.
    s, is_top = odds(c), np.arange(z.shape[1]) == z.argmax(1)[:, None]
    others = special.logsumexp(np.where(is_top, -np.inf, special.log_expit(s)), axis=1, keepdims=True)
    return others - special.log_expit(-np.sum(s * is_top, axis=1, keepdims=True))

  c = root(excess, -width, (1 + gamma) * width)
  s = np.sum(t * odds(c), axis=1)
  return np.exp(-gamma * np.logaddexp(0, s)) * np.logaddexp(0, -s)


def margin_label_smoothing(z, t, margin=10.0, weight=0.1):
  return cross_entropy(z, t) + weight * np.maximum(z.max(1, keepdims=True) - z - margin, 0).mean(1)


def penalty_of_constraints(h, multipliers, curvature):
  """The augmented Lagrangian max_s (s h - (s - λ)²/(2ρ)) over s of at least 0, whose maximiser is its slope."""
  slope = np.maximum(multipliers + curvature * h, 0)
  return slope * h - (slope - multipliers)**2 / (2 * curvature), slope


def class_adaptive_label_smoothing(z, t, multipliers=1e-6, curvature=1.0, margin=10.0):
  """Liu et al. 2023."""
  h = (z.max(1, keepdims=True) - z - margin) / margin
  return cross_entropy(z, t) + penalty_of_constraints(h, np.asarray(multipliers, float), curvature)[0].mean(1)


def adaptive_conditional_label_smoothing(z, t, frozen=None, margin=10.0, weight=0.1, positive_weight=1.0,
                                         negative_weight=0.1):
  top = z.argmax(1)
  fixed = _at(z if frozen is None else frozen, top)[:, None]
  excess = np.where(np.arange(z.shape[1]) == top[:, None], 0, np.maximum(fixed - z - margin, 0)**2)
  return cross_entropy(z, t) + weight * (positive_weight * np.maximum(_at(z, top) - margin, 0)**2
                                         + negative_weight * excess.sum(1) / (z.shape[1] - 1))


def pairwise_constraints(z, t, discrimination_weight=1.0, exclusion_weight=1.0):
  rest = z[t == 0].reshape(len(z), -1)
  discrimination = np.mean(np.logaddexp(0, rest - z[t == 1][:, None]), axis=1)
  # Both orders of a pair, each weighing a half; the diagonal of a class with itself is taken out.
  pairs = np.array([np.sum(np.logaddexp(0, row[:, None] - row[None, :])) for row in rest]) / 2
  n = rest.shape[1]
  exclusion = (pairs - n * np.log(2) / 2) / max(n * (n - 1), 1)
  return cross_entropy(z, t) + discrimination_weight * discrimination + exclusion_weight * exclusion


def _top_label(z, labels):
  """Confidence, 1 - confidence, and the target of the top class, the first where several tie."""
  top = z.argmax(1)
  return np.exp(_at(log_softmax(z), top)), np.exp(_at(log_one_minus(z), top)), _at(_onehot(labels, z.shape[1]), top)


def _memberships(c, num_bins, temperature, low=0.0):
  centers = low + (1 - low) * (np.arange(1, num_bins + 1) - 0.5) / num_bins
  return softmax(-(c[:, None] - centers)**2 / temperature)


def soft_binned_ece(z, labels, num_bins=15, temperature=0.01, norm=2.0, form="label", root=True, low=0.0):
  """Eqs. 8-12 of Karandikar et al. 2021; without the root, and from ``low``, as the released code has it."""
  c, _, a = _top_label(z, labels)
  u = _memberships(c, num_bins, temperature, low)
  size = u.sum(0)
  divisor = np.where(size > 0, size, 1)
  accuracy, mean = u.T @ a / divisor, u.T @ c / divisor
  if form == "bin":
    total = np.sum(size * np.abs(accuracy - mean)**norm)
  else:
    total = np.sum(u * np.abs(accuracy[None, :] - c[:, None])**norm)
  return (total / len(z))**(1 / norm if root else 1)


def soft_binned_marginal_ece(z, labels, num_bins=15, temperature=0.01, norm=2.0):
  """Appendix J of Karandikar et al. 2021, on Eq. 11."""
  p, t = softmax(z), _onehot(labels, z.shape[1])
  total = 0.0
  for k in range(z.shape[1]):
    u = _memberships(p[:, k], num_bins, temperature)
    size = u.sum(0)
    gap = np.abs(u.T @ t[:, k] - u.T @ p[:, k]) / np.where(size > 0, size, 1)
    total += np.sum(size * gap**norm)
  return (total / len(z) / z.shape[1])**(1 / norm)


def _entropy(z):
  log_p = log_softmax(z)
  return -np.sum(np.exp(log_p) * log_p, axis=1)


def avuc(z, labels, frozen=None, threshold=0.5, stop_gradient=False):
  """Eqs. 13-14 of Karandikar et al. 2021; Appendix F with ``stop_gradient``."""
  c, rest, accurate = _top_label(frozen if stop_gradient and frozen is not None else z, labels)
  h = _entropy(z)
  certain = h < threshold
  n_au, n_iu = (np.sum((x * np.tanh(h))[~certain]) for x in (accurate * c, (1 - accurate) * rest))
  n_ac, n_ic = (np.sum((x * (1 - np.tanh(h)))[certain]) for x in (accurate * c, (1 - accurate) * rest))
  return np.log(1 + (n_au + n_ic) / max(n_ac + n_iu, 1e-5))


def soft_avuc(z, labels, threshold=0.5, temperature=1.0):
  """Eqs. 15-16 of Karandikar et al. 2021."""
  log_p, h, num_classes = log_softmax(z), _entropy(z), z.shape[1]
  # h* / (1 - h*) = h / (log K - h), the divergence summed so that it keeps its digits near the uniform distribution.
  rest = np.sum(np.exp(log_p) * (log_p + np.log(num_classes)), axis=1)
  uniform, sure = np.ptp(z, axis=1) == 0, h <= 0
  inside = ~uniform & ~sure
  odds = np.where(inside, h * (1 - threshold), 1) / np.where(inside, rest * threshold, 1)
  t = np.where(inside, special.expit(np.log(odds) / temperature), uniform)
  accurate = _top_label(z, labels)[2]
  high, low = t * np.tanh(h), (1 - t) * (1 - np.tanh(h))
  return np.log(1 + (accurate @ high + (1 - accurate) @ low) / max(accurate @ low + (1 - accurate) @ high, 1e-5))


def mdca(z, labels):
  """Hebbalaguppe et al. 2022."""
  return np.mean(np.abs(softmax(z).mean(0) - _onehot(labels, z.shape[1]).mean(0)))


def generative_cross_entropy(z, labels):
  """Zhan et al. 2026: each probability of a label divided by the mean over the batch, in logarithms."""
  log_p = log_softmax(z)
  log_mean = special.logsumexp(log_p, axis=0) - np.log(len(z))
  return np.mean(np.sum(_onehot(labels, z.shape[1]) * (log_mean - log_p), axis=1))


def mmce(z, labels, kernel_width=0.4, weighted=False, variant="paper"):
  """Kumar et al. 2018, both forms as printed, and those of the code of Mukhoti et al. 2020."""
  r, rest, c = _top_label(z, labels)
  k = np.exp(-np.abs(r[:, None] - r[None, :]) / kernel_width)
  right, wrong = c * rest, (1 - c) * r
  if variant == "released":
    m, n = c.sum(), (1 - c).sum()
    v = (right - wrong) / len(r) if not weighted else right / (m or 1)**2 - wrong / (n or 1)**2
    total = max(v @ k @ v, 0)
    return ((total + 1e-10)**0.5 if m * n > 0 else 0.0) if weighted else total
  if not weighted:
    return max((right - wrong) @ k @ (right - wrong), 0)**0.5 / len(r)
  m, n = c.sum() or 1, (1 - c).sum() or 1  # Sums that are 0 belong to groups that are empty.
  total = right @ k @ right / m**2 + wrong @ k @ wrong / n**2 - 2 * right @ k @ wrong / (m * n)
  return max(total, 0)**0.5


def kde_ece(z, labels, bandwidth=0.1, norm=1.0, form="top_label"):
  """Popordanoska et al. 2022: densities from their definitions, leave one out."""
  n, num_classes = z.shape
  if n < 2:
    return 0.0
  log_p, log_not, y = log_softmax(z), log_one_minus(z), _onehot(labels, num_classes)
  if form == "canonical":
    problems = [(log_p, y)]
  elif form == "top_label":
    top = z.argmax(1)
    problems = [(np.stack([_at(log_p, top), _at(log_not, top)], 1), _at(y, top)[:, None])]
  else:
    problems = [(np.stack([log_p[:, k], log_not[:, k]], 1), y[:, k:k + 1]) for k in range(num_classes)]
  total = 0.0
  for points, happened in problems:
    alpha = np.exp(points) / bandwidth + 1  # The density at x of the Dirichlet distribution of each example j.
    log_beta = special.gammaln(alpha).sum(1) - special.gammaln(alpha.sum(1))
    log_k = points @ (alpha - 1).T - log_beta[None, :]
    np.fill_diagonal(log_k, -np.inf)
    k = np.exp(log_k - log_k.max(axis=1, keepdims=True))
    ratio = k @ happened / k.sum(axis=1, keepdims=True)
    total += np.sum(np.abs(ratio - np.exp(points[:, :ratio.shape[1]]))**norm)
  return total / n


def _score(z, confidence):
  p = np.sort(softmax(z), axis=1)
  return {"msp": lambda: p[:, -1], "margin": lambda: p[:, -1] - p[:, -2],
          "negative_entropy": lambda: -_entropy(z)}[confidence]()


def aurc(z, labels, frozen=None, confidence="msp", loss="cross_entropy", estimator="harmonic"):
  """Section 3.3 of Zhou et al. 2025; the harmonic form as the mean of selective risks over all coverages."""
  n = len(z)
  order = np.argsort(_score(z if frozen is None else frozen, confidence), kind="stable")
  each = globals()[loss](z, _onehot(labels, z.shape[1]))[order]
  if estimator == "log":
    return np.sum(-np.log(1 - np.arange(1, n + 1) / (n + 1)) * each) / n
  return np.mean(np.cumsum(each[::-1]) / np.arange(1, n + 1))


def _unit_score(z, confidence, variant):
  """The score on [0, 1]; in the released code that of softmax(p), of which the negative entropy is clamped to 1."""
  if variant == "released":
    return np.ones(len(z)) if confidence == "negative_entropy" else _score(softmax(z), confidence)
  score = _score(z, confidence)
  return 1 + score / np.log(z.shape[1]) if confidence == "negative_entropy" else score


def score_counts(scores, num_bins):
  """The number of scores in each equal bin of [0, 1]: [lo, hi), the last closed."""
  edges = np.arange(num_bins + 1) / num_bins
  return np.bincount(np.clip(np.searchsorted(edges, scores, side="right") - 1, 0, num_bins - 1), minlength=num_bins)


def selective_risk(z, labels, frozen=None, variant="released", low_confidence_coverage=0.9, smoothing=0.1, num_bins=64,
                   confidence="msp", loss="cross_entropy", counts=None):
  """Eqs. 13-17 of Zhou et al. 2025; the clamp, and the numbers of scores seen before, as the released code has them."""
  n = len(z)
  fixed = _unit_score(z if frozen is None else frozen, confidence, variant)
  scores = fixed if variant == "stopped" else _unit_score(z, confidence, variant)
  seen = score_counts(fixed, num_bins) + (0 if counts is None else np.asarray(counts, np.float64))
  tau = np.quantile(fixed, low_confidence_coverage)
  g = np.where(fixed < tau, scores, np.quantile(scores, low_confidence_coverage) if variant == "released" else tau)
  centers = (np.arange(num_bins) + 0.5) / num_bins
  log_tail = special.logsumexp(special.log_expit((centers[None, :] - g[:, None]) / smoothing), b=seen / seen.sum(),
                               axis=1)
  if variant != "printed":
    log_tail = np.log(np.clip(np.exp(log_tail), 1 / (n + 1), n / (n + 1)))
  return np.sum(-log_tail * globals()[loss](z, _onehot(labels, z.shape[1]))) / n


def away_from_jumps(name, z, options):
  """The rows ``[N]`` at which the loss does not jump: rounding in float32 does not carry them across an edge."""
  if name == "avuc":
    return np.abs(_entropy(z) - options["threshold"]) > 1e-5
  if name == "selective_risk":
    num_bins = options.get("num_bins", 64)
    place = _unit_score(z, options.get("confidence", "msp"), options.get("variant", "released")) * num_bins
    # No edge lies at either end of the range.
    return (np.abs(place - np.round(place)) > 1e-4) | (np.round(place) <= 0) | (np.round(place) >= num_bins)
  if name == "aurc":
    score = _score(z, options.get("confidence", "msp"))
    order = np.argsort(score, kind="stable")
    close = np.zeros(len(z), bool)
    close[order[1:]] = np.diff(score[order]) < 1e-6
    return ~close
  return np.ones(len(z), bool)
