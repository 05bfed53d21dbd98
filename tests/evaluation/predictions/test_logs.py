"""Logs of evaluations and answers of decision models are read as they are, by the keys that they have."""

import json
import math
import zipfile

import numpy as np
import pytest

from calib_jax import calibrators, evaluation
from calib_jax._system.errors import UserError
from calib_jax.calibrators import param_tables
from calib_jax.cli import apply
from calib_jax.cli import evaluate as command
from calib_jax.evaluation.predictions import log_forms, subgroup_fits

RNG = np.random.default_rng(0)
OPTIONS = {"team": ["billing", "tech", "sales"], "mood": ["bad", "good"]}
TICKETS = [{"team": RNG.dirichlet(np.ones(3)).tolist(), "mood": RNG.dirichlet(np.ones(2)).tolist(),
            "urgent": float(RNG.uniform())} for _ in range(40)]
RIGHT = [{"team": OPTIONS["team"][RNG.integers(3)], "mood": OPTIONS["mood"][RNG.integers(2)],
          "urgent": bool(RNG.integers(2))} for _ in range(40)]


def _systemone(i):
  answers = {name: {"type": "choice", "probabilities": dict(zip(OPTIONS[name], TICKETS[i][name], strict=True)),
                    "confidence": max(TICKETS[i][name])} for name in OPTIONS}
  return {"state": f"secret text {i}", "answers": answers | {"urgent": {"type": "noul", "noul": TICKETS[i]["urgent"]}},
          "labels": RIGHT[i]}


def _decisions(i):
  answers = [{"type": "choice", "name": name, "probabilities": [
    {"value": option, "probability": p} for option, p in zip(OPTIONS[name], TICKETS[i][name], strict=True)]}
    for name in OPTIONS]
  return {"input": f"secret text {i}", "labels": RIGHT[i],
          "answers": [*answers, {"type": "predicate", "name": "urgent", "probability": TICKETS[i]["urgent"]}]}


def _harness(i):
  logits = np.log(TICKETS[i]["team"]) - 7
  return {"doc_id": i, "doc": {}, "target": str(i % 3), "arguments": {
    f"gen_args_{k}": {"arg_0": "secret", "arg_1": f" {text}"} for k, text in enumerate("abc")},
    "filtered_resps": [[str(x), "False"] for x in logits], "acc": float(np.argmax(logits) == i % 3)}


def _inspect(i):
  return {"id": i // 2, "epoch": i % 2, "input": "secret", "scores": {"stated": {
    "value": "CI"[i % 2], "metadata": {"confidence": 0.5 + i / 100}}}}


def _with_letters(i):
  top = [{"token": letter, "logprob": math.log(p)} for letter, p in zip("ABC", TICKETS[i]["team"], strict=True)]
  return {"id": i, "input": "secret", "choices": ["x", "y", "z"], "target": "ABC"[i % 3], "scores": {"choice": {
    "value": "C"}}, "output": {"choices": [{"logprobs": {"content": [{"token": "A", "top_logprobs": top[::-1]}]}}]}}


def _lines(path, objects):
  path.write_text("\n".join(map(json.dumps, objects)))
  return path


@pytest.mark.parametrize("form", [_systemone, _decisions])
def test_answers_of_decision_models_are_a_row_a_question(form, tmp_path):
  said = []
  part = evaluation.load(_lines(tmp_path / "x.jsonl", map(form, range(40))), by=["question", "options"],
                         say=said.append)
  assert part.logits.shape == (120, 3) and part.is_ragged
  assert "it holds answers of a decision model; rows of one id depend on each other" in said[0]
  assert part.groups.tolist() == np.unique(np.repeat([str(i) for i in range(40)], 3), return_inverse=True)[1].tolist()
  assert part.subgroups["question"].names == ("mood", "team", "urgent")
  assert part.subgroups["options"].names == ("2", "3")
  probs = np.exp(part.logits.astype(np.float64))
  for i in range(40):
    np.testing.assert_allclose(probs[3 * i], TICKETS[i]["team"], rtol=1e-5)
    np.testing.assert_allclose(probs[3 * i + 2], [1 - TICKETS[i]["urgent"], TICKETS[i]["urgent"], 0], rtol=1e-5)
    assert part.labels[3 * i] == OPTIONS["team"].index(RIGHT[i]["team"])
    assert part.labels[3 * i + 2] == int(RIGHT[i]["urgent"])


