"""The losses in float64, plain loops over examples and classes, written from the papers.

Per-example losses take a row of logits and a row of targets (one-hot unless a loss allows others); per-batch losses
take rows of logits and integer labels. ``frozen`` logits are those behind stop-gradients, so that differences of these
functions are the gradients that the papers' losses have.
"""

import math

import numpy as np


def softmax(z):
  top = max(z)
  e = [math.exp(v - top) for v in z]
  total = math.fsum(e)
  return [v / total for v in e]


def log_softmax(z):
  top = max(z)
  # The top class is left out of log1p's argument: its own digits would drown the others.
  first = z.index(top)
  tail = math.log1p(math.fsum(math.exp(v - top) for k, v in enumerate(z) if k != first))
  return [v - top - tail for v in z]


def log_one_minus(z, k):
  return float(np.logaddexp.reduce(np.delete(z, k)) - np.logaddexp.reduce(z))


def cross_entropy(z, t, label_smoothing=0.0):
  log_p, num_classes = log_softmax(z), len(z)
  return -math.fsum(((1 - label_smoothing) * t[k] + label_smoothing / num_classes) * log_p[k]
                    for k in range(num_classes))


def brier(z, t):
  p = softmax(z)
  return math.fsum((p[k] - t[k])**2 for k in range(len(z)))


def focal(z, t, gamma=2.0):
  log_p = log_softmax(z)
  return math.fsum(-t[k] * math.exp(gamma * log_one_minus(z, k)) * log_p[k] for k in range(len(z)) if t[k])


def _top(z):
  return z.index(max(z))


def soft_binned_ece(logits, labels, num_bins=15, temperature=0.01, norm=2.0, form="label"):
  """Eqs. 8-12 of Karandikar et al. 2021."""
  n = len(logits)
  if n == 0:
    return 0.0
  centers = [(j - 0.5) / num_bins for j in range(1, num_bins + 1)]
  c = [math.exp(max(log_softmax(z))) for z in logits]
  a = [float(_top(z) == y) for z, y in zip(logits, labels, strict=True)]
  u = [softmax([-(ci - xi)**2 / temperature for xi in centers]) for ci in c]
  size = [math.fsum(u[i][j] for i in range(n)) for j in range(num_bins)]
  acc, conf = ([math.fsum(u[i][j] * x[i] for i in range(n)) / size[j] if size[j] > 0 else 0.0
                for j in range(num_bins)] for x in (a, c))
  if form == "bin":
    total = math.fsum(size[j] / n * abs(acc[j] - conf[j])**norm for j in range(num_bins))
  else:
    total = math.fsum(u[i][j] * abs(acc[j] - c[i])**norm for i in range(n) for j in range(num_bins)) / n
  return total**(1 / norm)


def soft_avuc(logits, labels, threshold=0.5, temperature=1.0):
  """Eqs. 15-16 of Karandikar et al. 2021."""
  au = ic = ac = iu = 0.0
  for z, y in zip(logits, labels, strict=True):
    log_p = log_softmax(z)
    h = -math.fsum(math.exp(v) * v for v in log_p)
    # h* / (1 - h*) = h / (log K - h), the divergence summed so that it keeps its digits near the uniform distribution.
    rest = math.fsum(math.exp(v) * (v + math.log(len(z))) for v in log_p)
    if h <= 0 or len(set(z)) == 1:
      t = float(len(set(z)) == 1)
    else:
      x = math.log(h * (1 - threshold) / (rest * threshold)) / temperature
      t = 1 / (1 + math.exp(-x)) if x > -700 else 0.0
    if _top(z) == y:
      au += t * math.tanh(h)
      ac += (1 - t) * (1 - math.tanh(h))
    else:
      ic += (1 - t) * (1 - math.tanh(h))
      iu += t * math.tanh(h)
  return math.log(1 + (au + ic) / max(ac + iu, 1e-5))


def square(z, t, true_class_weight=1.0, true_class_target=1.0):
  y = t.index(max(t))
  return (true_class_weight * (z[y] - true_class_target)**2
          + math.fsum(v**2 for k, v in enumerate(z) if k != y)) / len(z)


def sample_dependent_focal(z, t, frozen=None, thresholds=(0.2,), gammas=(5.0, 3.0)):
  y = t.index(max(t))
  p = softmax(frozen or z)[y]
  return focal(z, t, gammas[sum(threshold <= p for threshold in thresholds)])


def inverse_focal(z, t, gamma=2.0):
  log_p = log_softmax(z)[t.index(max(t))]
  return -(1 + math.exp(log_p))**gamma * log_p


