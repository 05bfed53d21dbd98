"""The library half needs its declared dependencies alone, and imports point down."""

import ast
import graphlib
import re
import sys
import tomllib

import pytest

import calib_jax
from tests.programs import ROOT, python

# Everything else that is installed here, but for what these are made of.
FOREIGN = ("flax", "tensorflow", "tensorflow_datasets", "clu", "orbax", "ml_collections", "sklearn", "matplotlib",
           "jinja2", "grain", "tensorboard", "pytest", "etils")
CORE = ("_checks", "_numerics", "intervals", "losses", "metrics", "calibrators")


def test_losses_metrics_and_calibrators_import_with_the_declared_dependencies_alone(tmp_path):
  code = ("import sys; before = set(sys.modules); import calib_jax;"
          "print({m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names));"
          "print(calib_jax.losses.focal.__name__, calib_jax.focal_map.__name__, 'calib_jax.metrics' in sys.modules);"
          "import calib_jax.losses, calib_jax.metrics, calib_jax.calibrators, calib_jax.confidence; print('fine')")
  done = python("-c", code, tmp_path=tmp_path, blocked=FOREIGN)
  assert done.returncode == 0, done.stderr
  # The package alone imports nothing else, and each module is imported at its first use.
  assert done.stdout == "{'calib_jax'}\nfocal calib_jax.focal_map False\nfine\n"


def test_evaluations_need_nothing_of_training(tmp_path):
  """The command that reads a file, and asks whether a folder is a run, where no package of training is installed."""
  code = ("import sys, numpy as np; r = np.random.default_rng(0); path = sys.argv[1] + '/x.npz'\n"
          "np.savez(path, logits=r.normal(size=(60, 3)).astype(np.float32), labels=np.arange(60) % 3)\n"
          "from calib_jax.cli import evaluate; code = evaluate.main([f'--test={path}', '--num_resamples=20'])\n"
          "import calib_jax.training.run.manifest, calib_jax.cli.apply, calib_jax.cli.compare; sys.exit(code)")
  trained = ("flax", "orbax", "ml_collections", "clu", "tensorflow", "grain", "safetensors")
  done = python("-c", code, tmp_path, tmp_path=tmp_path, blocked=trained)
  assert done.returncode == 0 and "Overconfident by 35.8" in done.stdout, done.stderr or done.stdout


def test_everything_that_the_library_half_imports_is_declared():
  project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
  package, imported = ROOT / "calib_jax", set()
  for path in (*(package.glob("*.py")), *(p for room in CORE for p in (package / room).rglob("*.py"))):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
      names = [node.module] if isinstance(node, ast.ImportFrom) else [
        name.name for name in node.names] if isinstance(node, ast.Import) else []
      imported |= {name.split(".")[0] for name in names if name}
  needed = imported - set(sys.stdlib_module_names) - {"calib_jax", "clu", "onnx"}
  # Extras: clu of ``metrics.collection``, onnx of ``export``.
  assert needed <= {re.match(r"[\w-]+", text)[0] for text in project["dependencies"]}, needed


def test_names_that_are_not_modules_are_attribute_errors():
  assert set(calib_jax.__all__) <= set(dir(calib_jax))
  for name in calib_jax.__all__:
    assert getattr(calib_jax, name).__name__ == f"calib_jax.{name}"
  with pytest.raises(AttributeError, match="module 'calib_jax' has no attribute 'lossess'"):
    calib_jax.lossess  # noqa: B018


def _imports(path):
  """Yields ``(module, name)`` of what a file imports of the package, also within functions."""
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("calib_jax"):
      yield from ((node.module, name.name) for name in node.names)


FLOORS = ("evaluation", "training", "cli")  # All else are functions of arrays, the first floor.


def test_floors_know_nothing_of_those_above_them():
  package = ROOT / "calib_jax"
  for path in package.rglob("*.py"):
    floor, *rest = path.relative_to(package).parts
    if not rest or path.name == "__main__.py":  # The door of the package; and commands begin in theirs.
      continue
    for module, name in _imports(path):
      imported = f"{module}.{name}".split(".")[1]
      assert _floor(imported) <= _floor(floor), f"{path} imports {imported}"


def _floor(name):
  return 1 + FLOORS.index(name) if name in FLOORS else 0


def test_imports_point_down_the_list_of_the_architecture():
  table = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("| room |")[2].partition("\n\n")[0]
  rooms = [name for line in table.splitlines() for name in re.findall(r"`([\w/]+?)(?:/|\.py)`", line.split("|")[1])]
  package = ROOT / "calib_jax"
  top = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
  assert top == {"__init__", "__main__", *(room.split("/")[0] for room in rooms)}

  def room_of(parts):
    return max((room for room in rooms if parts[:len(room.split("/"))] == room.split("/")), key=len)

  for path in package.rglob("*.py"):
    parts = [*path.relative_to(package).with_suffix("").parts]
    if (path.parent == package and path.stem == "__init__") or path.name == "__main__.py":  # Commands begin there.
      continue
    for module, name in _imports(path):
      imported = room_of(f"{module}.{name}".split(".")[1:])
      assert rooms.index(imported) <= rooms.index(room_of(parts)), f"{path} imports {imported}"


def test_no_file_imports_one_that_imports_it():
  paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in (ROOT / "calib_jax").rglob("*.py")}
  imports = {file: {module if module in paths else f"{module}.{name}" for module, name in _imports(path)} & set(paths)
             for file, path in paths.items()}  # Names of a package's front door are of no file.
  order = graphlib.TopologicalSorter(imports)
  order.prepare()  # Raises a CycleError that names the files of a circle.


def test_one_file_has_the_names_of_orbax():
  """Which change in version 1."""
  using = {path.relative_to(ROOT).as_posix() for folder in ("calib_jax", "experiments", "tests") for path in
           (ROOT / folder).rglob("*.py") if re.search(r"^\s*(import|from) orbax", path.read_text("utf-8"), re.M)}
  assert using == {"calib_jax/training/checkpoints.py"}


STATE = """
import asyncio, logging, os, pathlib, sys, warnings
from absl import flags
warnings.simplefilter("ignore", DeprecationWarning)
def state():
  names = ("absl", "asyncio", "jax", "orbax", "tensorflow", "matplotlib")
  return (os.environ | {}, asyncio.SelectorEventLoop.call_soon_threadsafe, flags.FLAGS.is_parsed(), sys.excepthook,
          [logging.getLogger(name).level for name in names], sorted(map(str, logging.getLogger().handlers)))
import flax, orbax.checkpoint  # Of whose own side effects this is no test.
before = state()
import main, calib_jax.cli.main, calib_jax.cli.train, calib_jax.training.run, calib_jax.training.data.sources.tfds
assert not {"tensorflow", "tensorflow_datasets", "matplotlib"} & set(sys.modules)
import numpy as np
from calib_jax.training import Checkpoints, checkpoints
folder, tree = pathlib.Path(sys.argv[1]), {"weights": np.arange(3.0)}
keeper = Checkpoints(folder)
keeper.save(1, tree)
keeper.close()
keeper = Checkpoints(folder)
assert keeper.restore(lambda step: tree)[0] == checkpoints.newest(folder)[0] == 1
keeper.close()
assert state() == before, (state(), before)
"""


def test_imports_and_checkpoints_leave_the_process_as_it_is_and_print_nothing(tmp_path):
  done = python("-c", STATE, tmp_path / "checkpoints", tmp_path=tmp_path)
  assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done.stderr
