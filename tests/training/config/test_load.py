"""Configs: what is read, and the one sentence for everything that cannot work."""

import shlex

import flax.linen as nn
import jax
import numpy as np
import pytest

from calib_jax import losses
from calib_jax._system.errors import UserError
from calib_jax.training import config as run_config
from calib_jax.training.config import checks
from tests.programs import ROOT

DIGITS = str(ROOT / "configs/digits_savuc.py")


def _load(*overrides, path=DIGITS, num_devices=1):
  config = run_config.load(path, [f"--config.{o}" for o in overrides])
  run_config.check(config, num_devices)
  return config


def _file(statement):
  """The text of a config file that changes the defaults by a statement."""
  return "\n  ".join(("from configs import common\ndef get_config():", "config = common.get_config()", statement,
                      "return config"))


def test_overrides_take_the_type_of_the_field():
  config = _load("training.num_steps=20", "loss.weight=2", "data.dir=/x", "compare_with_cross_entropy=false",
                 "optimizer.boundaries=(0.5,)", "evaluation.calibrators.TS.objective=ece")
  assert config.training.num_steps == 20
  assert config.loss.weight == 2.0 and isinstance(config.loss.weight, float)
  assert config.data.dir == "/x" and config.compare_with_cross_entropy is False
  assert config.optimizer.boundaries == (0.5,)
  assert config.evaluation.calibrators.TS.objective == "ece"


def test_calibrators_are_changed_added_and_removed_by_their_labels():
  key = "evaluation.calibrators"
  mine = f"{key}.TS-SB-ECE"
  config = _load(f"{mine}.name=temperature_scaling", f"{mine}.objective=soft_binned_ece", f"{mine}.form=label",
                 f"{mine}.num_bins=10", f"{key}.VS.name=vector_scaling", f"{key}.TS=",
                 f"{key}.CLS.name=classwise_loss_scaling", f"{key}.CLS.base=parameterized_temperature_scaling",
                 f"{key}.CLS.top_k=3", f"{key}.Meta.name=meta_calibration", f"{key}.Meta.target=0.1")
  result = config.evaluation.calibrators
  assert list(result) == ["CLS", "Meta", "TS-SB-ECE", "VS"]
  assert result["TS-SB-ECE"].form == "label" and result["TS-SB-ECE"].num_bins == 10
  assert result.CLS.top_k == 3 and result.CLS.normalization == "standard" and result.Meta.target == 0.1
  assert not _load(f"{key}={{}}").evaluation.calibrators
  assert list(_load(f"{key}={{'TS': {{'name': 'platt'}}}}").evaluation.calibrators.TS) == ["name", "top_label"]
  with pytest.raises(UserError, match="TS.objektive does not exist: TS has .*Did you mean 'objective'"):
    _load(f"{key}.TS.objektive=ece")
  with pytest.raises(UserError, match="TS-SB-ECE: form must be one of"):
    _load(f"{mine}.name=temperature_scaling", f"{mine}.objective=soft_binned_ece", f"{mine}.form=bins")
  with pytest.raises(UserError, match="Meta: target must be a number: got None"):
    _load(f"{key}.Meta.name=meta_calibration")


@pytest.mark.parametrize("statement", [
  "config.evaluation.calibrators.Mine = dict(name='temperature_scaling')",
  "config.evaluation.calibrators['Mine'] = dict(name='temperature_scaling')",
  "config.evaluation.calibrators.update(Mine=dict(name='temperature_scaling'))"])
def test_a_file_adds_calibrators(statement, tmp_path):
  path = tmp_path / "added.py"
  path.write_text(_file(statement))
  config = _load(path=str(path))
  assert list(config.evaluation.calibrators) == ["Mine", "TS"] and config.is_locked
  assert config.evaluation.calibrators.Mine.objective == "nll"  # With the options of what it names.
  assert config.evaluation.calibrators.is_locked  # After the file nothing else adds fields.
  assert list(_load("evaluation.calibrators.Beta.name=beta_calibration", path=str(path)).evaluation.calibrators) == [
    "Beta", "Mine", "TS"]


def test_a_dict_for_a_section_overrides_its_fields():
  config = _load("loss.primary={'name': 'focal', 'gamma': 3}", "optimizer={'momentum': 0.5}")
  assert config.loss.primary.gamma == 3.0 and config.optimizer.momentum == 0.5 and config.optimizer.name == "sgd"
  with pytest.raises(UserError, match="loss is a section: set one of its fields"):
    _load("loss=3")


