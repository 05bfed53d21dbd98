"""Keys of groups and subgroups: a row without one is refused, and 1.0 is the key 1 in every kind of file."""

import numpy as np
import pandas as pd
import pytest

from calib_jax import evaluation
from calib_jax._system.errors import UserError
from calib_jax.cli import apply
from calib_jax.cli import evaluate as command
from tests.evaluation.predictions.data import LABELS, LOGITS, columns_of, load

COLUMNS = [*columns_of("logit", LOGITS), ("label", LABELS)]
OPTIONS = {"groups": {"groups": "key"}, "by": {"by": ["key"]}}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("suffix", ["csv", "tsv"])
@pytest.mark.parametrize("empty", ["", "  ", "nan", "NaN", "None", "<NA>"])
def test_an_empty_cell_is_no_key(empty, suffix, option, tmp_path):
  keys = [empty if row in (4, 7) else f"{row % 3}.0" for row in range(12)]
  with pytest.raises(UserError, match=r"2 of its 12 rows have no 'key'; the first is row 4, counted from 0"):
    load(tmp_path, [*COLUMNS, ("key", keys)], suffix, **OPTIONS[option])


@pytest.mark.parametrize("suffix", ["npz", "jsonl", "parquet"])
def test_missing_keys_are_refused_in_every_kind_of_file(suffix, tmp_path):
  keys = np.array(["nan" if row == 4 else f"p{row % 3}" for row in range(12)])
  columns = {"logits": LOGITS, "labels": LABELS, "key": keys} if suffix != "parquet" else [*COLUMNS, ("key", keys)]
  with pytest.raises(UserError, match="1 of its 12 rows have no 'key'; the first is row 4"):
    load(tmp_path, columns, suffix, groups="key")
  numbers = np.where(np.arange(12) == 4, np.nan, 1.0)
  columns = {**columns, "key": numbers} if suffix != "parquet" else [*COLUMNS, ("key", numbers)]
  with pytest.raises(UserError, match="have no 'key'; the first is row 4|line 9 has no 'key'|has NaN"):
    load(tmp_path, columns, suffix, by=["key"])


@pytest.mark.parametrize("suffix", ["csv", "npz", "jsonl", "parquet"])
def test_whole_numbers_are_one_key_however_they_are_written(suffix, tmp_path):
  """As integers, as floats and as texts of either, so that files of several kinds share their subgroups."""
  numbers = np.array([3, 1, 20] * 4)
  for keys in (numbers, numbers.astype(float), numbers.astype(str), numbers.astype(float).astype(str)):
    columns = {"logits": LOGITS, "labels": LABELS, "key": keys} if suffix in ("npz", "jsonl") else [
      *COLUMNS, ("key", keys)]
    part, _ = load(tmp_path, columns, suffix, by=["key"])
    names, number = part.subgroups["key"]
    assert [names[k] for k in number] == numbers.astype(str).tolist()


def test_versions_and_other_texts_stay(tmp_path):
  keys = ["1.5", "1.50", "01", "v1.0", "1e3", "a"] * 2
  part, _ = load(tmp_path, [*COLUMNS, ("key", keys)], "csv", by=["key"])
  assert sorted(part.subgroups["key"].names) == sorted(set(keys))


def test_a_fit_by_subgroup_refuses_rows_without_one_in_each_command(tmp_path, capsys):
  rng = np.random.default_rng(0)
  logits = 3 * rng.normal(size=(400, 2))
  labels = (logits[:, 1] - logits[:, 0] > rng.logistic(size=400)).astype(int)
  logits[::2] *= 4
  table = pd.DataFrame({"logit_a": logits[:, 0], "logit_b": logits[:, 1], "label": np.array(["a", "b"])[labels],
                        "task": np.arange(400) % 2})
  table.to_csv(tmp_path / "fit.csv", index=False)
  table.assign(task=[np.nan if row == 5 else row % 2 for row in range(400)]).to_csv(tmp_path / "some.csv", index=False)
  options = ["--num_resamples", "20", "--columns", "nll", "--calibrators", "temperature_scaling"]
  fit = ["--fit", str(tmp_path / "fit.csv"), "--fit_by", "task", *options]
  assert command.main([*fit, "--test", str(tmp_path / "some.csv")]) == 2
  assert "some.csv: 1 of its 400 rows have no 'task'; the first is row 5" in capsys.readouterr().err
  assert command.main([*fit, "--test", str(tmp_path / "fit.csv"), "--out", str(tmp_path / "out")]) == 0
  capsys.readouterr()
  by_task = next((tmp_path / "out" / "calibrators").glob("*by task.npz"))
  line = ["--calibrator", str(by_task), "--out", str(tmp_path / "o.csv")]
  assert apply.main([*line, "--predictions", str(tmp_path / "some.csv")]) == 2
  assert "1 of its 400 rows have no 'task'; the first is row 5" in capsys.readouterr().err
  table.assign(task=table.task.astype(float)).to_csv(tmp_path / "floats.csv", index=False)
  assert apply.main([*line, "--predictions", str(tmp_path / "floats.csv")]) == 0
  assert "was not fitted to task" not in capsys.readouterr().err
  first = pd.read_csv(tmp_path / "o.csv")
  assert apply.main([*line, "--predictions", str(tmp_path / "fit.csv")]) == 0
  np.testing.assert_array_equal(first["prob_b"], pd.read_csv(tmp_path / "o.csv")["prob_b"])
  assert evaluation.load(tmp_path / "o.csv", by=["task"]).subgroups["task"].names == ("0", "1")
