"""Mutated fitted calibrators, published weights and checkpoints."""

import contextlib
import io
import json
import pathlib
import random
import shutil
from typing import Any
import zipfile

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import calibrators, models
from calib_jax.models import pytorch
from calib_jax.training import checkpoints
from tests.adversary import mutations
from tests.adversary.judge import Kind


def _prepare_calibrators(folder: pathlib.Path) -> list[bytes]:
  return mutations.bombs({"temperature": np.float32(1.5)}, ("junk", "temperature"))


def _calibrator(draw: random.Random, floods: list[bytes], folder: pathlib.Path) -> str:
  made = {
    "name": draw.choice(("temperature_scaling", "vector_scaling", "os:system", "builtins:exec", "x", "__class__")),
    "options": draw.choice(({}, {"objective": "nll"}, {"command": "touch canary"}, [], {"objective": 1}, "x"))}
  text = json.dumps(made).encode() if draw.random() < 0.4 else mutations.json_text(
    draw, {"name": "temperature_scaling", "options": {"objective": "nll"}})
  temperature = draw.choice((
    np.float32(1.5), np.float32(1.5), np.float64(1e300), np.int64(2**40), np.array("x"), np.array([1.5, 2]),
    np.array(None), np.float32(np.nan), np.uint64(2**63)))
  arrays = {"temperature": temperature, "layer/kernel": np.ones(3, np.float32)}
  if draw.random() < 0.5:
    arrays["calibrator.json"] = np.frombuffer(text, draw.choice((np.uint8, np.uint8, np.uint8, np.int8, "S1")))
  if draw.random() < 0.1:
    arrays[draw.choice(("layer", "layer/kernel/x", "/", "a//b", "__class__/x", "temperature/x"))] = np.ones(2)
  path = folder / "calibrator.npz"
  path.write_bytes(mutations.archive(draw, arrays, floods))
  mutations.in_place_of(draw, path)
  return str(path)


def _silent_calibrator(sound: Any, path: str, value: Any, said: str) -> str:
  with zipfile.ZipFile(path) as archive:
    members = [(info.filename.removesuffix(".npy"), np.lib.format.read_array(io.BytesIO(archive.read(info))))
               for info in archive.infolist()]
  if len({name for name, _ in members}) < len(members):
    return "" if said.strip() else "an array stands there twice"
  params = value if isinstance(value, dict) else value.params
  for name, expected in members:
    if name == "calibrator.json":
      continue
    node = params
    for part in name.split("/"):
      node = node[part]
    rounded = expected.astype(np.float32).astype(np.float64)
    if not np.array_equal(np.asarray(node, np.float64), rounded, equal_nan=True) and not np.array_equal(node, expected):
      return f"{name} is {np.asarray(node)!r:.80} where the file has {expected!r:.80}"
  return ""


OPTIONS = {"depth": 1, "width": 8, "heads": 1}


def _prepare_weights(folder: pathlib.Path) -> dict[str, np.ndarray]:
  model = models.get("vit_small", num_classes=3, **OPTIONS)
  shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))
  weights, rng = {}, np.random.default_rng(0)
  for path, shape in jax.tree_util.tree_leaves_with_path(shapes):
    names = tuple(part.key for part in path[1:])
    x = rng.normal(size=shape.shape).astype(np.float32)
    weights[pytorch._torch_name("vit_small", names)] = np.ascontiguousarray(
      x.transpose((3, 2, 0, 1) if x.ndim == 4 else (1, 0)) if names[-1] == "kernel" else x)
  return weights


def _weights(draw: random.Random, sound: dict[str, np.ndarray], folder: pathlib.Path) -> pathlib.Path:
  from safetensors.numpy import save

  weights = dict(sound)
  if draw.random() < 0.5:
    name = draw.choice(list(weights))
    x = weights[name]
    weights[name] = draw.choice((x[..., :0], np.array(1, np.float32), x.T.copy(), x.astype(np.float16), x.astype(
      np.float64) * 1e300, x.astype(np.int64), x.ravel(), x[None], x > 0, x.astype(np.uint64), x * np.nan))
    if draw.random() < 0.3:
      weights[draw.choice(("x", "head.weight ", "", "num_batches_tracked", "\x1b[2J", "head.bias"))] = weights.pop(name)
  content = save(weights)
  if draw.random() < 0.5:
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + size])
    way = draw.randrange(4)
    if way == 0:
      content = mutations.changed(content, draw, 8 + size)
    elif way == 1:
      content = draw.choice((0, 1, 2**63, 2**64 - 1, size + 1, 10**8, 2**40)).to_bytes(8, "little") + content[8:]
    else:
      text = mutations.json_text(draw, header)
      content = len(text).to_bytes(8, "little") + text + content[8 + size:]
  path = folder / "weights.safetensors"
  path.write_bytes(content)
  mutations.in_place_of(draw, path)
  return path