def test_a_section_has_every_option_of_what_it_names():
  config = _load("loss.secondary.name=soft_binned_ece", "loss.secondary.num_bins=10")
  assert config.loss.secondary.num_bins == 10
  assert config.loss.secondary.temperature == 0.01 and "threshold" not in config.loss.secondary
  config = _load("loss.primary.name=cross_entropy", "loss.primary.label_smoothing=0.1", "loss.secondary.name=")
  assert config.loss.primary.to_dict() == {"name": "cross_entropy", "label_smoothing": 0.1}
  assert config.loss.secondary.to_dict() == {"name": ""}
  assert _load("model.name=wide_resnet", "model.depth=16", "model.width=2").model.dtype == "float32"


@pytest.mark.parametrize(("override", "message"), [
  ("training.num_step=3", r"training\.num_step does not exist: training has .*num_epochs.*Did you mean 'num_steps'"),
  ("trainin.num_steps=3", "trainin.num_steps does not exist: the config has .*Did you mean 'training.num_steps'"),
  ("data.batch_size=64", r"data.batch_size does not exist: data has corruption, .*Did you mean 'training.batch_size'"),
  ("batch_size=64", "batch_size does not exist: the config has aug.* Did you mean 'training.batch_size'"),
  ("learning_rate=1", "Did you mean 'optimizer.learning_rate' or 'stage2.optimizer.learning_rate'"),
  ("los.name=focal", r"does not exist: the config has .*\. Did you mean 'loss'"),  # Many sections have a name.
  ("seed.x=3", "seed.x does not exist: seed has no keys of its own"),
  ("loss.primary.name=fokal", "loss.primary.name must be one of .*focal.*Did you mean 'focal'"),
  ("loss.secondary.name=focal", "loss.secondary.name must be one of .*'' for none.*soft_avuc.*: got 'focal'"),
  ("loss.primary.name=soft_ece", "loss.primary.name must be one of .* Did you mean 'soft_binned_ece'"),
  ("loss.secondary.name=sb_ece", "Did you mean 'soft_binned_ece'"),
  ("loss.secondary.name=sbece", "Did you mean 'soft_binned_ece'"),
  ("loss={'primary': {'name': 'selective_risk'}, 'secondary': {'name': 'selective_risk'}}",
   "loss: the primary and the secondary loss are both 'selective_risk'"),
  ("loss.primary={'name': 'selective_risk', 'confidence': 'max'}", "loss: confidence must be one of 'msp'"),
  ("loss.primary.name=avuc", "loss: threshold must be a number: got None"),
  ("training.validation_loss=ece", "training.validation_loss must be one of auto, objective, nll: got 'ece'"),
  ("model.name=resnet", "model.name must be one of .*mlp, simple_cnn"),
  ("data.name=cifar", "data.name must be one of digits, fashion_mnist_small, npz, .*Did you mean 'cifar10"),
  ("data.name=npz", "data.path must name the .npz file"),
  ("augmentation.name=cutout", "augmentation.name must be one of none, crop_flip"),
  ("optimizer.name=lion", "optimizer.name must be one of sgd, adamw"),
  ("optimizer.schedule=linear", "optimizer.schedule must be one of constant, cosine, piecewise"),
  ("schedule.name=both", "schedule.name must be one of classifier_retraining, interleaved, joint"),
  ("loss.scope=local", "loss.scope must be one of global, device"),
  ("model.dtype=float64", "model.dtype must be one of float32, bfloat16"),
  ("optimizer.boundaries=(0.8, 0.3)", "optimizer.boundaries must hold fractions of the run, in .* and ascending"),
  ("optimizer.warmup_epochs=1000", "optimizer.warmup_epochs must be at most training.num_epochs"),
  ("augmentation={'name': 'crop_flip', 'padding': -1}", r"augmentation: padding must be in \[0, inf\): got -1"),
  ("model.hidden=(999999999,)", "model: training 5 models of .* numbers each takes at least .* of memory; choose a sm"),
  ("evaluation.num_resamples=99999999999", "evaluation.num_resamples must be less than 2.31"),
  ("training.num_epochs=1.5", "training.num_epochs must be of type int: got '1.5'"),
  pytest.param(f"training.num_epochs={'1' * 5000}", "training.num_epochs must be of type int: got '1+…1+", id="long"),
  pytest.param(f"loss={'(' * 500}", "loss is a section: set one of its fields", id="nested"),
  ("loss.weight=heavy", "loss.weight must be of type float: got 'heavy'"),
  ("compare_with_cross_entropy=perhaps", "compare_with_cross_entropy must be of type bool: got 'perhaps'"),
  ("training.num_epochs=0", r"training.num_epochs must be at least 1: got 0"),
  ("optimizer.momentum=1.5", r"optimizer.momentum must be in \[0, 0.9999\]: got 1.5"),
  ("data.validation_fraction=0", "data.validation_fraction must be in"),
  ("optimizer.boundaries=(1.5,)", "optimizer.boundaries must hold fractions"),
  ("loss.primary.gamma=-1.0", r"loss: gamma must be in \[0, inf\): got -1"),
  ("loss.secondary.temperature=0.0", "loss: temperature must be in"),
  ("evaluation.calibrators.TS.name=scaling", "evaluation.calibrators.TS.name must be one of .*temperature_scaling"),
  ("evaluation.calibrators.TS.objective=nlll", "evaluation.calibrators.TS: objective must be one of .*Did you mean"),
  ("evaluation.calibrators.none.name=platt", "calibrators: the label 'none' is that of rows of another kind"),
  ("evaluation.calibrators.auto.name=platt", "calibrators: the label 'auto' is that of rows of another kind"),
  ("evaluation.calibrators={'a/b': {'name': 'platt'}, 'a_b': {'name': 'smart'}}", "label 'a/b' is that of another cal"),
  ("evaluation.ood=('npz',)", "npz needs a file, and data.path is that of the run's own data: give the path"),
  ("evaluation.ood=('digits_lt',)", "'digits_lt' is the run's own data, which is not out of distribution"),
  ("evaluation.ood=('svhn_croped',)", "evaluation.ood must be one of digits, .*Did you mean 'svhn_cropped'"),
  ("evaluation.ood=('a/other.npz', 'b/other.npz')", "'b/other.npz' would be called 'other' in tables, which is "),
  ("evaluation.ood=test.npz", "'test.npz' would be called 'test' in tables, which is the name of another set"),
  ("evaluation.ood=(3,)", "evaluation.ood must be one of .*got 3"),
  ("augmentation.name=a:b", "augmentation.name must be one of none, crop_flip.*got 'a:b'"),
  ("training.patience=3", "training.patience needs training.select 'best' or 'refined'"),
  ("training.batch_size=100", "batch_size must be divisible by the 8 devices .* got 100; use 96, for example"),
  ("schedule={'name': 'two_stage', 'stage2_batch_size': 100}", "must be divisible by the 8 devices .* got 100; use"),
  ("schedule={'name': 'two_stage', 'stage2_batch_size': -8}", r"schedule: stage2_batch_size must be .*: got -8"),
])
def test_a_mistake_is_one_sentence_that_names_the_key(override, message):
  with pytest.raises(UserError, match=message) as error:
    _load(override, num_devices=8)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(("text", "message"), [
  (None, r"there is no file .*; `ls configs` shows \d+\."),
  ("x = 1", "cannot be used .*get_config"),
  ("def get_config(): return 3", "must return a ConfigDict, not int"),
  ("def get_config(): 1 / 0", "ZeroDivisionError"),
  ("def get_config(:", "SyntaxError"),
  (_file("config.training.num_epoch = 3"),
   r"the config has no key 'num_epoch' there; configs/common.py lists them\)\.$"),
  (_file("config.evaluation.calibratros = {}"), "no key 'calibratros'"),
  (_file("config.data.batch_size = 3"), "no key 'batch_size' there; .* Did you mean 'training.batch_size'"),
  (_file("config.data = dict(name='npz', batch_size=3)"),
   "data: option must be one of dir, .*: got 'batch_size'. Did you mean 'training.batch_size'"),
  (_file("config.loss.primary = dict(name='focal', gama=2.0)"),
   "loss.primary: option must be one of gamma, stop_gradient: got 'gama'. Did you mean 'gamma'"),
  (_file("config.unlock().loss.secondary = (dict(name='mmce'), dict(name='aurc'))"),
   "(must be one section|cannot be used)"),
  (_file("config.training.num_epochs = 'x'"), "num_epochs.*type"),
])
def test_a_config_file_that_cannot_be_used_is_said(tmp_path, monkeypatch, text, message):
  monkeypatch.chdir(ROOT)
  path = tmp_path / "c.py"
  if text is not None:
    path.write_text(text)
  with pytest.raises(UserError, match=message) as error:
    _load(path=str(path))
  assert "\n" not in str(error.value)


