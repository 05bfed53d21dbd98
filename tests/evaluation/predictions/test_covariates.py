"""Covariates of a file: how their names are read, and that evaluate and apply give each row its own temperature."""

import json

import numpy as np
import pytest

from calib_jax import calibrators, evaluation
from calib_jax._system.errors import FileError, UserError
from calib_jax.cli import apply, evaluate
from calib_jax.evaluation.predictions import covariates, fitting
from calib_jax.evaluation.predictions.predictions import Predictions

VALUES = {"options": np.array([2.0, 4, 8]), "language": np.array(["de", "en", "de"])}


def test_names_say_how_columns_become_numbers():
  of = ("options", "log(options)", "language=de", "language=fr")
  np.testing.assert_allclose(covariates.matrix(of, VALUES), np.stack(
    [VALUES["options"], np.log(VALUES["options"]), [1, 0, 1], [0, 0, 0]], axis=1), rtol=1e-6)
  every = covariates.expanded(calibrators.covariate_temperature_scaling("log(options)+language"), VALUES)
  assert covariates.names_of(every) == ("log(options)", "language=de", "language=en")
  assert covariates.names_of(calibrators.probability_floor(every)) == covariates.names_of(every)
  assert covariates.expanded(every, VALUES) == every and not covariates.names_of(calibrators.platt())
  assert covariates.wanted({"a": every, "b": calibrators.platt()}) == ["options", "language"]


@pytest.mark.parametrize(("columns", "values", "message"), [
  ("length", VALUES, "needs the column length of each example"), ("length", None, "needs the column length"),
  ("log(options)", VALUES | {"options": np.zeros(3)}, r"log\(options\) is not finite: the column options must"),
  ("language", {"language": np.char.add("x", np.arange(99).astype(str))}, "99 different texts, and at most 20"),
  ("language", {"language": np.array(["C++", "C"])}, "holds 'C..', and . separates the names"),
  ("log(language)", VALUES, "the column language must hold numbers")])
def test_covariates_that_a_file_lacks_are_one_sentence(columns, values, message):
  with pytest.raises(UserError, match=message):
    calibrator = covariates.expanded(calibrators.covariate_temperature_scaling(columns), values)
    covariates.matrix(covariates.names_of(calibrator), values)


def test_texts_stay_texts_and_missing_values_are_named_with_their_row():
  texts = {"code": np.array(["007", "010"])}  # As a part of a file whose other rows have words.
  np.testing.assert_array_equal(covariates.matrix(["code=007"], covariates.read(texts, ["code"], 2)), [[1], [0]])
  for values in (np.array([2.0, np.nan]), np.array(["2", " "]), np.array([2, None], object)):
    with pytest.raises(FileError, match="the column 'length', .* is missing or infinite in row 1, counted from 0"):
      covariates.read({"length": values}, ["length"], 2)


def _rows(n, seed):
  """Texts of several lengths, whose logits are the larger the longer they are."""
  rng = np.random.default_rng(seed)
  length, z = rng.integers(10, 1000, n), 1.5 * rng.normal(size=(n, 3))
  labels = (z + rng.gumbel(size=z.shape)).argmax(1)
  return [{"logits": row, "label": label, "length": x, "language": ("de", "en")[x % 2]} for row, label, x in zip(
    (z * np.sqrt(length / 50)[:, None]).tolist(), labels.tolist(), length.tolist(), strict=True)]


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_the_commands_give_each_row_its_own_temperature(suffix, tmp_path, no_figures, capsys):
  paths = []
  for seed, name in enumerate(("fit", "test")):
    paths.append(tmp_path / f"{name}.{suffix}")
    rows = _rows(600, seed)
    paths[-1].write_text("\n".join(map(json.dumps, rows)) if suffix == "jsonl" else "\n".join(
      ["logit_0,logit_1,logit_2,label,length,language", *(",".join(map(str, (
        *row["logits"], row["label"], row["length"], row["language"]))) for row in rows)]))
  name = "covariate_temperature_scaling:columns=log(length)+language"
  command = [f"--fit={paths[0]}", f"--test={paths[1]}", "--calibrators", "temperature_scaling", name]
  assert evaluate.main([*command, "--num_resamples=20", "--risk=0.2", f"--out={tmp_path}", "--save_probs"]) == 0
  assert capsys.readouterr().out.strip().startswith(f"Use {name}: ")
  fitted = calibrators.load(tmp_path / "calibrator.npz")
  assert covariates.names_of(fitted.calibrator) == ("log(length)", "language=de", "language=en")
  slope = np.asarray(fitted.params["slopes"] / fitted.params["scales"])
  assert abs(slope[0] - 0.5) < 0.2 and float(fitted.params["penalty"]) > 0
  assert apply.main([f"--calibrator={tmp_path / 'calibrator.npz'}", f"--predictions={paths[1]}",
                     f"--out={tmp_path / 'new.npz'}"]) == 0
  saved = next(path for path in (tmp_path / "probs").iterdir() if "covariate" in path.name)
  with np.load(tmp_path / "new.npz") as new, np.load(saved) as probs:
    np.testing.assert_allclose(new["probs"], probs["probs"], atol=1e-6)
  (tmp_path / "bare.jsonl").write_text('{"logits": [1.0, 2.0, 3.0]}\n')
  assert apply.main([f"--calibrator={tmp_path / 'calibrator.npz'}", f"--predictions={tmp_path / 'bare.jsonl'}",
                     f"--out={tmp_path / 'x.npz'}"]) == 2
  assert "bare.jsonl must have a column 'length' with a number or a text in each row" in capsys.readouterr().err


def test_rows_are_calibrated_out_of_fold_by_their_covariates_and_one_temperature_is_said():
  rows = _rows(400, 0)
  part = Predictions(np.array([row["logits"] for row in rows], np.float32), np.array([row["label"] for row in rows]),
                     covariates={"length": np.array([row["length"] for row in rows], float)})
  labelled, said = {"mine": calibrators.covariate_temperature_scaling("log(length)")}, []
  fold = fitting.subgroup_fits.folds(part, 3)
  crossed = fitting.out_of_fold(part, labelled, 3)["mine"][0].log_probs()
  for k in range(3):
    x = np.log(part.covariates["length"])[:, None]
    params = labelled["mine"].fit(part.logits[fold != k], part.labels[fold != k], covariates=x[fold != k])
    np.testing.assert_allclose(crossed[fold == k], labelled["mine"].apply(params, part.logits, x)[fold == k], atol=1e-4)
  noise = part._replace(covariates={"length": np.random.default_rng(3).permutation(part.covariates["length"])})
  fitted = evaluation.fit([noise], labelled, said.append)
  assert said == ["mine is one temperature: its covariates are not shown to lower the log loss in folds."]
  assert float(fitted["mine"][1][0]["penalty"]) == 0
