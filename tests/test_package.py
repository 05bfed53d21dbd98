"""The wheel holds what it needs: installed by itself, it is imported, evaluates and trains."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
import types
import zipfile

import numpy as np
import pytest

import calib_jax
from calib_jax.cli import main
from calib_jax.evaluation.reports import outputs
from tests.programs import BLOCKER, ROOT

SOURCES = ("calib_jax", "configs", "pyproject.toml", "setup.py", "README.md", "LICENSE")


def _run(*main, **options):
  done = subprocess.run([str(part) for part in main], capture_output=True, text=True, check=False, **options)
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
  """The wheel that is built from a copy of the sources, and the directory it is installed in."""
  folder = tmp_path_factory.mktemp("package")
  (folder / "source").mkdir()
  for name in SOURCES:
    (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, folder / "source" / name)
  pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
  _run(*pip, "wheel", folder / "source", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder)
  wheel, = folder.glob("*.whl")
  _run(*pip, "install", "--no-deps", "--no-index", "--target", folder / "site", wheel)
  return wheel, folder / "site"


def _environment(site):
  # Importing TensorFlow and Matplotlib takes longer than the rest of a short run.
  (site / "sitecustomize.py").write_text(BLOCKER.format(names={"tensorflow", "tensorboard", "matplotlib"}))
  return {**os.environ, "PYTHONPATH": str(site), "JAX_PLATFORMS": "cpu",
          "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=1")}


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_config_and_nothing_else(installed):
  wheel, _ = installed
  expected = {path.relative_to(ROOT).as_posix() for path in (ROOT / "calib_jax").rglob("*.py")} | {
    f"calib_jax/configs/{path.name}" for path in (ROOT / "configs").glob("*.py")}
  names = zipfile.ZipFile(wheel).namelist()
  assert {name for name in names if name.endswith(".py")} == expected
  embedded = {f"calib_jax/training/data/embedded/{name}"
              for name in ("fashion_mnist_small.npz", "digits.npz", "LICENSE", "README.md")}
  assert {"calib_jax/py.typed", "calib_jax/losses/__init__.pyi", *embedded} <= set(names)
  assert any(name.endswith("licenses/LICENSE") for name in names)
  assert {name.split("/")[0] for name in names} == {"calib_jax", f"calib_jax-{calib_jax.__version__}.dist-info"}
  assert wheel.name == f"calib_jax-{calib_jax.__version__}-py3-none-any.whl"


def test_the_page_of_installation_lists_every_extra_and_the_tests_have_what_serving_needs():
  extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
  page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
  listed = [re.findall("`(.*?)`", line.split("|")[1]) for line in page.splitlines() if line.startswith("| `")]
  assert {name for names in listed for name in names} == set(extras)
  need, = extras["export"]
  assert f"\n{need.split('>=')[0]}==" in (ROOT / "requirements.txt").read_text(encoding="utf-8")


def _python(version):
  """The command of a Python of this machine, also of one that only pyenv knows; or None."""
  pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob(f"versions/{version}.*/bin/python")
  for command in (shutil.which(f"python{version}"), *sorted(pyenv)):
    if command and not subprocess.run([command, "--version"], capture_output=True, check=False).returncode:
      return command
  return None


@pytest.mark.slow
@pytest.mark.parametrize("version", re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())[::2])
def test_the_wheel_installs_compiles_and_names_its_version_on_every_second_python(version, installed, tmp_path):
  if not (command := _python(version)):
    pytest.skip(f"there is no Python {version}")
  _run(command, "-m", "venv", "--without-pip", tmp_path)
  _run(sys.executable, "-m", "pip", "--python", tmp_path, "install", "--no-deps", "--no-index", "--no-compile",
       installed[0])
  _run(tmp_path / "bin/python", "-W", "error", "-m", "compileall", "-q", tmp_path / "lib")
  assert _run(tmp_path / "bin/calib-jax", "--version") == f"calib-jax {calib_jax.__version__}\n"


LIBRARY = """
import calib_jax, jax.numpy as jnp
assert "site" in calib_jax.__file__, calib_jax.__file__
logits, labels = jnp.array([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]]), jnp.array([0, 2])
params = calib_jax.calibrators.temperature_scaling().fit(logits, labels)
print(calib_jax.losses.focal(logits, labels).shape, sorted(params)[-1], calib_jax.metrics.CONVENTIONS is not None)
"""


@pytest.mark.slow
def test_what_is_installed_is_imported_evaluates_and_trains(installed, tmp_path):
  site, environment = installed[1], _environment(installed[1])
  assert _run(sys.executable, "-c", LIBRARY, cwd=tmp_path, env=environment) == "(2,) temperature True\n"
  rng = np.random.default_rng(0)
  for name in ("val", "test"):
    np.savez(tmp_path / name, logits=rng.normal(size=(100, 3)).astype(np.float32), labels=np.arange(100) % 3)
  program = [sys.executable, site / "bin" / "calib-jax"]
  table = _run(*program, "evaluate", "--fit", "val.npz", "--test", "test.npz", "--num_resamples", "20", cwd=tmp_path,
               env=environment)
  assert "| TS" in table and "accuracy" in table
  # The configs and the demo's images come with the package, and are found where the present directory has none.
  text = _run(*program, "train", "--config=configs/fashion_mnist_small_savuc.py", "--workdir=run",
              "--config.num_seeds=1",
              "--config.training.num_steps=2", "--config.evaluation.num_resamples=2", "--config.model.hidden=(8,)",
              "--config.compare_with_cross_entropy=False", cwd=tmp_path, env=environment)
  assert "done in" in text and (tmp_path / "run/results.json").exists()
  with np.load(tmp_path / "run/predictions/test_seed0.npz") as predictions:
    assert len(predictions["logits"]) == 4000 and predictions["classes"][6] == "shirt"


@pytest.mark.parametrize(("arguments", "code", "text"), [
  (["--help"], 0, "usage: calib-jax {train,evaluate,compare,apply,watch}"),
  ([], 0, "\n  evaluate  calibrates and measures"),
  (["--version"], 0, f"calib-jax {calib_jax.__version__}\n"),
  (["trian"], 2, "error: calib-jax has no command 'trian': type calib-jax with train, evaluate, compare, apply, "
                 "watch.\n")])
def test_the_command_says_what_it_can_do(arguments, code, text, monkeypatch, capsys):
  monkeypatch.setattr(sys, "argv", ["calib-jax", *arguments])
  assert main.main() == code
  output = capsys.readouterr()
  assert text in output.out + output.err


def test_the_package_is_a_command_too(tmp_path):
  environment = {**os.environ, "PYTHONPATH": str(ROOT)}
  assert _run(sys.executable, "-m", "calib_jax", cwd=tmp_path, env=environment) == f"{main.HELP}\n"


def test_what_is_installed_says_how_it_was_started(monkeypatch):
  monkeypatch.setattr(main.importlib, "import_module", lambda name: types.SimpleNamespace(main=outputs.command))
  monkeypatch.setattr(sys, "argv", ["/env/bin/calib-jax", "evaluate", "--fit", "my val.npz"])
  assert main.main() == "calib-jax evaluate --fit 'my val.npz'"


def test_a_program_whose_packages_are_missing_says_what_to_install(monkeypatch, capsys):
  def missing(name):
    raise ModuleNotFoundError("No module named 'flax'", name="flax")

  monkeypatch.setattr(main.importlib, "import_module", missing)
  monkeypatch.setattr(sys, "argv", ["calib-jax", "train"])
  assert main.main() == 2
  assert capsys.readouterr().err == ("error: calib-jax train needs flax, which is not installed: "
                                     "pip install 'calib-jax[train,report]'.\n")


def test_the_citation_names_this_version():
  text = pathlib.Path(ROOT / "CITATION.cff").read_text(encoding="utf-8")
  assert re.search(r"^version: (.*)$", text, re.MULTILINE)[1] == calib_jax.__version__
