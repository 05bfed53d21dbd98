"""Images, pictures, published archives and fitted calibrators are read as the file has them, or they are refused."""

import functools
import io
import itertools
import json
import pathlib
import pickle
import tempfile

from hypothesis import strategies as st
import numpy as np
from PIL import Image
import pytest

from calib_jax import calibrators
from calib_jax.training import data
from calib_jax.training.data import archives
from tests.hostile import files
from tests.hostile.judge import CANARY, attacked, read
from tests.training.data import archive_files

IMAGES, LABELS = np.arange(30 * 16, dtype=np.uint8).reshape(30, 4, 4), np.arange(30) % 3
SOUND = {"images": IMAGES, "labels": LABELS}
WRONG = [SOUND | change for change in (
  *({"images": x} for x in (np.zeros((30, 4, 4, 0), np.uint8), IMAGES * 1.0, np.zeros(30, np.uint8), IMAGES[None, None],
                            IMAGES[:2], IMAGES[:0], IMAGES.astype(np.int8), np.full((30, 4, 4), "a"))),
  *({"labels": x} for x in (LABELS * 1.0, LABELS + 2**31, LABELS - 1, LABELS > 0, LABELS.astype(str), LABELS[:, None],
                            LABELS * 2, LABELS[:29], LABELS * 0)),
  {"images_train": IMAGES, "labels_train": LABELS, "images_test": IMAGES, "labels_test": LABELS})]
RECORDS = [archive_files.jpeg(x) for x in np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), np.uint8)]


def picture(kind, size=8):
  file = io.BytesIO()
  Image.new("RGB", (size, size)).save(file, kind)
  return file.getvalue()


def claiming(size):
  place = RECORDS[0].find(b"\xff\xc0") + 5  # Where its header has the size of a JPEG.
  return RECORDS[0][:place] + size + RECORDS[0][place + 4:]


