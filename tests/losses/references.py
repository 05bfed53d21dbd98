"""The losses in float64, plain loops over examples and classes, written from the papers."""

import math


def softmax(z):
  top = max(z)
  e = [math.exp(v - top) for v in z]
  return [v / math.fsum(e) for v in e]


def log_softmax(z):
  top = max(z)
  # The top class is left out of log1p's argument: its own digits would drown the others.
  first = z.index(top)
  tail = math.log1p(math.fsum(math.exp(v - top) for k, v in enumerate(z) if k != first))
  return [v - top - tail for v in z]


def log_one_minus(z, k):
  others = [v for j, v in enumerate(z) if j != k]
  top, total = max(others), max(z)
  return (top + math.log(math.fsum(math.exp(v - top) for v in others))
          - total - math.log(math.fsum(math.exp(v - total) for v in z)))


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