def dual_focal(z, t, gamma=2.0, competitor="strongest"):
  y, p, log_p = t.index(max(t)), softmax(z), log_softmax(z)
  rivals = [k for k in range(len(z)) if (k != y if competitor == "strongest" else z[k] < z[y])]
  rival = max((p[k] for k in rivals), default=0.0)
  return -(math.exp(log_one_minus(z, y)) + rival)**gamma * log_p[y]


def adaptive_focal(z, t, frozen=None, gammas=None, bin_edges=None):
  p = softmax(frozen or z)[t.index(max(t))]
  b = sum(p >= edge for edge in bin_edges[1:-1])
  return focal(z, t, float(gammas[b])) if gammas[b] >= 0 else inverse_focal(z, t, -float(gammas[b]))


def margin_label_smoothing(z, t, margin=10.0, weight=0.1):
  return cross_entropy(z, t) + weight / len(z) * math.fsum(max(0.0, max(z) - v - margin) for v in z)


def adaptive_conditional_label_smoothing(z, t, frozen=None, margin=10.0, weight=0.1, positive_weight=1.0,
                                         negative_weight=0.1):
  top = z.index(max(z))
  held = (frozen or z)[top]
  negative = math.fsum(max(0.0, held - v - margin)**2 for k, v in enumerate(z) if k != top) / (len(z) - 1)
  return cross_entropy(z, t) + weight * (positive_weight * max(0.0, z[top] - margin)**2 + negative_weight * negative)


def pairwise_constraints(z, t, discrimination_weight=1.0, exclusion_weight=1.0):
  y = t.index(max(t))
  rest = np.delete(np.asarray(z, np.float64), y)
  discrimination = np.mean(np.logaddexp(0, rest - z[y]))
  pairs = np.logaddexp(0, rest[:, None] - rest[None, :]) / 2
  np.fill_diagonal(pairs, 0)
  exclusion = pairs.sum() / max(len(rest) * (len(rest) - 1), 1)
  return cross_entropy(z, t) + discrimination_weight * discrimination + exclusion_weight * exclusion


def soft_binned_marginal_ece(logits, labels, num_bins=15, temperature=0.01, norm=2.0):
  """Appendix J of Karandikar et al. 2021, on Eq. 11."""
  p = np.array([softmax(z) for z in logits])
  total = 0.0
  for c in range(p.shape[1]):
    centers = (np.arange(num_bins) + 0.5) / num_bins
    e = -(p[:, c, None] - centers)**2 / temperature
    u = np.exp(e - e.max(1, keepdims=True))
    u /= u.sum(1, keepdims=True)
    size, happened = u.sum(0), np.asarray(labels) == c
    used = size > 0
    gap = np.abs((u * happened[:, None]).sum(0)[used] - (u * p[:, c, None]).sum(0)[used]) / size[used]
    total += np.sum(size[used] / len(p) * gap**norm)
  return (total / p.shape[1])**(1 / norm)


def avuc(logits, labels, frozen=None, threshold=0.5, stop_gradient=False):
  """Eqs. 13-14 of Karandikar et al. 2021; Appendix F with ``stop_gradient``."""
  misplaced = placed = 0.0
  for i, (z, y) in enumerate(zip(logits, labels, strict=True)):
    log_p, held = log_softmax(z), log_softmax(frozen[i] if frozen and stop_gradient else z)
    h = -math.fsum(math.exp(v) * v for v in log_p)
    accurate, certain = _top(z) == y, h < threshold
    c = math.exp(max(held))
    rest = -math.expm1(max(held))
    value = (c if accurate else rest) * (1 - math.tanh(h) if certain else math.tanh(h))
    if accurate == certain:
      placed += value
    else:
      misplaced += value
  return math.log(1 + misplaced / max(placed, 1e-5))


def mmce(logits, labels, kernel_width=0.4, weighted=False):
  """Kumar et al. 2018, both forms as printed."""
  r = np.array([math.exp(max(log_softmax(z))) for z in logits])
  rest = np.array([-math.expm1(max(log_softmax(z))) for z in logits])
  c = np.array([_top(z) == y for z, y in zip(logits, labels, strict=True)])
  k = np.exp(-np.abs(r[:, None] - r[None, :]) / kernel_width)
  if not weighted:
    v = np.where(c, rest, -r)
    return max(v @ k @ v, 0)**0.5 / len(r)
  m, n = max(c.sum(), 1), max((~c).sum(), 1)
  total = (rest[c] @ k[np.ix_(c, c)] @ rest[c] / m**2 + r[~c] @ k[np.ix_(~c, ~c)] @ r[~c] / n**2
           - 2 * rest[c] @ k[np.ix_(c, ~c)] @ r[~c] / (m * n))
  return max(total, 0)**0.5


