"""The experiment on calibration-set sizes: its differences, what it chose, and its committed rows."""

import numpy as np
import pandas as pd
import pytest

from experiments.calibrators import set_size as experiment
from experiments.common.rows import frame
from tests.calibrators.data import synthetic


@pytest.mark.slow
def test_nll_above_that_of_temperature_scaling_has_a_standard_error_over_seeds(tmp_path):
  logits, labels = synthetic(200, 3)
  np.savez(tmp_path / "net.npz", logits=logits, labels=labels)
  command = [str(tmp_path / "net.npz"), "--num_seeds=2", f"--workdir={tmp_path}", "--sizes=100", "--methods"]
  experiment.main([*command, "identity"])
  path = tmp_path / "calibration_set_size.csv"
  rows = frame(path)
  assert len(rows) == 4 and path.with_suffix(".png").stat().st_size > 10_000  # Of 100 examples, with TS.
  nll = rows.pivot(index="seed", columns="method", values="nll")
  expected = 1000 * (nll.identity - nll.temperature_scaling)
  above = experiment.excess(rows).loc["net", "identity", 100]
  np.testing.assert_allclose(above, [expected.mean(), expected.std() / np.sqrt(2)], rtol=1e-6)
  alone, = experiment.tables(rows[rows.seed == 0])  # One seed has no standard error.
  assert f"| identity | {expected[0]:+.1f} |" in alone and "nan" not in alone
  with pytest.raises(SystemExit, match="error: temperature_scaling has no option 'target'"):
    experiment.main([*command, "temperature_scaling:target=1"])


def test_choices_are_judged_by_the_best_candidate_of_the_test_half():
  nll = {"identity": 0.5, "temperature_scaling": 0.4, "structured_matrix_scaling": 0.3, "select": 0.4}
  rows = [{"predictions": "net", "method": method, "size": 40, "seed": seed, "nll": value + 0.01 * seed,
           "chosen": "temperature_scaling"} for seed in (0, 1) for method, value in nll.items()]
  rows[-1] |= {"chosen": "identity", "nll": 0.51}
  # Above the best: 0.1 and 0.2 for the choices, 0.1 and 0.1 for temperature scaling.
  assert ("| net | 40 | identity 1, temperature_scaling 1 | 150.0 ± 50.0 (100.0, 0.0) |"
          in experiment.choices(pd.DataFrame(rows)))
  # One seed has no standard error.
  assert "| net | 40 | temperature_scaling 1 | 100.0 (100.0, 0.0) |" in experiment.choices(pd.DataFrame(rows[:4]))