def _load_weights(path: pathlib.Path) -> dict:
  return models.from_torch("vit_small", path, **OPTIONS)


def _silent_weights(sound: Any, path: pathlib.Path, variables: dict, said: str) -> str:
  """The numbers of the variables, sorted, must be those of the file."""
  content = path.read_bytes()
  size = int.from_bytes(content[:8], "little")
  header = json.loads(content[8:8 + size])
  kinds = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I64": "<i8", "BOOL": "|b1", "U64": "<u8"}
  expected = []
  for name, entry in header.items():
    if name != "__metadata__" and not pytorch._BUFFERS.search(name):
      begin, end = entry["data_offsets"]
      numbers = np.frombuffer(content[8 + size + begin:8 + size + end], kinds[entry["dtype"]])
      expected.append(numbers.astype(np.float32).reshape(entry["shape"]))
  given = [np.asarray(x) for x in jax.tree.leaves(variables)]
  if not all(np.isfinite(x).all() for x in expected):
    return "" if said.strip() else "weights that are not finite were taken in silence"
  same = np.array_equal(*(np.sort(np.concatenate([x.ravel() for x in xs])) for xs in (given, expected)))
  return "" if same else "the numbers are not those of the file"


def _prepare_checkpoint(folder: pathlib.Path) -> dict:
  rng = np.random.default_rng(0)
  tree = {"state": {"params": {"a": rng.normal(size=(1, 3, 4)).astype(np.float32), "b": rng.normal(size=(1, 9)).astype(
    np.float32)}, "step": np.int32(3)}}
  for step in (2, 3):
    writer = checkpoints.Checkpoints(folder / "seed0")
    writer.save(step, tree if step == 3 else jax.tree.map(lambda x: x + 1, tree))
    writer.close()
  return {"folder": folder / "seed0", "tree": tree}


def _checkpoint(draw: random.Random, sound: dict, folder: pathlib.Path) -> pathlib.Path:
  shutil.copytree(sound["folder"], folder / "seed0")
  for _ in range(draw.randint(1, 2)):
    files = sorted(path for path in (folder / "seed0").rglob("*"))
    path = draw.choice(files)
    if path.is_file() and not mutations.in_place_of(draw, path):
      way = draw.random()
      if way < 0.15:
        path.unlink()
      elif way < 0.3:
        other = draw.choice([other for other in files if other.is_file()])
        path.write_bytes(other.read_bytes())
      elif way < 0.4 and path.read_bytes()[:1] == b"{":
        with contextlib.suppress(ValueError):  # It was changed before.
          path.write_bytes(mutations.json_text(draw, json.loads(path.read_bytes())))
      else:
        path.write_bytes(mutations.changed(path.read_bytes(), draw))
    elif path.is_dir() and draw.random() < 0.3:
      shutil.rmtree(path) if draw.random() < 0.5 else path.rename(path.with_name(draw.choice(("9", "x", "-1", "0"))))
  return folder / "seed0"


def _silent_checkpoint(sound: dict, folder: pathlib.Path, value: Any, said: str) -> str:
  if value is None:
    return ""
  step, tree = value
  expected = sound["tree"]["state"]["params"]
  if tree["state"]["params"].keys() != expected.keys():
    return "the names of the arrays are others"
  by_step = (0, 1) if not (folder / "3").is_dir() or not (folder / "2").is_dir() else (0,)
  same = any(all(np.array_equal(tree["state"]["params"][name], expected[name] + np.float32(more)) for name in expected)
             for more in by_step)
  return "" if same else f"the numbers of step {step} are not those that were written"


def _restore(folder: pathlib.Path) -> Any:
  return checkpoints.newest(folder)


KINDS: dict[str, Kind] = {
  "calibrator.npz": Kind(_prepare_calibrators, _calibrator, calibrators.load, _silent_calibrator, (ValueError,)),
  "weights.safetensors": Kind(_prepare_weights, _weights, _load_weights, _silent_weights),
  "checkpoint": Kind(_prepare_checkpoint, _checkpoint, _restore, _silent_checkpoint),
}