def test_the_config_of_a_run_is_not_taken_for_a_config_file(tmp_path):
  (tmp_path / "config.json").write_text("{}")
  with pytest.raises(UserError, match="must be a file of Python with get_config.*another kind of file"):
    _load(path=str(tmp_path / "config.json"))


def test_the_runs_own_file_is_not_out_of_distribution(tmp_path):
  (tmp_path / "mine.npz").write_text("")
  (tmp_path / "link.npz").symlink_to(tmp_path / "mine.npz")
  own = ("data.name=npz", f"data.path={tmp_path / 'mine.npz'}")
  for path in ("mine.npz", "link.npz"):
    with pytest.raises(UserError, match=f"{path}' is the run's own data, which is not out of distribution"):
      _load(*own, f"evaluation.ood=('{tmp_path / path}',)")
  assert _load(*own, "evaluation.ood=other.npz,svhn_cropped").evaluation.ood == ("other.npz", "svhn_cropped")


def test_long_tailed_data_are_not_replaced_by_balanced_data_without_a_word():
  path = str(ROOT / "configs/classwise_loss_scaling.py:cifar10_lt.densenet40")
  with pytest.raises(UserError, match="is for long-tailed data, and 'cifar100' is not: use 'cifar100_lt', which is "
                                      "balanced with --config.data.imbalance_ratio=1"):
    _load("data.name=cifar100", path=path)
  assert _load("data.name=cifar100_lt", "data.imbalance_ratio=1", path=path).data.imbalance_ratio == 1.0


