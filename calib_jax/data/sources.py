"""Loads data sets by name: digits, ``.npz`` files, TensorFlow Datasets, folders, mixtures, and long-tailed versions."""

from collections.abc import Callable
import functools
import inspect
import logging
import os
import pathlib
import socket
import urllib.parse

import numpy as np

from calib_jax import _checks as checks
from calib_jax._checks.registry import options, register
from calib_jax._system.errors import UserError, short
from calib_jax._system.files import read_bytes, read_npz, read_text
from calib_jax.data import jpeg, record_streams
from calib_jax.data.batches import image_shape
from calib_jax.data.corruptions import corrupt
from calib_jax.data.mixture import gaussian_mixture
from calib_jax.data.splits import Examples, Pool, Splits, checked, long_tailed, stratified, with_validation

# Data sets by name. Their positional parameters are among REQUEST; the keyword-only ones are options in a config.
SOURCES: dict[str, Callable[..., "Pool | record_streams.StreamPool"]] = {}
REQUEST = ("seed", "dir", "path", "corruption", "severity")
LONG_TAIL = "_lt"  # The suffix of long-tailed versions, which have the option ``imbalance_ratio``.

# Sets of TensorFlow Datasets that fit in memory as one uint8 array; all images of a set have the same size.
TFDS_NAMES = ("cifar10", "cifar100", "fashion_mnist", "kmnist", "mnist", "svhn_cropped")


@register(SOURCES)
def digits(seed: int) -> Pool:
  """Loads scikit-learn's 1,797 handwritten digits, 8x8, in 10 classes; a stratified 20% is for test.

  They come from a file of this package, because importing scikit-learn takes longer than all else at a run's start.
  """
  raw = _embedded("digits")
  # Scikit-learn's pixels are from 0 to 16; they are scaled to 0 to 255.
  everything = Examples(np.round(raw["images"] * (255 / 16)).astype(np.uint8)[..., None],
                        raw["labels"].astype(np.int32))
  rest, test = stratified(everything.labels, 0.2, seed, salt=1)
  return Pool(everything.take(rest), everything.take(test), 10)


@register(SOURCES)
def fashion_mnist_small() -> Pool:
  """Loads 4,000 training and 4,000 test images of Fashion-MNIST, 28x28, in 10 classes, from a file of this package.

  ``embedded/README.md`` beside this module has their origin, their licence and how they were drawn.
  """
  arrays = _embedded("fashion_mnist_small")
  train, test = (checked(arrays[f"{split}_images"], arrays[f"{split}_labels"], "fashion_mnist_small")
                 for split in ("train", "test"))
  return Pool(train, test, 10, tuple(map(str, arrays["class_names"])))


def _embedded(name: str) -> dict[str, np.ndarray]:
  """Returns the arrays of a file of this package; ``embedded/README.md`` has their origins and licences."""
  return read_npz(str(pathlib.Path(__file__).parent / "embedded" / f"{name}.npz"))


@register(SOURCES)
def npz(path: str, seed: int) -> Pool:
  """Loads a user's arrays from a file of ``numpy.savez``, without pickle.

  The file holds ``images`` and ``labels``, of which a stratified 20% become the test split, or it holds both of them
  for training and for test, such as ``images_train`` or ``train_images``. Images are uint8 ``[N, H, W, C]`` or
  ``[N, H, W]``, or a uint8 stream of JPEG bytes with ``offsets`` ``[N + 1]``. Labels are integers from 0.
  """
  file = pathlib.Path(path)
  if path and not os.path.exists(file) and os.path.isdir(file.parent):
    near = checks.suggestion(file.name, [sibling.name for sibling in file.parent.glob("*.npz")])
    raise UserError(f"config key data.path: there is no file {short(path)}."
                    + (near or " Write it by numpy.savez, or give the path of another one: --config.data.path=FILE."))
  names = ("images", "labels", "offsets")
  forms = [("{}",), ("{}_train", "{}_test"), ("train_{}", "test_{}")]
  arrays = read_npz(path, tuple(split.format(name) for form in forms for split in form for name in names))
  complete = [form for form in forms if all(split.format(name) in arrays for split in form for name in names[:2])]
  if len(complete) != 1:
    raise UserError(f"{path} must hold images and labels, or images_train, labels_train, images_test, labels_test, and "
                    f"not both; it holds {', '.join(arrays) or 'none'} of these.")
  parts = [_part(path, *(arrays.get(split.format(name)) for name in names)) for split in complete[0]]
  if len(parts) == 1:
    rest, part = stratified(parts[0].labels, 0.2, seed, salt=1)
    parts = [parts[0].take(rest), parts[0].take(part)]
  train, test = parts
  if train.images.shape[1:] != test.images.shape[1:]:
    raise UserError(f"{path}: training and test images differ in shape: "
                    f"{train.images.shape[1:]} and {test.images.shape[1:]}.")
  return Pool(train, test, _num_classes(train.labels, test.labels, path))