def test_both_forms_of_decision_models_give_the_same_bits(tmp_path):
  one, other = (evaluation.load(_lines(tmp_path / f"{form.__name__}.jsonl", map(form, range(40))))
                for form in (_systemone, _decisions))
  assert one.logits.tobytes() == other.logits.tobytes() and one.labels.tobytes() == other.labels.tobytes()


def test_objects_of_one_id_are_one_group(tmp_path):
  part = evaluation.load(_lines(tmp_path / "x.jsonl", [_systemone(i) | {"id": f"t{i // 4}"} for i in range(40)]))
  assert np.bincount(part.groups).tolist() == [12] * 10


def test_columns_of_rows_whose_options_differ_are_no_classes(tmp_path):
  assert list(calibrators.recommended(1000, 5, is_ragged=True)) == ["TS"]
  assert [param_tables.are_of_classes(calibrators.get(name)) for name in (
    "structured_matrix_scaling", "dirichlet", "temperature_scaling", "ensemble_temperature_scaling", "smart")] == [
      True, True, False, False, False]
  said, part = [], evaluation.load(_lines(tmp_path / "x.jsonl", map(_systemone, range(40))))
  evaluation.fit([part], {"SVS": calibrators.get("structured_vector_scaling"), "TS": calibrators.get(
    "temperature_scaling")}, said.append)
  assert [x for x in said if "numbers for each column" in x] and not [x for x in said if x.startswith("caution: TS")]
  labels, rng = np.zeros(400, np.int32), np.random.default_rng(0)
  logits = np.where(np.arange(3) == np.where(rng.uniform(size=400) < 0.6, 0, 1)[:, None], 5.0, 0.0)
  whole = evaluation.judge({"a": evaluation.Model({"test": [evaluation.Predictions(
    logits.astype(np.float32), labels)]}, {})}, num_resamples=20)
  logits[:, 2] = np.where(np.arange(400) % 2 == 0, -np.inf, 0)
  ragged = evaluation.judge({"a": evaluation.Model({"test": [evaluation.Predictions(
    logits.astype(np.float32), labels)]}, {})}, num_resamples=20)
  assert [any("Predictions of class" in x for x in y.verdict.reasons) for y in (whole, ragged)] == [True, False]


def test_a_refusal_does_not_count_and_is_counted(tmp_path):
  objects, said = [_systemone(i) for i in range(40)], []
  objects[3]["answers"]["team"] = {"type": "refusal", "refusal": "I cannot say."}
  part = evaluation.load(_lines(tmp_path / "x.jsonl", objects), say=said.append)
  assert len(part.labels) == 119 and any("1 of its objects have refusals, which do not count" in x for x in said)


@pytest.mark.parametrize("by_text", [False, True])
def test_samples_of_the_harness_are_log_likelihoods_of_options(by_text, tmp_path):
  samples = [_harness(i) | ({"target": "abc"[i % 3]} if by_text else {}) for i in range(40)]
  part = evaluation.load(_lines(tmp_path / "samples_task.jsonl", samples))
  np.testing.assert_allclose(part.logits, [np.log(x["team"]) - 7 for x in TICKETS], rtol=1e-6)
  assert part.labels.tolist() == [i % 3 for i in range(40)] and part.groups is None and not part.is_ragged


@pytest.mark.parametrize("kind", ["json", "eval"])
def test_samples_of_inspect_are_records_and_epochs_of_a_sample_one_group(kind, tmp_path):
  path = tmp_path / f"log.{kind}"
  if kind == "json":
    path.write_text(json.dumps({"version": 2, "samples": [_inspect(i) for i in range(40)]}))
  else:
    with zipfile.ZipFile(path, "w") as archive:
      archive.writestr("header.json", "{}")
      for i in range(40):
        archive.writestr(f"samples/{i}_epoch_1.json", json.dumps(_inspect(i)))
  part = evaluation.load(path)
  assert part.records and part.labels.tolist() == [1 - i % 2 for i in range(40)]
  np.testing.assert_allclose(part.probs[:, 1], 0.5 + np.arange(40) / 100, rtol=1e-6)
  assert len(np.unique(part.groups)) == 20


