"""Mutated images, fitted calibrators, published weights and checkpoints."""

import io
import json
import pathlib
import random
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import calibrators, data, models
from calib_jax.models import pytorch
from calib_jax.training import checkpoints
from tests.adversary import mutations
from tests.adversary.judge import Kind

IMAGES = np.arange(30 * 16, dtype=np.uint8).reshape(30, 4, 4)
NUMBERS = np.arange(30) % 3
ARRAYS = {"no channels": np.zeros((30, 4, 4, 0), np.uint8), "no pixels": np.zeros((30, 0, 0, 1), np.uint8),
          "float": np.zeros((30, 4, 4)), "five axes": np.zeros((30, 1, 1, 1, 1), np.uint8), "two": np.zeros((2, 4, 4), "u1"),
          "flat": np.zeros(30, np.uint8), "none": np.zeros((0, 4, 4), np.uint8), "signed": np.zeros((30, 4, 4), np.int8),
          "text": np.full((30, 4, 4), "a"), "columns": np.asfortranarray(IMAGES), "channels": IMAGES[..., None]}


def _load_images(path: str) -> data.Splits:
  return data.load("npz", seed=0, path=path, validation_fraction=0.2)


def _load_folder(folder: str) -> data.Splits:
  return data.load("tiny_imagenet", seed=0, dir=folder, validation_fraction=0.25)


def _examples(images: np.ndarray, labels: np.ndarray) -> list[tuple[int, bytes]]:
  return sorted((int(label), np.ascontiguousarray(image).tobytes()) for image, label in zip(
    images.reshape(len(images), -1), labels.ravel(), strict=True))


def _differ(splits: data.Splits, images: np.ndarray, labels: np.ndarray) -> str:
  parts = [splits.train, splits.validation, splits.test]
  have = sorted(example for part in parts for example in _examples(np.asarray(part.images), np.asarray(part.labels)))
  return "" if have == _examples(np.asarray(images, np.uint8), labels) else "the examples are not those of the file"


def _raw(draw: random.Random, floods: list[bytes], folder: pathlib.Path) -> str:
  labels = NUMBERS if draw.random() < 0.7 else draw.choice((
    NUMBERS * 1.0, NUMBERS + 2**31, NUMBERS.astype(np.uint64), np.full(30, 2**64 - 1, np.uint64), NUMBERS - 1, NUMBERS > 0,
    NUMBERS.astype(str), NUMBERS[:, None], NUMBERS * 10**9, NUMBERS * 2, NUMBERS[:29], NUMBERS * 0, NUMBERS.astype(">i8")))
  arrays = {"images": IMAGES if draw.random() < 0.7 else draw.choice(list(ARRAYS.values())), "labels": labels}
  if draw.random() < 0.2:
    name = draw.choice(("images_train", "train_images", "labels_test", "offsets", "Images"))
    arrays[name] = draw.choice((IMAGES, NUMBERS, np.arange(31)))
  path = folder / "images.npz"
  path.write_bytes(mutations.archive(draw, arrays, floods))
  mutations.in_place_of(draw, path)
  return str(path)


def _silent_images(sound: Any, path: str, splits: data.Splits, said: str) -> str:
  members = plain(path)
  if len({name for name, _ in members}) < len(members):
    return "" if said.strip() else "an array stands there twice"
  arrays = dict(members)
  images = arrays["images"]
  if "offsets" in arrays:
    images, fault = _decoded([images[a:b].tobytes() for a, b in zip(arrays["offsets"], arrays["offsets"][1:],
                                                                    strict=False)])
    if fault:
      return fault
  return _differ(splits, images, arrays["labels"])


def plain(path: str) -> list[tuple[str, np.ndarray]]:
  """Reads the arrays of an ``.npz``, with those that stand there twice, where the project reads images from."""
  import zipfile

  with zipfile.ZipFile(path) as archive:
    return [(info.filename.removesuffix(".npy"), np.lib.format.read_array(io.BytesIO(archive.read(info))))
            for info in archive.infolist() if info.filename.removesuffix(".npy") in ("images", "labels", "offsets")]


