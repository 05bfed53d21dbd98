"""The interval of a mean whose variance has parts of few degrees of freedom each."""

from collections.abc import Sequence

from scipy.special import stdtrit


def half_width(terms: Sequence[tuple[float, int]], level: float) -> float:
  """√(Σ t² s²) of ``terms``, each a variance s² of the mean and its degrees of freedom.

  With Student's quantile t for each term's degrees of freedom, the interval misses the mean at most as often as
  ``level`` says (Banerjee 1960), however far in the tail. Satterthwaite's degrees of freedom make it too short where
  a few values happen to agree.

  >>> round(half_width([(1.0, 2)], 0.05), 3)
  4.303
  """
  return sum(variance * float(stdtrit(freedom, level / 2)) ** 2 for variance, freedom in terms) ** 0.5
