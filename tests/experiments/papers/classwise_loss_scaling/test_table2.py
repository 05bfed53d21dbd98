"""Table 2 of Jung et al. 2023: the published values, the fits, the committed rows and the page made from them."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from experiments.common import rows
from experiments.common.commands import RESULTS
from experiments.papers.classwise_loss_scaling import fits, table2

PATH = RESULTS / "classwise_loss_scaling_table2.csv"
TABLE = rows.frame(PATH)
TABLE["difference"] = table2.difference(TABLE)
ROWS = TABLE.to_dict("records")


def test_the_published_cells_have_the_averages_that_the_paper_prints():
  averages = {"base": (6.11, 4.38, 5.88, 6.95), "LS": (4.51, 2.01, 5.14, 2.66), "FL": (9.29, 6.79, 9.69, 6.76),
              "CLS": (3.06, 2.88, 3.34, 2.38)}
  fitted = table2.PUBLISHED.drop("none", level="calibrator")["ece"].unstack("network")[list(table2.NETWORKS)]
  means = fitted.groupby(level="objective").mean().loc[list(averages)]
  np.testing.assert_allclose(means, list(averages.values()), atol=0.00751)  # Averages of rounded numbers.


def test_the_committed_rows_are_complete():
  assert rows.keys(TABLE, table2.NAMED) == set(table2.jobs())


def test_a_page_of_optima_alone_says_nothing_of_the_papers_steps():
  text = table2.page(TABLE[TABLE["fit"] == "optimum"])
  assert "-, -" not in text and "A class-balanced NLL alone" in text and "paper's steps, " not in text
  assert re.search(r"Of the 64 published cells, \d+ are within 0.15 points at the optimum\.", text)


def test_the_cells_that_are_known_to_agree_do():
  for row in ROWS:
    if (row["calibrator"], row["objective"]) in (("TS", "base"), ("TS", "CLS"), ("CTS", "CLS")):
      assert row["difference"] <= 0.15
      assert abs(row["accuracy"] - row["published_accuracy"]) < 0.0151
    if (row["calibrator"], row["objective"]) == ("none", "base"):
      assert row["difference"] == 0


def test_temperature_scaling_of_a_row_is_that_of_numpy():
  logits, labels = (x.astype(kind) for x, kind in zip(table2.split("densenet40", "validation"), (float, int),
                                                      strict=True))
  best = minimize_scalar(lambda t: -log_softmax(logits / t, axis=1)[np.arange(len(labels)), labels].mean(),
                         bounds=(1, 10), method="bounded", options={"xatol": 1e-7}).x
  logits, labels = table2.split("densenet40", "test")
  probs = np.exp(log_softmax(logits.astype(float) / best, axis=1))
  confidence, correct = probs.max(1), probs.argmax(1) == labels
  bins = np.ceil(confidence * 15).astype(int)
  ece = sum(abs(np.sum(confidence[bins == b]) - np.sum(correct[bins == b])) for b in range(1, 16)) / len(labels)
  row = next(r for r in ROWS if tuple(r.values())[:4] == ("densenet40", "TS", "base", "optimum"))
  assert abs(100 * ece - float(row["ece"])) < 0.02  # One example that changes its bin moves it by up to 0.01.
  assert abs(100 * correct.mean() - float(row["accuracy"])) < 1e-3


def test_steps_of_fixed_length_leave_a_known_part_of_the_way():
  rate, curvature, most = 0.02, 0.5, 50
  x, taken, path = fits._steps(lambda x: curvature / 2 * (x - 1) ** 2, jnp.zeros(()), jnp.array([rate, 1.0]),
                               jnp.array([most, 0]))
  # The first step is along the gradient; on a parabola, the others are the part ``rate`` of Newton's.
  np.testing.assert_allclose(1 - x, (1 - rate * curvature) * (1 - rate) ** (most - 1), rtol=1e-3)
  np.testing.assert_allclose(1 - path[0, :most], (1 - rate * curvature) * (1 - rate) ** np.arange(most), rtol=1e-3)
  assert taken.tolist() == [most, 0] and path[0, most - 1] == x


@pytest.mark.slow
def test_a_fit_of_every_objective_finds_an_optimum_of_it():
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(120, 3)).astype(np.float32) * 2
  labels = np.array([rng.choice(3, p=np.exp(z / 2) / np.exp(z / 2).sum()) for z in logits], np.int32)
  picked = np.arange(len(labels)), labels

  def objective(name, temperature):
    log_p = log_softmax(logits.astype(float) / temperature, axis=1)
    if name == "LS":
      return -(0.95 * log_p[picked] + 0.05 * log_p.mean(1)).mean()
    if name == "FL":
      return -((1 - np.exp(log_p[picked])) ** 3 * log_p[picked]).mean()
    return -np.mean([log_p[picked][labels == c].mean() for c in range(3)])

  for name in ("LS", "FL", "balanced"):
    params = fits.converged("TS", name, logits, labels)[1]
    best = minimize_scalar(lambda t, name=name: objective(name, t), bounds=(0.2, 20), method="bounded",
                           options={"xatol": 1e-7})
    assert bool(params["converged"])
    assert objective(name, float(params["temperature"])) - best.fun < 1e-6
