"""Small archives with the structure of the published ones, for tests."""

import io
import pickle
import tarfile
import zipfile

import numpy as np
from PIL import Image


def cifar_arrays(per_batch=20):
  """Batches of CIFAR-10 as ``{name: (images [N, 32, 32, 3], labels)}``."""
  rng = np.random.default_rng(0)
  names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
  return {name: (rng.integers(0, 256, (per_batch, 32, 32, 3), dtype=np.uint8),
                 np.roll(np.arange(per_batch) % 10, i)) for i, name in enumerate(names)}


def planes(images):
  """The rows of the published pickles: the red plane, the green one, the blue one."""
  return np.ascontiguousarray(images.transpose(0, 3, 1, 2).reshape(len(images), -1))


def py2(value):
  """A pickle as Python 2 wrote them: bytes are its strings."""
  class Python2(pickle._Pickler):
    def save_bytes(self, text):
      self.write(pickle.BINSTRING + len(text).to_bytes(4, "little") + text)
      self.memoize(text)

    dispatch = pickle._Pickler.dispatch | {bytes: save_bytes}

  file = io.BytesIO()
  Python2(file, protocol=2).dump(value)
  return file.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def tar(path, members, folder="cifar-10-batches-py"):
  """Writes a tar.gz of bytes by name."""
  with tarfile.open(path, "w:gz", compresslevel=1) as archive:
    for name, content in members.items():
      info = tarfile.TarInfo(f"{folder}/{name}")
      info.size = len(content)
      archive.addfile(info, io.BytesIO(content))


def cifar10_members(arrays):
  """The members of cifar-10-python.tar.gz by name."""
  meta = {b"num_cases_per_batch": 10000, b"label_names": [f"class {i}".encode() for i in range(10)], b"num_vis": 3072}
  batches = {name: py2({b"batch_label": b"one", b"labels": [int(x) for x in labels], b"data": planes(images),
                        b"filenames": [b"a.png"] * len(labels)}) for name, (images, labels) in arrays.items()}
  return {"batches.meta": py2(meta), "readme.html": b"<html>", **dict(reversed(batches.items()))}


def cifar10(path):
  """Writes a small cifar-10-python.tar.gz; returns its arrays."""
  arrays = cifar_arrays()
  tar(path, cifar10_members(arrays))
  return arrays


def cifar100(path):
  """Writes a small cifar-100-python.tar.gz of 200 training and 100 test images; returns its arrays."""
  rng = np.random.default_rng(1)
  arrays = {name: (rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8), np.arange(n) % 100)
            for name, n in (("train", 200), ("test", 100))}
  members = {name: py2({b"fine_labels": [int(x) for x in labels], b"coarse_labels": [int(x) % 20 for x in labels],
                        b"data": planes(images)}) for name, (images, labels) in arrays.items()}
  members["meta"] = py2({b"fine_label_names": [f"fine {i}".encode() for i in range(100)], b"coarse_label_names": []})
  tar(path, members, "cifar-100-python")
  return arrays


def jpeg(image):
  """The bytes of a JPEG."""
  file = io.BytesIO()
  Image.fromarray(image).save(file, "JPEG", quality=95)
  return file.getvalue()


def tiny_imagenet_members(side=64):
  """The members of tiny-imagenet-200.zip by name; pictures of class i are about 20 i bright."""
  wnids = [f"n{9 - i}" for i in range(3)]
  members = {"wnids.txt": "\n".join(wnids).encode() + b"\n", "words.txt": b"n1\ta word\n"}
  for i, wnid in enumerate(wnids):
    for j in range(4):
      members[f"train/{wnid}/images/{wnid}_{j}.JPEG"] = jpeg(np.full((side, side, 3), 20 * i + j, np.uint8))
    members[f"val/images/val_{i}.JPEG"] = jpeg(np.full((side, side), 20 * i, np.uint8))
  members["val/val_annotations.txt"] = "".join(f"val_{i}.JPEG\t{wnid}\t0\t0\t9\t9\n"
                                               for i, wnid in enumerate(wnids)).encode()
  return members


def zipped(path, members):
  """Writes a zip whose members stand in the folder tiny-imagenet-200."""
  with zipfile.ZipFile(path, "w") as archive:
    for name, content in members.items():
      archive.writestr(f"tiny-imagenet-200/{name}", content)