@pytest.mark.parametrize(("argument", "message"), [
  ("--steps=3", "overrides look like --config.training.num_steps=20, and --help lists the options"),
  ("--training.num_steps=3", "write --config.training.num_steps=3"), ("--seed", "write --config.seed=VALUE"),
  ("--config.seed", "write --config.seed=VALUE")])
def test_an_argument_that_is_no_override_is_refused(argument, message):
  with pytest.raises(UserError, match=f"the argument '{argument}' is not an override: {message}"):
    run_config.load(DIGITS, [argument])


class _Scaled(nn.Module):
  """A model of one's own whose field is an array, and cannot be hashed."""

  scale: np.ndarray

  @nn.compact
  def __call__(self, images):
    return nn.Dense(2)(images.mean((1, 2)) * self.scale[None])


def test_shapes_are_those_of_the_model_also_where_it_has_an_array_as_a_field():
  for model, width in ((_Scaled(np.ones(3, np.float32)), 2), (nn.Dense(5), 5)):
    for _ in range(2):
      assert [x.shape for x in jax.tree.leaves(checks._shapes(model))] == [(width,), (3, width)]


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_every_loss_takes_mixed_labels(name):
  for loss in losses.PER_EXAMPLE:
    _load(f"augmentation.name={name}", "augmentation.padding=0", f"loss.primary.name={loss}")


@pytest.mark.parametrize("path", ["configs/digits_savuc.py", "configs/cifar100_savuc.py",
                                  "configs/mac_cal.py:cifar10.resnet50.masked"])
def test_what_is_printed_of_a_config_can_be_given_back(path):
  config = run_config.load(path, [])
  lines = run_config.printed(config).splitlines()
  flags = [shlex.split(line)[0] for line in lines if not line.startswith("#")]
  assert run_config.load(path, flags).to_dict() == config.to_dict()
  assert run_config.load(path, flags[::-1]).to_dict() == config.to_dict()
  assert lines[0] == f"# Other than in configs/common.py: {lines.index('# As there:') - 1} of {len(flags)} fields."


def test_the_fields_that_differ_come_first():
  text = run_config.printed(run_config.load("configs/digits_savuc.py", ["--config.training.num_epochs=77"]))
  assert "--config.training.num_epochs=77" in text.partition("# As there:")[0]