def test_letters_of_choices_are_options_and_a_form_is_told_or_given(tmp_path):
  (tmp_path / "letters.json").write_text(json.dumps({"samples": [_with_letters(i) for i in range(40)]}))
  part = evaluation.load(tmp_path / "letters.json")
  np.testing.assert_allclose(np.exp(part.logits), [x["team"] for x in TICKETS], rtol=1e-5)
  assert part.classes == ("A", "B", "C") and part.labels.tolist() == [i % 3 for i in range(40)]
  # A text that is called response is a column of a table, and no batch; both kinds of keys need a word.
  plain = {"response": "a text", "label": 1, "probs": [0.4, 0.6]}
  assert evaluation.load(_lines(tmp_path / "plain.jsonl", [plain] * 9)).logits.shape == (9, 2)
  both = _lines(tmp_path / "both.jsonl", [_systemone(i) | {"confidence": 0.5, "correct": i % 2} for i in range(9)])
  shapes = [evaluation.load(both, form=form).logits.shape for form in ("decisions", "table")]
  assert shapes == [(27, 3), (9, 2)]
  with pytest.raises(UserError, match="is not of the form hle: its objects have state, answers, labels"):
    evaluation.load(both, form="hle")
  samples = _lines(tmp_path / "samples_arc_easy_2026-11-01T10-20-30.123.jsonl", map(_harness, range(9)))
  assert evaluation.load(samples, by=["task"]).subgroups["task"].names == ("arc_easy",)


def test_judged_answers_batches_and_lists_of_records_are_read(tmp_path):
  (tmp_path / "hle.json").write_text(json.dumps({f"id{i}": {"judge_response": {
    "confidence": 80 + i, "correct": "yes" if i % 3 else "no"}} for i in range(12)}))
  part = evaluation.load(tmp_path / "hle.json")
  np.testing.assert_allclose(part.probs[:, 1], (80 + np.arange(12)) / 100, rtol=1e-6)
  assert part.labels.tolist() == [int(i % 3 > 0) for i in range(12)]
  batch = [{"response": {"body": {"choices": [{"logprobs": {"content": [{"token": " A", "logprob": -0.1 * i}]}}]}},
            "label": "AB"[i % 2]} for i in range(12)]
  part = evaluation.load(_lines(tmp_path / "batch.jsonl", batch))
  np.testing.assert_allclose(part.probs[:, 1], np.exp(-0.1 * np.arange(12)), rtol=1e-5)
  assert part.labels.tolist() == [1 - i % 2 for i in range(12)]
  (tmp_path / "list.json").write_text(json.dumps([{"confidence": 0.8, "correct": i % 2} for i in range(12)]))
  assert evaluation.load(tmp_path / "list.json").records


@pytest.mark.parametrize(("name", "text", "message"), [
  ("x.jsonl", json.dumps(_systemone(0) | {"labels": {}}), "line 1 is not as answers of a decision model are .*'team'"),
  ("x.jsonl", json.dumps(_systemone(0)) + "\n" + json.dumps({"answers": 3, "labels": {}}), "line 2 is not as answers"),
  ("x.jsonl", json.dumps(_systemone(0)) + "\n" + json.dumps(_harness(0)), "line 2 is not as answers .* 'answers'"),
  ("x.jsonl", json.dumps(_systemone(0)) + "\n" + json.dumps(_systemone(1))[:-9], "line 2 cannot be read as JSON"),
  ("x.jsonl", json.dumps(_harness(0) | {"answers": {}, "labels": {}}), "by --form, one of decisions, lm_eval"),
  ("x.jsonl", json.dumps(_systemone(0) | {"confidence": 0.5, "correct": 1}), "by --form, one of decisions, table"),
  ("x.json", json.dumps([_with_letters(0) | {"choices": list("wxyz")}]), "its top_logprobs lack D: log more of them"),
  ("x.jsonl", json.dumps(_harness(0) | {"filtered_resps": ["a text"]}), "answers are texts without log-likelihoods"),
  ("x.jsonl", json.dumps(_harness(0) | {"acc": 1.0 - _harness(0)["acc"]}), "its acc [01] says otherwise"),
  ("x.json", json.dumps([_inspect(0) | {"scores": {name: {"value": "C", "metadata": {"confidence": 0.5}}
                                                   for name in "ab"}}]), "2 of its scores 'a, b' state a confidence"),
  ("x.json", json.dumps([_inspect(0) | {"scores": {"a": {"value": "C"}}}]), "none of its scores 'a' state a"),
  ("x.json", "[1, 2]", "object 0, counted from 0, must hold an object"),
  ("x.json", "3", "must hold a list of objects, alone or under one key, an object of columns, the log of an "),
  ("x.json", '{"metadata": {}, "epochs": [1, 2]}', "must hold a list of objects, alone or under one key"),
  ("x.json", '{"a": [{"label": 1}], "b": [{"label": 1}]}', "must hold a list of objects, alone or under one key"),
  ("x.json", '{"probs": [[0.5, 0.5]], "labels": [0, 1]}', "must have the same rows: probs has 1, labels has 2"),
  ("x.json", '{"prob": {"1": 0.5, "2": 0.5}, "y": {"2": 0, "1": 1}}', "must have the same rows: prob has 2, y has 2"),
  ("x.json", "{}", "it has no rows"), ("x.json", "[]", "it has no rows"),
  ("x.json", "[" * 10_000, "levels|cannot be read|recursion"), ("x.json", "{", "x.json"),
  ("x.eval", "no zip", "is no archive of Inspect"),
])
def test_what_is_not_as_its_form_says_is_one_sentence(name, text, message, tmp_path):
  (tmp_path / name).write_text(text)
  with pytest.raises(UserError, match=message):
    evaluation.load(tmp_path / name)