def _decoded(records: list[bytes]) -> tuple[np.ndarray, str]:
  """Decodes records; also returns what is wrong with taking them, or ""."""
  from PIL import Image

  images = []
  for record in records:
    if not record.startswith((b"\xff\xd8\xff", b"\x89PNG")):
      return np.array([]), f"a record that is neither JPEG nor PNG was decoded: {record[:12]!r}"
    images.append(np.asarray(Image.open(io.BytesIO(record), formats=("JPEG", "PNG")).convert("RGB")))
  return np.stack(images), ""


EPS = (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(canary) (w) file closefile\nshowpage\n%%EOF\n")


def _picture(draw: random.Random, pixels: np.ndarray, sound: dict) -> bytes:
  """Returns a mutated picture of ``pixels``: other formats, other sizes, changed bytes."""
  from PIL import Image

  kind = draw.choice(("JPEG", "JPEG", "JPEG", "PNG", "GIF", "BMP", "TIFF", "PPM", "WEBP", "EPS", "size", "flood", "bytes"))
  if kind == "EPS":
    return draw.choice((EPS, b"\xc5\xd0\xd3\xc6" + EPS, b"%PDF-1.4\n", b"#define x_width 8\n#define x_height 8\n"))
  if kind == "bytes":
    return draw.choice((b"", b"\0" * 100, b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", draw.randbytes(50)))
  if kind == "flood":
    return sound["flood"]
  image = Image.fromarray(pixels)
  if kind == "size":
    kind, image = "JPEG", image.resize((draw.randint(1, 9), draw.randint(1, 9)))
  file = io.BytesIO()
  image.save(file, kind)
  content = bytearray(file.getvalue())
  place = content.find(b"\xff\xc0")
  if kind == "JPEG" and place > 0 and draw.random() < 0.4:  # The size that its header claims.
    content[place + 5:place + 9] = draw.choice((b"\x2e\xe0\x2e\xe0", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\x01\0\x01"))
  return bytes(content) if draw.random() < 0.3 else mutations.changed(bytes(content), draw)


def _prepare_pictures(folder: pathlib.Path) -> dict:
  from PIL import Image

  file = io.BytesIO()  # A picture of one colour: 192 MB of pixels in 0.2 MB.
  Image.new("RGB", (8000, 8000)).save(file, "PNG", compress_level=9)
  rng = np.random.default_rng(0)
  pixels = rng.integers(0, 256, (12, 8, 8, 3), np.uint8)
  records = []
  for image in pixels:
    record = io.BytesIO()
    Image.fromarray(image).save(record, "JPEG")
    records.append(record.getvalue())
  return {"flood": file.getvalue(), "pixels": pixels, "records": records,
          "bombs": mutations.bombs({"images": IMAGES, "labels": NUMBERS}, ("junk", "images"))}


def _jpeg(draw: random.Random, sound: dict, folder: pathlib.Path) -> str:
  records = list(sound["records"])
  way = draw.random()
  if way < 0.6:
    place = draw.randrange(12)
    records[place] = _picture(draw, sound["pixels"][place], sound)
  offsets = np.cumsum([0, *map(len, records)])
  if way > 0.8:
    place = draw.randrange(13)
    offsets[place] = draw.choice((0, -1, 10**12, offsets[place] + 3, 2**62, offsets[place - 1]))
  arrays = {"images": np.frombuffer(b"".join(records), np.uint8), "labels": np.arange(12) % 2, "offsets": offsets}
  path = folder / "images.npz"
  if 0.6 < way < 0.8:
    path.write_bytes(mutations.archive(draw, arrays, sound["bombs"]))
  else:
    np.savez(path, **arrays)
  mutations.in_place_of(draw, path)
  return str(path)


def _folder(draw: random.Random, sound: dict, folder: pathlib.Path) -> str:
  (folder / "wnids.txt").write_text("n1\nn2\n")
  lines = []
  for number, record in enumerate(sound["records"]):
    wnid = f"n{1 + number % 2}"
    place = folder / "train" / wnid / "images" if number < 8 else folder / "val" / "images"
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{number}.JPEG").write_bytes(record)
    if number >= 8:
      lines.append(f"{number}.JPEG\t{wnid}\t0\t0\t1\t1")
  (folder / "val" / "val_annotations.txt").write_text("\n".join(lines))
  files = sorted(path for path in folder.rglob("*") if path.is_file())
  texts = [path for path in files if path.suffix == ".txt"]
  path = draw.choice(texts if draw.random() < 0.35 else files)
  if path.suffix == ".txt" and draw.random() < 0.4:
    path.write_text(draw.choice(("", "n1\n", "n1\nn1\nn2\n", "n2\nn1\n", "../n1\n", "\x00", "n1 n2\n", "n3\n", "x" * 10**5,
                                 "8.JPEG\tn1\n../../wnids.txt\tn2\n", "8.JPEG\tn1\n/dev/zero\tn2\n", "8.JPEG\n",
                                 "8.JPEG\tn1\n8.JPEG\tn1\n9.JPEG\tn2\n9.JPEG\tn2\n")))
  elif path.suffix == ".txt":
    path.write_bytes(mutations.changed(path.read_bytes(), draw))
  else:
    path.write_bytes(_picture(draw, sound["pixels"][int(path.stem)], sound))
  mutations.in_place_of(draw, path)
  return str(folder)


def _silent_folder(sound: dict, case: str, splits: data.Splits, said: str) -> str:
  folder = pathlib.Path(case)
  wnids = (folder / "wnids.txt").read_text().split()
  if len(set(wnids)) < len(wnids):
    return "" if said.strip() else "a class stands twice in wnids.txt"
  records, labels = [], []
  for label, wnid in enumerate(wnids):
    for path in sorted((folder / "train" / wnid / "images").glob("*.JPEG")):
      records.append(path.read_bytes())
      labels.append(label)
  for line in (folder / "val" / "val_annotations.txt").read_text().splitlines():
    name, wnid = line.split()[:2]
    records.append((folder / "val" / "images" / name).read_bytes())
    labels.append(wnids.index(wnid))
  images, fault = _decoded(records)
  return fault or _differ(splits, images, np.array(labels))


def _prepare_calibrators(folder: pathlib.Path) -> list[bytes]:
  return mutations.bombs({"temperature": np.float32(1.5)}, ("junk", "temperature"))


def _calibrator(draw: random.Random, floods: list[bytes], folder: pathlib.Path) -> str:
  made = {"name": draw.choice(("temperature_scaling", "vector_scaling", "os:system", "builtins:exec", "x", "__class__")),
          "options": draw.choice(({}, {"objective": "nll"}, {"command": "touch canary"}, [], {"objective": 1}, "x"))}
  text = json.dumps(made).encode() if draw.random() < 0.4 else mutations.json_text(
    draw, {"name": "temperature_scaling", "options": {"objective": "nll"}})
  arrays = {"temperature": draw.choice((np.float32(1.5), np.float32(1.5), np.float64(1e300), np.int64(2**40), np.array("x"),
                                        np.array([1.5, 2]), np.array(None), np.float32(np.nan), np.uint64(2**63))),
            "layer/kernel": np.ones(3, np.float32)}
  if draw.random() < 0.5:
    arrays["calibrator.json"] = np.frombuffer(text, draw.choice((np.uint8, np.uint8, np.uint8, np.int8, "S1")))
  if draw.random() < 0.1:
    arrays[draw.choice(("layer", "layer/kernel/x", "/", "a//b", "__class__/x", "temperature/x"))] = np.ones(2)
  path = folder / "calibrator.npz"
  path.write_bytes(mutations.archive(draw, arrays, floods))
  mutations.in_place_of(draw, path)
  return str(path)


def _silent_calibrator(sound: Any, path: str, value: Any, said: str) -> str:
  import zipfile

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
    if not np.array_equal(np.asarray(node, np.float64), expected.astype(np.float32).astype(np.float64), equal_nan=True) \
        and not np.array_equal(np.asarray(node), expected):
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
  "images.npz": Kind(lambda folder: mutations.bombs({"images": IMAGES, "labels": NUMBERS}, ("junk", "images", "offsets")),
                     _raw, _load_images, _silent_images),
  "images.npz of JPEG": Kind(_prepare_pictures, _jpeg, _load_images, _silent_images),
  "tiny_imagenet": Kind(_prepare_pictures, _folder, _load_folder, _silent_folder),
  "calibrator.npz": Kind(_prepare_calibrators, _calibrator, calibrators.load, _silent_calibrator, (ValueError,)),
  "weights.safetensors": Kind(_prepare_weights, _weights, _load_weights, _silent_weights),
  "checkpoint": Kind(_prepare_checkpoint, _checkpoint, _restore, _silent_checkpoint),
}
