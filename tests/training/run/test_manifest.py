"""The next command on a finished run names files that were damaged, and predicts anew if that is possible."""

import functools
import json
import random
import shutil

import pytest

from calib_jax._system.errors import UserError
from calib_jax.evaluation import reports
from calib_jax.training import checkpoints, run
from tests.programs import never
from tests.training.small import digits

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("recovery")]
# The programs are those of tests/training/run/test_run.py, so that they are compiled once for both.
SMALL = ("num_seeds=2", "compare_with_cross_entropy=False", "training.num_steps=6", "evaluation.num_resamples=20",
         "model.hidden=(8,)", "training.select=best", "checkpoint.every_steps=3", "evaluation.corruptions=('fog',)",
         "evaluation.severities=(2,)", "evaluation.recommended=False")


_config = functools.partial(digits, *SMALL)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """A finished run, and one figure alone of this and of all others, because figures take longer than all else."""
  drawn, folder = reports.figures, tmp_path_factory.mktemp("recovery") / "run"
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(reports, "figures", lambda *arguments, **options: {
      "reliability": drawn(*arguments, **options)["reliability"]})
    run.execute(_config(), folder)
    yield folder


@pytest.fixture
def copy(finished, tmp_path):
  return shutil.copytree(finished, tmp_path / "run")


def _files(folder):
  return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*"))
          if path.is_file() and ".damaged" not in path.as_posix() and path.name != "lock"}


def _numbers(files):
  """The files that hold predictions and results; a page may also show the log."""
  return {name: content for name, content in files.items() if name.startswith(("predictions/", "results"))}


def _again(folder, config=None):
  """Runs the same command, or that of another config, which must not train."""
  run.execute(config or _config(), folder, hooks=[never])


def _damage(path, way, draw):
  content = bytearray(path.read_bytes())
  match way:
    case "bit":
      content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    case "cut":
      del content[draw.randrange(len(content)):]
    case "emptied":
      content.clear()
  path.write_bytes(content)


def test_the_manifest_lists_what_numbers_come_from(finished):
  fields = json.loads((finished / "manifest.json").read_text())
  assert fields["files"].keys() == {
    "config.json", "metrics.jsonl", "checkpoints/seeds0-1.json", "checkpoints/seeds0-1/3", "checkpoints/seeds0-1/6",
    *(f"predictions/{name}_seed{seed}.npz" for name in ("validation", "test", "fog_2") for seed in (0, 1))}
  assert fields["config"] == (finished / "config.json").read_text()


def test_what_comes_from_predictions_is_made_anew_byte_for_byte(copy, capsys):
  before = _files(copy)
  for name in ("results.json", "results.tex", "report.html", "figures/reliability.svg"):
    _damage(copy / name, "bit", random.Random(0))
  (copy / "config.json").unlink()
  (copy / "predictions/test_seed1.npz").unlink()  # It comes from the checkpoint.
  (copy / "notes.txt").write_text("mine")  # A file of the user's own is not the run's.
  _again(copy)
  assert _files(copy) == {**before, "notes.txt": b"mine"}
  warning = capsys.readouterr().err
  assert warning.count("warning: ") == 1 and "config.json" in warning
  assert "predictions/test_seed1.npz" in warning.split("are not as it left them:")[1].split("(deleted)")[0]
  _again(copy)
  assert capsys.readouterr().err == ""


def test_a_damaged_log_is_named_by_each_command(copy, capsys):
  before = _files(copy)
  _damage(copy / "metrics.jsonl", "cut", random.Random(1))
  for _ in range(2):
    _again(copy)
    warning = capsys.readouterr().err
    assert "metrics.jsonl (changed)" in warning
    assert f"metrics.jsonl cannot be made anew: delete {copy} to train" in warning
  assert _numbers(_files(copy)) == _numbers(before)
  (copy / "manifest.json").unlink()  # As the message says, this accepts the files as they are.
  _again(copy)
  warning = capsys.readouterr().err
  assert warning.startswith(f"warning: there is no {copy / 'manifest.json'}, so it is not known whether")
  assert warning.endswith("it is written anew for the files as they are.\n") and warning.count("\n") == 1
  _again(copy)
  assert capsys.readouterr().err == ""