def test_the_command_fits_one_temperature_to_questions_whose_options_differ(tmp_path, no_figures, capsys):
  fit, test = (_lines(tmp_path / f"{name}.jsonl", map(_systemone, rows))
               for name, rows in (("fit", range(20)), ("test", range(20, 40))))
  options = ["--by=question", "--num_resamples=20", f"--out={tmp_path}"]
  assert command.main([f"--fit={fit}", f"--test={test}", *options]) == 0
  out = capsys.readouterr().out
  assert "| TS " in out and "SVS" not in out and "secret" not in out and "Predictions of class" not in out
  assert not any("secret" in path.read_text(errors="ignore") for path in tmp_path.rglob("results.*"))


@pytest.mark.parametrize("form", [_systemone, _decisions])
def test_apply_mends_the_probabilities_of_answers_and_nothing_else(form, tmp_path, no_figures, capsys):
  paths = [_lines(tmp_path / f"{name}.jsonl", map(form, rows))
           for name, rows in (("fit", range(20)), ("test", range(20, 40)))]
  options = [f"--fit={paths[0]}", f"--test={paths[1]}", "--calibrators=temperature_scaling", "--num_resamples=20"]
  assert command.main([*options, f"--out={tmp_path}"]) == 0
  out, (file,) = tmp_path / "mended.jsonl", (tmp_path / "calibrators").glob("temperature_scaling.npz")
  assert apply.main([f"--calibrator={file}", f"--predictions={paths[1]}", f"--out={out}"]) == 0
  before, after = ([json.loads(line) for line in path.read_text().splitlines()] for path in (paths[1], out))
  fitted = calibrators.load(file)
  for old, new in zip(before, after, strict=True):
    assert {key: x for key, x in old.items() if key != "answers"} == {
      key: x for key, x in new.items() if key != "answers"}
    for name, answer in log_forms.answers_of(old).items():
      p, q = (np.array(list(log_forms.probabilities_of(log_forms.answers_of(x)[name]).values())) for x in (old, new))
      assert q.sum() == pytest.approx(1, abs=1e-6) and (np.argsort(p) == np.argsort(q)).all()
      expected = p ** (1 / float(fitted.params["temperature"]))
      np.testing.assert_allclose(q, expected / expected.sum(), rtol=1e-4)
      mended = log_forms.answers_of(new)[name]
      assert answer["type"] == mended["type"] and mended.get("confidence", q.max()) == q.max()
  assert apply.main([f"--calibrator={file}", f"--predictions={paths[1]}", f"--out={tmp_path / 'x.csv'}"]) == 2
  assert "are written as they are read, as .jsonl" in capsys.readouterr().err
  wanted = [f"--predictions={paths[1]}", f"--out={out}", f"--temperatures={tmp_path / 't.json'}"]
  assert apply.main([f"--calibrator={file}", *wanted]) == 2
  assert "has one number for each subgroup, and" in capsys.readouterr().err
  params = {name: {"temperature": np.float32(x)} for name, x in (("choice", 2.5), ("noul", 0.5), ("predicate", 0.5))}
  subgroup_fits.save(tmp_path / "by.npz", calibrators.Fitted(
    calibrators.Calibrator(None, None, subgroup_fits.NAME, {"base": calibrators.temperature_scaling()}),
    {"column": "type", "n0": 30.0, "pooled": {"temperature": np.float32(2)}, "own": params}))
  assert apply.main([f"--calibrator={tmp_path / 'by.npz'}", *wanted]) == 0
  assert json.loads((tmp_path / "t.json").read_text()) == {"choice": 2.5, "noul": 0.5, "predicate": 0.5}
  answers = [log_forms.answers_of(json.loads(path.read_text().splitlines()[0]))["team"] for path in (paths[1], out)]
  p, q = (np.array(list(log_forms.probabilities_of(x).values())) for x in answers)
  np.testing.assert_allclose(q, p ** (1 / 2.5) / np.sum(p ** (1 / 2.5)), rtol=1e-4)


