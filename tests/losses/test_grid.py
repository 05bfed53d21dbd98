"""Every formula against its float64 reference for 2 classes, and with default options for 1000 (other tests: 3)."""

import numpy as np
import pytest

from tests.losses import cases


@pytest.mark.parametrize(("name", "options", "k"), cases.grid(cases.PER_EXAMPLE))
def test_per_example_losses_equal_the_reference(name, options, k):
  logits, labels = cases.data(cases.ROWS, k, seed=3)
  rows = np.array(cases.SIZES) - 1  # Examples do not know of each other: a few rows stand for every size.
  cases.check_examples(name, options, cases.example_step(name, options, len(rows)), logits[rows], labels[rows])


@pytest.mark.parametrize(("name", "options", "k"), cases.grid(cases.PER_BATCH))
def test_per_batch_losses_equal_the_reference(name, options, k):
  # The kernel estimate costs the square of the number of rows times that of classes.
  sizes = cases.SIZES[:-1] if name == "kde_ece" and k == 1000 else cases.SIZES
  step = cases.batch_step(name, options, sizes[-1])
  for n in sizes:
    cases.check_batch(name, options, step, *cases.data(n, k, seed=n))
