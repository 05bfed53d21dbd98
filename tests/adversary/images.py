"""Mutated images: arrays and JPEG streams in an ``.npz``, and the folder of Tiny ImageNet."""

import io
import pathlib
import random
from typing import Any
import zipfile

import numpy as np

from calib_jax import data
from tests.adversary import mutations
from tests.adversary.judge import Kind

IMAGES = np.arange(30 * 16, dtype=np.uint8).reshape(30, 4, 4)
NUMBERS = np.arange(30) % 3
ARRAYS = {"no channels": np.zeros((30, 4, 4, 0), np.uint8), "no pixels": np.zeros((30, 0, 0, 1), np.uint8),
          "float": np.zeros((30, 4, 4)), "five axes": np.zeros((30, 1, 1, 1, 1), np.uint8),
          "two": np.zeros((2, 4, 4), np.uint8), "flat": np.zeros(30, np.uint8), "none": np.zeros((0, 4, 4), np.uint8),
          "signed": np.zeros((30, 4, 4), np.int8), "text": np.full((30, 4, 4), "a"),
          "columns": np.asfortranarray(IMAGES), "channels": IMAGES[..., None]}


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
    NUMBERS * 1.0, NUMBERS + 2**31, NUMBERS.astype(np.uint64), np.full(30, 2**64 - 1, np.uint64), NUMBERS - 1,
    NUMBERS > 0, NUMBERS.astype(str), NUMBERS[:, None], NUMBERS * 10**9, NUMBERS * 2, NUMBERS[:29], NUMBERS * 0,
    NUMBERS.astype(">i8")))
  arrays = {"images": IMAGES if draw.random() < 0.7 else draw.choice(list(ARRAYS.values())), "labels": labels}
  if draw.random() < 0.2:
    name = draw.choice(("images_train", "train_images", "labels_test", "offsets", "Images"))
    arrays[name] = draw.choice((IMAGES, NUMBERS, np.arange(31)))
  path = folder / "images.npz"
  path.write_bytes(mutations.archive(draw, arrays, floods))
  mutations.in_place_of(draw, path)
  return str(path)


def _prepare_images(folder: pathlib.Path) -> list[bytes]:
  return mutations.bombs({"images": IMAGES, "labels": NUMBERS}, ("junk", "images", "offsets"))


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


EPS = (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(canary) (w) file closefile\nshowpage\n"
       b"%%EOF\n")


def _picture(draw: random.Random, pixels: np.ndarray, sound: dict) -> bytes:
  """Returns a mutated picture of ``pixels``: other formats, other sizes, changed bytes."""
  from PIL import Image

  kind = draw.choice(("JPEG", "JPEG", "JPEG", "PNG", "GIF", "BMP", "TIFF", "PPM", "WEBP", "EPS", "size", "flood",
                      "bytes"))
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

  file, side = io.BytesIO(), int((mutations.FLOOD / 6) ** 0.5)  # A picture of one colour: 200 MB of pixels in 0.2 MB.
  Image.new("RGB", (side, side)).save(file, "PNG")
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
    path.write_text(draw.choice(("", "n1\n", "n1\nn1\nn2\n", "n2\nn1\n", "../n1\n", "\x00", "n1 n2\n", "n3\n",
                                 "x" * 10**5, "8.JPEG\tn1\n../../wnids.txt\tn2\n", "8.JPEG\tn1\n/dev/zero\tn2\n",
                                 "8.JPEG\n",
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


KINDS: dict[str, Kind] = {
  "images.npz": Kind(_prepare_images, _raw, _load_images, _silent_images),
  "images.npz of JPEG": Kind(_prepare_pictures, _jpeg, _load_images, _silent_images),
  "tiny_imagenet": Kind(_prepare_pictures, _folder, _load_folder, _silent_folder),
}