def _batch(i):
  return {"response": {"body": {"choices": [{"logprobs": {"content": [{"token": " A", "logprob": -0.01 - i / 50}]}}]}},
          "label": "AB"[i % 2], "custom_id": f"{i}"}


def _exam(i):
  return {"judge_response": {"confidence": 50 + i, "correct": "yes" if i % 3 else "no"}, "model": "m"}


def _changed(before, after, path=()):
  """The paths at which two values of JSON differ."""
  if type(before) is not type(after):
    return [path]
  if isinstance(before, dict):
    assert before.keys() == after.keys()
    return [found for key in before for found in _changed(before[key], after[key], (*path, key))]
  if isinstance(before, list):
    assert len(before) == len(after)
    return [found for i, pair in enumerate(zip(before, after, strict=True)) for found in _changed(*pair, (*path, i))]
  return [] if before == after else [path]


@pytest.mark.parametrize(("form", "suffix", "where", "label"), [
  (_harness, "jsonl", {"0"}, "target"), (_with_letters, "json", {"logprob"}, None),
  (_inspect, "json", {"confidence"}, None), (_batch, "jsonl", {"logprob"}, "label"),
  (_exam, "json", {"confidence"}, None)])
def test_apply_changes_the_probabilities_of_a_log_and_nothing_else(form, suffix, where, label, tmp_path, capsys):
  objects = [form(i) for i in range(40)]
  whole = {f"q{i}": x for i, x in enumerate(objects)} if form is _exam else {"version": 2, "samples": objects}
  path, out = tmp_path / f"new.{suffix}", tmp_path / f"out.{suffix}"
  path.write_text(json.dumps(whole) if suffix == "json" else "\n".join(map(json.dumps, objects)))
  part = evaluation.load(path)
  base = calibrators.temperature_scaling()
  calibrator = calibrators.record_calibration(base) if part.records else base
  calibrators.save(tmp_path / "c.npz", calibrators.Fitted(calibrator, calibrator.fit(part.logits, part.labels)))
  if label:  # New answers need no label.
    path.write_text("\n".join(json.dumps({k: x for k, x in y.items() if k != label}) for y in objects))
  assert apply.main([f"--calibrator={tmp_path / 'c.npz'}", f"--predictions={path}", f"--out={out}"]) == 0
  before, after = ([json.loads(text) for text in (x.read_text().splitlines() if suffix == "jsonl" else [x.read_text()])]
                   for x in (path, out))
  changed = _changed(before, after)
  assert {str(place[-1]) for place in changed} == where and len(changed) >= 40 * len(part.logits[0]) // (
    2 if part.records else 1) - 40
  fitted = calibrators.load(tmp_path / "c.npz")
  if label:
    for x, y in zip(after, objects, strict=True):
      x[label] = y[label]
    out.write_text("\n".join(map(json.dumps, after)))
  again, expected = evaluation.load(out), np.exp(np.asarray(fitted(part.logits)))
  p = np.exp(again.logits - again.logits.max(1, keepdims=True))
  np.testing.assert_allclose(p / p.sum(1, keepdims=True), expected, rtol=2e-3, atol=1e-5)
  other = base if part.records else calibrators.record_calibration(base)
  calibrators.save(tmp_path / "d.npz", calibrators.Fitted(other, other.fit(part.logits[:, :2], part.labels % 2)))
  assert apply.main([f"--calibrator={tmp_path / 'd.npz'}", f"--predictions={path}", f"--out={out}"]) == 2
  assert "the calibrator was fitted to" in capsys.readouterr().err
