"""The next command on a finished run names files that were damaged, and predicts anew if that is possible."""

import json
import random
import re
import shutil

from ml_collections import ConfigDict
import pytest

from calib_jax import config as run_config
from calib_jax import reports, run
from calib_jax._system.errors import UserError
from calib_jax.training import checkpoints

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("recovery")]
DATA, METHOD = "<img src=x onerror=alert(2)>.npz", "<u>focal</u>$_{$"
LABEL = "<script>alert(1)</script>|$\\frac{$ & % _ # ~ ^"
# The programs are those of tests/run/test_run.py, so that they are compiled once for both; digits have no data.path.
SMALL = ("num_seeds=2", "compare_with_cross_entropy=False", "training.num_steps=6", "evaluation.num_resamples=20",
         "model.hidden=(8,)", "training.select=best", "checkpoint.every_steps=3", f"data.path={DATA}",
         "evaluation.corruptions=('fog',)", "evaluation.severities=(2,)", "evaluation.calibrators={}")
WAYS = ("bit", "cut", "emptied", "deleted", "other")


def _config(*overrides, label=LABEL):
  config = run_config.load("configs/digits_savuc.py", [f"--config.{o}" for o in (*SMALL, *overrides)])
  with config.unlocked():
    config.evaluation.calibrators = ConfigDict({label: dict(name="temperature_scaling")})
    config.evaluation.recommended = False
    return run_config.complete(config)


@pytest.fixture(scope="module", autouse=True)
def _names():
  """A method whose name holds markup; only one of the figures is saved, because they take longer than all else."""
  drawn = reports.figures
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(run.execution, "method_name", lambda config: METHOD)
    patch.setattr(reports, "figures", lambda *arguments, **options: {
      "reliability": drawn(*arguments, **options)["reliability"]})
    yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  folder = tmp_path_factory.mktemp("recovery") / "run"
  run.execute(_config(), folder)
  return folder


@pytest.fixture
def copy(finished, tmp_path):
  """A copy of the finished run, and its config."""
  shutil.copytree(finished, tmp_path / "run")
  return tmp_path / "run", _config()


def _files(folder):
  return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*"))
          if path.is_file() and ".damaged" not in path.as_posix() and path.name != "lock"}


def _numbers(files):
  """The files that hold predictions and results; a page may also show the log."""
  return {name: content for name, content in files.items() if name.startswith(("predictions/", "results"))}


def _never(step, measured):
  """A hook for commands that must not take a step."""
  raise AssertionError("this must not train")


def _damage(path, way, draw):
  content = bytearray(path.read_bytes())
  match way:
    case "bit":
      content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    case "cut":
      del content[draw.randrange(len(content)):]
    case "emptied":
      content.clear()
    case "other":
      content = draw.randbytes(len(content))
  path.write_bytes(content)
  if way == "deleted":
    path.unlink()


def test_the_manifest_lists_what_numbers_come_from(finished):
  fields = json.loads((finished / "manifest.json").read_text())
  assert fields["files"].keys() == {
    "config.json", "metrics.jsonl", "checkpoints/seeds0-1.json", "checkpoints/seeds0-1/3", "checkpoints/seeds0-1/6",
    *(f"predictions/{name}_seed{seed}.npz" for name in ("validation", "test", "fog_2") for seed in (0, 1))}
  assert fields["config"] == (finished / "config.json").read_text()


def test_names_that_a_user_chose_are_escaped_in_pages_and_tables(finished):
  page, table = ((finished / name).read_text() for name in ("report.html", "results.md"))
  for text in (page, table):
    assert "<script>alert" not in text and "<u>" not in text and "<img src=x" not in text
    assert "&lt;script&gt;alert(1)" in text and "&lt;u&gt;focal" in text
  assert "&lt;img src=x onerror=alert(2)&gt;.npz" in page  # In the config that the page prints.
  rows = [line for line in table.splitlines() if line.startswith("|")]
  cells = {line.replace("\\|", "").count("|") for line in rows}
  assert len(rows) == 6 and len(cells) == 1  # A heading, a rule and two rows of each set, all of as many cells.
  assert (finished / "figures/reliability.svg").stat().st_size > 10_000  # A title is no formula.