PICTURES = (
  *map(picture, ("PNG", "GIF", "BMP", "TIFF", "PPM", "WEBP")), picture("JPEG", 7), b"", bytes(100), b"\xff\xd8\xff",
  *map(claiming, (b"\x2e\xe0\x2e\xe0", b"\xff\xff\xff\xff", bytes(4), b"\0\x01\0\x01")), b"\x89PNG\r\n\x1a\n",
  b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n(canary) (w) file\n%%EOF\n")


def stream(first, place=0, offset=None):
  """Returns an archive of a stream of pictures, whose first is another, and so may be one of its offsets."""
  records = [first, *RECORDS[1:]]
  offsets = np.cumsum([0, *map(len, records)])
  offsets[place] = offsets[place] if offset is None else offset
  return files.npz(images=np.frombuffer(b"".join(records), np.uint8), labels=np.arange(12) % 2, offsets=offsets)


@attacked(files.archives(**SOUND) | st.builds(stream, st.builds(files.edited, st.just(RECORDS[0]), files.edits)), [
  *(files.npz(**arrays) for arrays in WRONG), *map(stream, PICTURES), files.npz(("images", 255 - IMAGES), **SOUND),
  files.npz(images=np.asfortranarray(IMAGES), labels=LABELS.astype(">i8")),
  *(stream(RECORDS[0], *case) for case in ((0, -1), (12, 10**12), (3, 2**62), (3, 0)))])
@pytest.mark.slow
def test_images(folder, content):
  (folder / "x.npz").write_bytes(content)
  answer = read(lambda: data.load("npz", seed=0, path=str(folder / "x.npz"), validation_fraction=0.2))
  if answer.refusal:
    return
  assert content not in [files.npz(**arrays) for arrays in WRONG]
  with np.load(folder / "x.npz") as arrays:
    assert len(set(arrays.files)) == len(arrays.files)
    images, labels, cuts = arrays["images"], arrays["labels"], arrays.get("offsets")
  if cuts is not None:
    records = [images[a:b].tobytes() for a, b in itertools.pairwise(cuts)]
    assert all(record.startswith((b"\xff\xd8\xff", b"\x89PNG")) for record in records)
    images = [np.asarray(Image.open(io.BytesIO(record)).convert("RGB")) for record in records]
  given = [(int(label), image.tobytes()) for part in (answer.value.train, answer.value.validation, answer.value.test)
           for image, label in zip(np.asarray(part.images), part.labels, strict=True)]
  expected = [(int(y), np.ascontiguousarray(x).tobytes()) for x, y in zip(images, labels, strict=True)]
  assert sorted(given) == sorted(expected)


MEMBERS = {"cifar10": archive_files.cifar10_members(archive_files.cifar_arrays(per_batch=4)),
           "tiny_imagenet": archive_files.tiny_imagenet_members(side=8)}
CHANGED = [("cifar10", "data_batch_1", x) for x in (
  b"\x80\x02c" + CANARY.encode() + b"\ntouch\n(tR.", b"\x80\x02cos\nsystem\n(U\x04truetR.", b"\x80\x02}.", b"",
  *(pickle.dumps({"labels": [0] * 2} | x, 2) for x in ({}, {"data": 1}, {"data": bytes(6144)}, {3: 1})))] + [
  ("tiny_imagenet", name, x) for name in ("wnids.txt", "val/val_annotations.txt") for x in (
    b"", b"n9\n", b"n9\nn8\nn7\nn7\n", b"\xff\xfe\n", b"val_0.JPEG\n", b"val_0.JPEG\tn1\n", b"/dev/zero\tn8\n")] + [
  ("tiny_imagenet", "val/images/val_0.JPEG", x) for x in (PICTURES[0], PICTURES[7], PICTURES[-1])]


WRITERS = {"cifar10": archive_files.tar, "tiny_imagenet": archive_files.zipped}


@functools.cache
def sound(name):
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "archive"
    WRITERS[name](path, MEMBERS[name])
    return archives.read(name, path, archives.sha256(path))


@attacked(st.tuples(st.sampled_from([("cifar10", "", b""), ("tiny_imagenet", "", b"")]), files.edits), [
  (change, []) for change in CHANGED])
def test_archives(folder, case):
  ((name, member, content), edits), path = case, folder / "archive"
  WRITERS[name](path, MEMBERS[name] | ({member: content} if member else {}))
  trusted = archives.sha256(path)
  path.write_bytes(files.edited(path.read_bytes(), edits))
  answer = read(archives.read, name, path, trusted)
  if not answer.refusal:
    for part, expected in ((answer.value.train, sound(name).train), (answer.value.test, sound(name).test)):
      np.testing.assert_array_equal(part.labels, expected.labels)
      assert np.array_equal(part.images, expected.images) or content == picture("PNG")


MADE, FITTED = {"name": "temperature_scaling", "options": {"objective": "nll"}}, {"temperature": np.float32(1.5)}
DESCRIPTIONS = [MADE | change for change in (
  {}, {"name": "os:system"}, {"name": "builtins:exec"}, {"name": "__class__"}, {"options": {"command": "touch canary"}},
  {"options": []}, {"options": {"objective": 1}}, {"options": "x"}, {"name": 1})]
NUMBERS = (np.float64(1e300), np.int64(2**40), np.array("x"), np.ones(2), np.array(None), np.float32(np.nan),
           np.uint64(2**63), np.longdouble(1))


def described(text):
  return files.npz(("calibrator.json", np.frombuffer(text, np.uint8)), **FITTED)


@attacked(files.archives(**FITTED, layer=np.ones(3)) | st.builds(described, files.json_texts(MADE)), [
  *(described(json.dumps(x).encode()) for x in DESCRIPTIONS), *(files.npz(temperature=x) for x in NUMBERS),
  *(files.npz(("layer/kernel", np.ones(2)), **{name: np.ones(2)}) for name in (
    "layer", "/", "a//b", "__class__/x", "layer/kernel/x", "layer/kernel", "a/" * 40)),
  files.npz(logits=np.ones((3, 2)), labels=np.ones(3, int)), described(files.twice(MADE, "name", "platt"))])
def test_calibrators(folder, content):
  (folder / "x.npz").write_bytes(content)
  answer = read(calibrators.load, folder / "x.npz", refusals=ValueError)
  if answer.refusal:
    return
  with np.load(folder / "x.npz") as arrays, np.errstate(over="ignore"):
    names = set(arrays.files) - {"calibrator.json"}
    assert len(set(arrays.files)) == len(arrays.files) and not {"logits", "labels"} & names
    for name in names:
      node = answer.value if isinstance(answer.value, dict) else answer.value.params
      for part in name.split("/"):
        node = node[part]
      x = arrays[name]
      np.testing.assert_array_equal(node, x.astype(np.float32) if x.dtype.kind == "f" else x)