# A single bit may be one that nothing reads; tests/training/test_engine.py changes a number that is read.
def test_a_damaged_checkpoint_leaves_the_results_and_is_trained_again_where_it_is_needed(copy, capsys):
  before, steps = _files(copy), []
  files = [path for path in (copy / "checkpoints/seeds0-1/6").rglob("*") if path.is_file()]
  _damage(max(files, key=lambda path: path.stat().st_size), "emptied", random.Random(2))
  for _ in range(2):
    _again(copy)
    assert "cannot be made anew: delete" in capsys.readouterr().err
  assert _numbers(_files(copy)) == _numbers(before)
  (copy / "predictions/test_seed1.npz").unlink()
  run.execute(_config(), copy, hooks=[lambda step, measured: steps.append((step, len(measured["loss"])))])
  assert steps == [(step, 2) for step in range(4, 7)]  # Both seeds, from the last whole one.
  warnings = capsys.readouterr().err
  assert "cannot be read whole" in warnings and "cannot be predicted" not in warnings
  assert _numbers(_files(copy)) == _numbers(before)
  _again(copy)
  assert capsys.readouterr().err == ""


def test_a_model_without_any_checkpoint_is_trained_anew_with_a_word(copy, capsys):
  shutil.rmtree(copy / "checkpoints")
  (copy / "predictions/test_seed1.npz").unlink()
  steps = []
  run.execute(_config(), copy, hooks=[lambda step, measured: steps.append(len(measured["loss"]))])
  assert steps == [1] * 6  # That seed alone, which gives the same numbers up to rounding.
  assert ("checkpoints/seeds0-1.json, checkpoints/seeds0-1/3, checkpoints/seeds0-1/6, predictions/test_seed1.npz "
          "(deleted).") in capsys.readouterr().err


def test_other_numbers_are_never_reported_without_a_word(copy, capsys):
  """The predictions are gone and the checkpoint is another whole one: only the manifest can tell."""
  before = _files(copy)
  shutil.rmtree(copy / "checkpoints/seeds0-1/6")
  earlier = checkpoints.newest(copy / "checkpoints/seeds0-1")
  writer = checkpoints.Checkpoints(copy / "checkpoints/seeds0-1")
  writer.save(6, earlier[1])
  writer.close()
  (copy / "predictions/fog_2_seed0.npz").unlink()
  _again(copy)
  warnings = capsys.readouterr().err
  assert "checkpoints/seeds0-1/6 (changed)" in warnings
  assert "predictions/fog_2_seed0.npz cannot be predicted byte for byte as before" in warnings
  after = _files(copy)
  assert after["predictions/fog_2_seed0.npz"] != before["predictions/fog_2_seed0.npz"]
  tables = [json.loads(files["results.json"])["results"] for files in (before, after)]
  assert tables[0]["test"] == tables[1]["test"] and tables[0]["fog_2"] != tables[1]["fog_2"]


def test_another_config_is_refused_also_if_config_json_was_damaged_or_deleted(copy):
  before = _files(copy)
  for remove in (lambda path: _damage(path, "bit", random.Random(4)), lambda path: path.unlink()):
    remove(copy / "config.json")
    with pytest.raises(UserError, match=r"holds a run of another config \(optimizer.learning_rate was 0.1 and is 0"):
      _again(copy, _config("optimizer.learning_rate=0.01"))
    assert _files(copy) == before  # Its config.json is the run's own again.


def test_a_command_that_is_killed_while_it_reports_accuses_nothing(copy, capsys, monkeypatch):
  other = _config("evaluation.num_bins=7")
  with monkeypatch.context() as patch:
    patch.setattr(run.manifest, "finish", lambda *_, **options: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
      _again(copy, other)
  (copy / "predictions/test_seed0.npz").unlink()
  capsys.readouterr()
  _again(copy, other)
  warning = capsys.readouterr().err
  assert warning.count("warning") == 1 and "predictions/test_seed0.npz (deleted)." in warning  # That alone.
