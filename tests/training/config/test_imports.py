"""A user's own losses, calibrators, heads, models and data sources, by import path in a config."""

import functools
import json
import shutil
import sys

import jax
import numpy as np
import pytest

from calib_jax._system.errors import UserError
from calib_jax.training import config as run_config
from calib_jax.training import run
from calib_jax.training.config import imports
from calib_jax.training.config.load import FORMAT
from calib_jax.training.run import directory
from tests.programs import ROOT

pytestmark = pytest.mark.usefixtures("no_figures")
# Beside the parts of examples/own/mine.py.
MORE = '''
from calib_jax import losses
from calib_jax.training import SCHEDULES


def spread(logits, labels, *, strength=0.5, where=None, axis_name=None):
  return strength * losses.soft_avuc(logits, labels, where=where, axis_name=axis_name)


def warm(config, examples, seeds, *, rate=1.0):
  stage, = SCHEDULES["joint"](config, examples, seeds)
  return [stage._replace(phases=[phase._replace(rate=rate) for phase in stage.phases])]


def number(*, dtype=None, num_classes=3):
  return 3


def wrong(seed, folder):
  return None


NUMBER = 3
'''
QUICK = ("training.batch_size=16", "training.num_steps=3", "num_seeds=1", "compare_with_cross_entropy=false",
         "evaluation.num_resamples=5", "loss.secondary.name=", "optimizer.learning_rate=0.001")


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
  (tmp_path / "my_calibration.py").write_text(MORE)
  shutil.copy(ROOT / "examples/own/mine.py", tmp_path)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
  with jax.numpy_rank_promotion("allow"):  # As users have it.
    yield
  for name in ("my_calibration", "mine"):
    sys.modules.pop(name, None)


def _config(*overrides, path="configs/digits_savuc.py"):
  config = run_config.load(str(ROOT / path), [f"--config.{o}" for o in (*QUICK, *overrides)])
  run_config.check(config, 2)
  return config


# An option of each, its text on the command line, and the value that the text stands for.
OPTIONS = {
  "loss.primary": ("mine:bounded", "power", "3", 3.0), "head": ("mine:Cosine", "scale", "5", 5.0),
  "loss.secondary": ("my_calibration:spread", "strength", "1", 1.0), "model": ("mine:Network", "width", "6", 6),
  "data": ("mine:rings", "num_examples", "90", 90), "schedule": ("my_calibration:warm", "rate", "2", 2.0)}


def test_functions_of_ones_own_have_their_options_typed():
  named = [f"{key}.name={name}" for key, (name, *_) in OPTIONS.items()]
  config = _config(*named, *(f"{key}.{option}={text}" for key, (_, option, text, _) in OPTIONS.items()))
  again = run_config.from_json(run_config.to_json(config), own_code=True)
  for key, (_, option, _, value) in OPTIONS.items():
    section = run_config.get(config, key)
    assert section[option] == value and type(section[option]) is type(value)
    assert run_config.get(again, key).to_dict() == section.to_dict()
    with pytest.raises(UserError, match=f"config key {key}.{option} must be of type"):
      _config(*named, f"{key}.{option}=x")


@pytest.mark.parametrize(("override", "message"), [
  ("loss.primary.name=absent_module:f", "config key loss.primary.name: 'absent_module' cannot be imported"),
  ("loss.primary.name=my_calibration:absent", "the module my_calibration has no function or class 'absent'"),
  ("loss.primary.name=my_calibration:NUMBER", "has no function or class 'NUMBER'"),
  ("loss.secondary.name=mine:bounded", "mine:bounded must take the keywords where and axis_name"),
  ("head.name=builtins:dict", "builtins:dict must be a subclass of calib_jax.training.models.Head"),
  ("data.name=builtins:dict", "the arguments of builtins:dict cannot be listed .*written in Python"),
  ("model.name=my_calibration:number", "config key model: "),
  ("loss.primary.name=builtins:print", "config key loss: "),
  ("evaluation.calibrators.TS.name=os:getcwd", "os:getcwd must return a calib_jax.calibrators.Calibrator"),
  ("data.name=my_calibration:wrong", "can only take the arguments seed, dir, path, .*: got folder"),
])
def test_a_mistake_in_an_import_path_is_one_sentence(override, message):
  with pytest.raises(UserError, match=message) as error:
    _config(override)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(("section", "field"), [
  ("evaluation.calibrators.TS", "name"), ("evaluation.calibrators.TS", "base"), ("loss.primary", "name"),
  ("loss.secondary", "name"), ("model", "name"), ("head", "name"), ("data", "name"), ("augmentation", "name"),
  ("schedule", "name")])
def test_the_json_of_a_run_imports_nothing(section, field, tmp_path, monkeypatch):
  monkeypatch.setattr(imports, "_imported", lambda *_: pytest.fail("this must not be imported"))
  config = run_config.load(str(ROOT / "configs/digits_savuc.py"), []).to_dict()
  node = functools.reduce(lambda node, part: node[part], section.split("."), config)
  node[field] = "subprocess:getoutput"
  (tmp_path / "config.json").write_text(json.dumps({"format": FORMAT, **config}))
  with pytest.raises(UserError, match=f"{section}.{field} is the import path 'subprocess:getoutput', whose code would"):
    run.Run.load(tmp_path)
  # A command on the directory compares its own config with this one, without importing.
  assert (f"{section}.{field}" in directory.differences(tmp_path / "config.json", _config())) == (
    not section.startswith("evaluation"))


@pytest.mark.slow
def test_the_config_for_ones_own_images_is_sound(tmp_path):
  rng = np.random.default_rng(0)
  np.savez(tmp_path / "images.npz", images=rng.integers(0, 256, (80, 8, 8), dtype=np.uint8), labels=np.arange(80) % 4)
  config = _config(f"data.path={tmp_path / 'images.npz'}", path="configs/npz.py")
  assert config.num_seeds == 1 and not config.compare_with_cross_entropy
  assert run.data.load_splits(config, 0).num_classes == 4