def test_names_that_a_user_chose_are_text_in_latex(finished):
  """LaTeX runs what follows a backslash, and a bare special character breaks the table."""
  lines = (finished / "results.tex").read_text().replace(r"$\leq$ ", "").splitlines()  # The smallest p-value has it.
  rows = [line.removesuffix(r"\\") for line in lines if "alert(1)" in line]
  assert rows
  for row in rows:
    commands = set(re.findall(r"\\([A-Za-z]+)", row))
    assert commands <= {"textbf"} | {f"text{name}" for name in ("backslash", "asciitilde", "asciicircum", "less",
                                                               "greater", "bar")}, row
    assert not re.search(r"(?<!\\)[$%_#]|[~^<>|]", row), row
    assert r"\$\textbackslash{}frac\{\$ \& \% \_ \#" in row
  assert len({len(re.findall(r"(?<!\\)&", row)) for row in lines if row.endswith(r"\\")}) == 1  # As many cells.


@pytest.mark.parametrize("way", WAYS)
def test_what_comes_from_predictions_is_made_anew_byte_for_byte(way, copy, capsys):
  folder, config = copy
  before = _files(folder)
  for name in ("results.json", "results.tex", "report.html", "figures/reliability.svg", "config.json"):
    _damage(folder / name, way, random.Random(0))
  (folder / "predictions/test_seed1.npz").unlink()  # It comes from the checkpoint.
  (folder / "notes.txt").write_text("mine")  # A file of the user's own is not the run's.
  run.execute(config, folder, hooks=[_never])
  assert _files(folder) == {**before, "notes.txt": b"mine"}
  warning = capsys.readouterr().err
  assert warning.count("warning: ") == 1 and "config.json" in warning
  assert "predictions/test_seed1.npz" in warning.split("are not as it left them:")[1].split("(deleted)")[0]
  run.execute(config, folder, hooks=[_never])
  assert capsys.readouterr().err == ""


@pytest.mark.parametrize("way", WAYS)
def test_changed_predictions_are_refused_and_predicted_again_once_they_are_deleted(way, copy):
  folder, config = copy
  before, path = _files(folder), folder / "predictions/fog_2_seed1.npz"
  _damage(path, way, random.Random(0))
  if way != "deleted":
    with pytest.raises(UserError, match=r"not as the run left them: delete predictions/fog_2_seed1.npz, and the same"):
      run.execute(config, folder, hooks=[_never])
    path.unlink()
  run.execute(config, folder, hooks=[_never])
  assert _files(folder) == before


def test_a_damaged_log_is_named_by_each_command(copy, capsys):
  folder, config = copy
  before = _files(folder)
  _damage(folder / "metrics.jsonl", "cut", random.Random(1))
  for _ in range(2):
    run.execute(config, folder, hooks=[_never])
    warning = capsys.readouterr().err
    assert "metrics.jsonl (changed)" in warning
    assert f"metrics.jsonl cannot be made anew: delete {folder} to train" in warning
  assert _numbers(_files(folder)) == _numbers(before)
  (folder / "manifest.json").unlink()  # As the message says, this accepts the files as they are.
  run.execute(config, folder, hooks=[_never])
  assert capsys.readouterr().err.count("\n") == 1
  run.execute(config, folder, hooks=[_never])
  assert capsys.readouterr().err == ""


def _newest(folder, draw):
  """A file of the newest checkpoint that its arrays are read from."""
  files = [path for path in sorted((folder / "checkpoints/seeds0-1/6").rglob("*"))
           if path.is_file() and path.stat().st_size > 500]
  return draw.choice(files)


@pytest.mark.parametrize("way", ["bit", "deleted"])
def test_a_damaged_checkpoint_is_named_and_leaves_the_results(way, copy, capsys):
  folder, config = copy
  draw, before = random.Random(2), _files(folder)
  _damage(_newest(folder, draw), way, draw)
  for _ in range(2):
    run.execute(config, folder, hooks=[_never])
    assert "cannot be made anew: delete" in capsys.readouterr().err
  assert _numbers(_files(folder)) == _numbers(before)