def _num_classes(train: np.ndarray, test: np.ndarray, path: str) -> int:
  """Returns the number of classes.

  Raises:
    UserError: if it is 1, or if a class has no training example.
  """
  num_classes = int(max(train.max(), test.max())) + 1
  if num_classes < 2:
    raise UserError(f"{path}: every label is 0; a classifier needs at least two classes.")
  classes = np.unique(train)
  if len(classes) < num_classes:
    absent = next((i for i, label in enumerate(classes) if label != i), len(classes))
    raise UserError(f"{path}: labels go up to {num_classes - 1:,}, but there is no example of class {absent:,} to "
                    "train on: number the classes from 0 without gaps.")
  return num_classes


def _part(path: str, images: np.ndarray, labels: np.ndarray, offsets: np.ndarray | None) -> Examples:
  if offsets is not None:
    images = jpeg.decode(jpeg.slices(images, offsets, path), path)
  return checked(images, labels, path)


def tfds(name: str, dir: str) -> Pool:
  """Loads a data set of TensorFlow Datasets, and downloads and prepares it under ``dir`` if it is not there yet."""
  (train, test), num_classes = _from_tfds(name, dir, ["train", "test"])
  return Pool(train, test, num_classes)


@register(SOURCES)
def cifar10_corrupted(dir: str, corruption: str, severity: int) -> Pool:
  """Loads CIFAR-10 with the published images of ``corruption`` at ``severity`` as its test split."""
  if not corruption:
    raise UserError("config key data.corruption must name the corruption of cifar10_corrupted, such as brightness.")
  pool = tfds("cifar10", dir)
  # TensorFlow Datasets has other names for two corruptions.
  name = {"glass_blur": "frosted_glass_blur", "elastic_transform": "elastic"}.get(corruption, corruption)
  (test,), _ = _from_tfds(f"cifar10_corrupted/{name}_{severity}", dir, ["test"])
  return pool._replace(test=test)


def _tfds_builder(name: str, folder: str, **options):
  """Returns the module ``tensorflow_datasets`` and its builder of a data set.

  Raises:
    UserError: if there is none.
  """
  try:
    import tensorflow_datasets
  except ImportError as error:
    raise UserError(f"data set {name!r} needs TensorFlow Datasets, which is not installed: "
                    "pip install 'calib-jax[data]'.") from error
  logging.getLogger("absl").setLevel(logging.ERROR)  # Hides a warning for every folder that does not exist yet.
  try:
    return tensorflow_datasets, tensorflow_datasets.builder(name, data_dir=folder, try_gcs=False, **options)
  except ValueError as error:
    raise UserError(f"TensorFlow Datasets has no {name!r}.") from error


def _from_tfds(name: str, dir: str, splits: list[str]) -> tuple[list[Examples], int]:
  folder = os.path.expanduser(dir)
  tensorflow_datasets, builder = _tfds_builder(name, folder)
  if not builder.is_prepared():
    try:
      # Without a network the download would retry for minutes, so the host is looked up first.
      socket.getaddrinfo(urllib.parse.urlparse(builder.info.homepage).hostname, 443)
      builder.download_and_prepare()
    except Exception as error:  # Whatever stops a download, the user can do the same about it.
      raise UserError(
        f"data set {name!r} is not prepared in {builder.data_dir} and could not be downloaded there "
        f"({type(error).__name__}): prepare it on a machine with a network by `tfds build {name} --data_dir={folder}` "
        "and copy that folder here, or point --config.data.dir at a folder that has it.") from error
  try:
    arrays = tensorflow_datasets.as_numpy(builder.as_dataset(split=splits, batch_size=-1))
  except Exception as error:
    raise UserError(f"data set {name!r} in {builder.data_dir} cannot be read ({type(error).__name__}: "
                    f"{str(error).splitlines()[0]}): delete that folder and prepare it again.") from error
  return ([checked(part["image"], part["label"], builder.data_dir) for part in arrays],
          builder.info.features["label"].num_classes)