def kde_ece(logits, labels, bandwidth=0.1, norm=1.0, form="top_label"):
  """Popordanoska et al. 2022: densities from their definitions, leave one out."""
  n, num_classes = len(logits), len(logits[0])
  if n < 2:
    return 0.0
  log_p = np.array([log_softmax(z) for z in logits])
  log_not = np.array([[math.log1p(-math.exp(v)) if v < -1 else log_one_minus(z, k) for k, v in enumerate(row)]
                      for z, row in zip(logits, log_p, strict=True)])
  tops = [_top(z) for z in logits]
  y = np.eye(num_classes)[np.asarray(labels)]

  if form == "canonical":
    problems = [(log_p, y)]
  elif form == "top_label":
    rows = np.arange(n)
    problems = [(np.stack([log_p[rows, tops], log_not[rows, tops]], 1), (np.asarray(tops) == labels)[:, None])]
  else:
    problems = [(np.stack([log_p[:, k], log_not[:, k]], 1), y[:, k:k + 1]) for k in range(num_classes)]
  total = 0.0
  for points, happened in problems:
    alpha = np.exp(points) / bandwidth + 1  # The density at x of the Dirichlet distribution of each example j.
    log_beta = np.array([math.fsum(math.lgamma(v) for v in row) - math.lgamma(math.fsum(row)) for row in alpha])
    log_k = points @ (alpha - 1).T - log_beta[None, :]
    np.fill_diagonal(log_k, -np.inf)
    k = np.exp(log_k - log_k.max(axis=1, keepdims=True))
    ratio = k @ happened / k.sum(axis=1, keepdims=True)
    total += np.sum(np.abs(ratio - np.exp(points[:, :ratio.shape[1]]))**norm)
  return total / n


def _scores(logits, confidence):
  found = []
  for z in logits:
    p = softmax(z)
    ordered = sorted(p, reverse=True)
    found.append({"msp": ordered[0], "margin": ordered[0] - ordered[1],
                  "negative_entropy": math.fsum(v * math.log(v) for v in p if v > 0)}[confidence])
  return found


def aurc(logits, labels, frozen=None, confidence="msp", loss="cross_entropy", estimator="harmonic"):
  """Section 3.3 of Zhou et al. 2025; the harmonic form as the mean of selective risks over all coverages."""
  n = len(logits)
  scores = _scores(frozen or logits, confidence)
  rank = {i: r for r, i in enumerate(sorted(range(n), key=lambda i: scores[i]), start=1)}
  losses = [globals()[loss](z, [float(k == y) for k in range(len(z))]) for z, y in zip(logits, labels, strict=True)]
  if estimator == "log":
    return math.fsum(-math.log(1 - rank[i] / (n + 1)) * losses[i] for i in range(n)) / n
  kept = sorted(range(n), key=lambda i: -rank[i])
  return math.fsum(math.fsum(losses[i] for i in kept[:m]) / m for m in range(1, n + 1)) / n


def selective_risk(logits, labels, frozen=None, low_confidence_coverage=0.9, smoothing=0.1, num_bins=20,
                   confidence="msp", loss="cross_entropy"):
  """Eqs. 13-17 of Zhou et al. 2025."""
  n, num_classes = len(logits), len(logits[0])
  low, high = {"msp": (1 / num_classes, 1.0), "margin": (0.0, 1.0),
               "negative_entropy": (-math.log(num_classes), 0.0)}[confidence]
  held, scores = _scores(frozen or logits, confidence), _scores(logits, confidence)
  edges = [low + (high - low) * k / num_bins for k in range(num_bins + 1)]
  counts = [sum(edges[k] <= g < edges[k + 1] or (k == num_bins - 1 and g >= high) for g in held)
            for k in range(num_bins)]
  counts[0] += n - sum(counts)  # Scores that rounding put below the range.
  tau = float(np.quantile(held, low_confidence_coverage))
  total = 0.0
  for i in range(n):
    g = scores[i] if held[i] < tau else tau
    tail = math.fsum(h / (1 + math.exp(min((g - (edges[k] + edges[k + 1]) / 2) / smoothing, 700)))
                     for k, h in enumerate(counts)) / n
    t = [float(k == labels[i]) for k in range(num_classes)]
    total += -math.log(tail) * globals()[loss](logits[i], t)
  return total / n