@pytest.mark.parametrize("way", ["bit", "deleted"])
def test_a_model_without_checkpoint_and_predictions_is_trained_again_to_the_same_predictions(way, copy, capsys):
  folder, config = copy
  draw, before, steps = random.Random(3), _files(folder), []
  _damage(_newest(folder, draw), way, draw)
  (folder / "predictions/test_seed1.npz").unlink()
  run.execute(config, folder, hooks=[lambda step, measured: steps.append((step, len(measured["loss"])))])
  assert steps == [(step, 2) for step in range(4, 7)]  # Both seeds, from the last whole one.
  warnings = capsys.readouterr().err
  assert "cannot be read whole" in warnings and "cannot be predicted" not in warnings
  assert _numbers(_files(folder)) == _numbers(before)
  run.execute(config, folder, hooks=[_never])
  assert capsys.readouterr().err == ""


def test_a_model_without_any_checkpoint_is_trained_anew_with_a_word(copy, capsys):
  folder, config = copy
  shutil.rmtree(folder / "checkpoints")
  (folder / "predictions/test_seed1.npz").unlink()
  steps = []
  run.execute(config, folder, hooks=[lambda step, measured: steps.append(len(measured["loss"]))])
  assert steps == [1] * 6  # That seed alone, which gives the same numbers up to rounding.
  assert ("checkpoints/seeds0-1.json, checkpoints/seeds0-1/3, checkpoints/seeds0-1/6, predictions/test_seed1.npz "
          "(deleted).") in capsys.readouterr().err


def test_other_numbers_are_never_reported_without_a_word(copy, capsys):
  """The predictions are gone and the checkpoint is another whole one: only the manifest can tell."""
  folder, config = copy
  before = _files(folder)
  shutil.rmtree(folder / "checkpoints/seeds0-1/6")
  earlier = checkpoints.newest(folder / "checkpoints/seeds0-1")
  writer = checkpoints.Checkpoints(folder / "checkpoints/seeds0-1")
  writer.save(6, earlier[1])
  writer.close()
  (folder / "predictions/fog_2_seed0.npz").unlink()
  run.execute(config, folder, hooks=[_never])
  warnings = capsys.readouterr().err
  assert "checkpoints/seeds0-1/6 (changed)" in warnings or "checkpoints/seeds0-1/6 (deleted)" in warnings
  assert "predictions/fog_2_seed0.npz cannot be predicted byte for byte as before" in warnings
  after = _files(folder)
  assert after["predictions/fog_2_seed0.npz"] != before["predictions/fog_2_seed0.npz"]
  tables = [json.loads(files["results.json"])["results"] for files in (before, after)]
  assert tables[0]["test"] == tables[1]["test"] and tables[0]["fog_2"] != tables[1]["fog_2"]


@pytest.mark.parametrize("way", WAYS)
def test_another_config_is_refused_also_if_config_json_was_damaged(way, copy):
  folder, _ = copy
  before = _files(folder)
  _damage(folder / "config.json", way, random.Random(4))
  with pytest.raises(UserError, match=r"holds a run of another config \(optimizer.learning_rate was 0.1 and is 0.01\)"):
    run.execute(_config("optimizer.learning_rate=0.01"), folder)
  assert _files(folder) == before  # Its config.json is the run's own again.


@pytest.mark.parametrize("way", ["bit", "deleted"])
def test_a_damaged_manifest_is_named(way, copy, capsys):
  folder, config = copy
  before = _files(folder)
  _damage(folder / "manifest.json", way, random.Random(5))
  run.execute(config, folder, hooks=[_never])
  assert _files(folder) == before
  warning = capsys.readouterr().err
  phrase = "there is no" if way == "deleted" else "manifest.json is damaged"
  assert phrase in warning and "it is written anew" in warning and warning.count("\n") == 1


def test_a_command_that_is_killed_while_it_reports_accuses_nothing(copy, capsys, monkeypatch):
  folder, other = copy[0], _config(label="TS")
  with monkeypatch.context() as patch:
    patch.setattr(run.manifest, "finish", lambda *_, **options: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
      run.execute(other, folder, hooks=[_never])
  (folder / "predictions/test_seed0.npz").unlink()
  capsys.readouterr()
  run.execute(other, folder, hooks=[_never])
  warning = capsys.readouterr().err
  assert warning.count("warning") == 1 and "predictions/test_seed0.npz (deleted)." in warning  # That alone.


def test_a_second_run_is_refused_and_changes_nothing(copy):
  folder, config = copy
  with run.lock.held(folder):
    before = _files(folder)
    with pytest.raises(UserError, match="is in use by process"):
      run.execute(config, folder)
    assert _files(folder) == before