@register(SOURCES)
def imagenet2012(dir: str, corruption: str, severity: int, *, image_size: int = 224,
                 num_workers: int = 0) -> record_streams.StreamPool:
  """Opens ImageNet as TensorFlow Datasets prepares it in array_record files; its validation split is the test split.

  Training images are random resized crops, mirrored half of the time. Test and validation images are centre crops of
  7/8 of the shorter side.

  Args:
    dir: the directory of TensorFlow Datasets.
    corruption: the corruption of the test split; empty for none.
    severity: the severity of the corruption, from 1 to 5.
    image_size: the side of the images in pixels.
    num_workers: the number of processes that decode; 0 to decode in threads.

  Raises:
    UserError: if the data set is not prepared or cannot be read.
  """
  folder = os.path.expanduser(dir)
  tensorflow_datasets, builder = _tfds_builder("imagenet2012", folder, file_format="array_record")
  advice = (f"download ILSVRC2012 from image-net.org into {folder}/downloads/manual, then `tfds build imagenet2012 "
            f"--file_format=array_record --data_dir={folder}`, or point --config.data.dir at a folder that has it.")
  if not builder.is_prepared():
    raise UserError(f"data set 'imagenet2012' is not prepared in {builder.data_dir}: {advice}")
  try:
    decoders = {"image": tensorflow_datasets.decode.SkipDecoding()}
    train, test = builder.as_data_source(["train", "validation"], decoders=decoders)
  except Exception as error:  # The same advice helps with another file format and with damaged files.
    raise UserError(f"data set 'imagenet2012' in {builder.data_dir} cannot be read at random ({type(error).__name__}): "
                    f"{advice}") from error
  common = {"image_size": image_size, "num_workers": num_workers, "source": str(builder.data_dir)}
  train, test = (record_streams.Stream(part, np.arange(len(part)), **common) for part in (train, test))
  return record_streams.StreamPool(train, test._replace(corruption=corruption, severity=severity), 1000)


@register(SOURCES)
def tiny_imagenet(dir: str) -> Pool:
  """Loads Tiny ImageNet from ``dir`` or ``dir/tiny-imagenet-200``; its validation images are the test split.

  Classes are in the order of ``wnids.txt``. Images are 64x64 RGB; grey ones become RGB.
  """
  folder = pathlib.Path(dir).expanduser()
  if not (folder / "wnids.txt").is_file():
    folder = folder / "tiny-imagenet-200"
  try:
    wnids = read_text(folder / "wnids.txt").split()
    classes = {wnid: i for i, wnid in enumerate(wnids)}
    if len(classes) < len(wnids):
      raise ValueError("wnids.txt has a class twice")
    train = [(path, i) for wnid, i in classes.items()
             for path in sorted((folder / "train" / wnid / "images").glob("*.JPEG"))]
    lines = read_text(folder / "val" / "val_annotations.txt").splitlines()
    test = [(folder / "val" / "images" / name, classes[wnid]) for name, wnid in (line.split()[:2] for line in lines)]
    if not train or not test:
      raise ValueError("it has no pictures")
  except (UserError, OSError, KeyError, ValueError, IndexError) as error:
    raise UserError(f"tiny_imagenet needs the unpacked tiny-imagenet-200 (wnids.txt, train, val), which {folder} is "
                    f"not ({type(error).__name__}: {error}): unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip "
                    "and point --config.data.dir at it.") from error
  parts = [checked(jpeg.decode([read_bytes(path) for path, _ in part], str(folder)), np.array([i for _, i in part]),
                   str(folder)) for part in (train, test)]
  return Pool(*parts, len(classes))


register(SOURCES)(gaussian_mixture)
for _name in TFDS_NAMES:
  register(SOURCES, _name)(functools.partial(tfds, _name))
SOURCES |= {f"{_name}{LONG_TAIL}": _source for _name, _source in SOURCES.items()}


def source_options(name: str) -> dict[str, object]:
  """Returns the options of a data set.

  Args:
    name: one of ``SOURCES``.

  Returns:
    The defaults by the names of the options.
  """
  return options(SOURCES[name]) | ({"imbalance_ratio": 0.1} if name.endswith(LONG_TAIL) else {})


def _pool(name: str, request: dict[str, object], *, imbalance_ratio: float | None = None, **chosen):
  """Loads a data set; for a long-tailed version it drops training examples (see ``long_tailed``)."""
  wanted = [p.name for p in inspect.signature(SOURCES[name]).parameters.values() if p.kind != p.KEYWORD_ONLY]
  pool = SOURCES[name](**{key: request[key] for key in wanted}, **chosen)
  if not isinstance(pool, Pool | record_streams.StreamPool):  # A source of one's own may return anything.
    raise UserError(f"config key data.name: {name} must return a calib_jax.data.Pool, not {type(pool).__name__}.")
  if not name.endswith(LONG_TAIL):
    return pool
  labels = record_streams.labels(pool.train) if isinstance(pool, record_streams.StreamPool) else pool.train.labels
  ratio = source_options(name)["imbalance_ratio"] if imbalance_ratio is None else imbalance_ratio
  return pool._replace(train=pool.train.take(long_tailed(labels, pool.num_classes, ratio, request["seed"])))


def load(name: str, *, seed: int, validation_fraction: float, dir: str = "~/tensorflow_datasets", path: str = "",
         corruption: str = "", severity: int = 1, **options) -> Splits:
  """Loads a data set and splits it; the splits depend only on the arguments.

  Args:
    name: one of ``SOURCES``.
    seed: the seed of the splits.
    validation_fraction: the fraction of the examples not for test that are for validation, stratified by class.
    dir: the directory of TensorFlow Datasets, or of a data set's folder.
    path: the file of the data set ``npz``.
    corruption: the corruption of the test split, one of ``CORRUPTIONS``; empty for none.
    severity: the severity of the corruption, from 1 to 5.
    **options: the data set's own options, such as ``imbalance_ratio`` of ``cifar10_lt``.

  Returns:
    The splits.

  Raises:
    UserError: if the data set is unknown, cannot be read or cannot be split so.

  >>> splits = load("digits", seed=0, validation_fraction=0.25)
  >>> [len(part.labels) for part in (splits.train, splits.validation, splits.test)]
  [1078, 360, 359]
  """
  if name not in SOURCES:
    raise UserError(f"data.name must be one of {', '.join(SOURCES)}: got {name!r}.")
  request = {"seed": seed, "dir": dir, "path": path, "corruption": corruption, "severity": severity}
  pool = _pool(name, request, **options)
  if isinstance(pool, record_streams.StreamPool):
    train, validation = record_streams.split(pool.train, validation_fraction, seed)
    return Splits(train, validation, pool.test, pool.num_classes, record_streams.MEAN, record_streams.STD)
  if corruption and not name.startswith("cifar10_corrupted"):
    test = pool.test._replace(images=corrupt(pool.test.images, corruption, severity, seed=seed))
    pool = pool._replace(test=test)
  return with_validation(pool, validation_fraction, seed)


def out_of_distribution(name: str, like: Splits, *, seed: int = 0, dir: str = "~/tensorflow_datasets", path: str = "",
                        **options) -> np.ndarray:
  """Loads test images of another data set, on which a model should be unsure: SVHN for a model of CIFAR, for example.

  Args:
    name: one of ``SOURCES``.
    like: the model's own data, whose image shape the images must have; grey images become RGB if ``like`` is RGB.
    seed: the seed of the data set's splits.
    dir: the directory of TensorFlow Datasets, or of a data set's folder.
    path: the file of the data set ``npz``.
    **options: the data set's own options.

  Returns:
    Images uint8 ``[N, H, W, C]``.

  Raises:
    UserError: if the images have another shape or are those of ``like``, or the data set is streamed.
  """
  if name not in SOURCES:
    raise UserError(f"an out-of-distribution set must be one of {', '.join(SOURCES)}: got {name!r}.")
  pool = _pool(name, {"seed": seed, "dir": dir, "path": path, "corruption": "", "severity": 1}, **options)
  wanted = image_shape(like.test)
  if isinstance(pool, record_streams.StreamPool):
    raise UserError(f"{name} cannot be an out-of-distribution set, because it does not fit in memory.")
  images = pool.test.images
  if images.shape[-1] == 1 and wanted[-1] == 3:
    images = images.repeat(3, axis=-1)
  if images.shape[1:] != wanted:
    raise UserError(f"images of {path or name} have the shape {images.shape[1:]}, those of the model's own data "
                    f"{wanted}.")
  if isinstance(like.test, Examples) and np.array_equal(images, like.test.images):
    raise UserError(f"the images of {path or name} are the model's own test images, which are not out of "
                    "distribution: name another data set or file.")
  return images
