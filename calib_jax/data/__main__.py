"""Shows the data set of a config: splits, counts, normalisation, and a picture of 64 augmented training images.

python -m calib_jax.data --config=configs/cifar100_savuc.py --picture=data.png

It also checks the archive of a public data set, and writes it as an ``.npz`` of plain arrays:

python -m calib_jax.data prepare cifar-10-python.tar.gz [--out=DIR/cifar10.npz]

The archives are cifar-10-python.tar.gz, cifar-100-python.tar.gz and tiny-imagenet-200.zip, which keep their names. The
file is written beside the archive as cifar10.npz, cifar100.npz or tiny_imagenet.npz, by which name --config.data.dir
and the experiments' --data find it in their directory.
"""

import argparse
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import config as run_config
from calib_jax import data
from calib_jax._system import process
from calib_jax._system.errors import UserError, printable
from calib_jax.data import archives


def main(arguments: list[str]) -> int:
  """Runs the command line; returns the exit code, which is 2 after a mistake of the user and else 0."""
  try:
    if arguments[:1] == ["prepare"]:
      _prepare(arguments[1:])
    else:
      _show(arguments)
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  return 0


def _show(arguments: list[str]) -> None:
  """Describes the data of a config, and draws them if they are images."""
  parser = argparse.ArgumentParser(prog="python -m calib_jax.data", description=__doc__.splitlines()[0],
                                   allow_abbrev=False)
  parser.add_argument("--config", required=True, help="a file with get_config(), such as configs/digits_savuc.py; it "
                      "is Python and is executed, so use only files that you trust")
  parser.add_argument("--picture", type=pathlib.Path, default=pathlib.Path("data.png"), help="the PNG to write")
  options, overrides = parser.parse_known_args(arguments)
  config = run_config.load(options.config, overrides)
  run_config.check(config, num_devices=1)
  splits = data.load(seed=config.seed, **run_config.data_options(config))
  print(describe(splits))
  if isinstance(splits.train, data.Stream) or splits.train.images.dtype == np.uint8:
    draw(augmented(config, splits), options.picture)
    print(f"\n{printable(options.picture)} shows 64 training images after {config.augmentation.name}")


def _prepare(arguments: list[str]) -> None:
  """Checks an archive, and writes its arrays."""
  parser = argparse.ArgumentParser(prog="python -m calib_jax.data prepare", allow_abbrev=False, description=(
    "Checks the archive of a public data set, and writes it as an .npz of plain arrays."))
  parser.add_argument("archive", type=pathlib.Path, help="the downloaded archive")
  parser.add_argument("--out", type=pathlib.Path, help="the .npz to write; NAME.npz beside the archive by default")
  parser.add_argument("--sha256", default="",
                      help="the SHA-256 that the archive must have, if not that of the published one")
  options = parser.parse_args(arguments)
  names = {value.file: name for name, value in archives.ARCHIVES.items()}
  if (name := names.get(options.archive.name)) is None:
    raise UserError(f"the archive must be called {', '.join(names)}: got {options.archive.name}.")
  out = options.out or options.archive.with_name(f"{name}.npz")
  if out.suffix != ".npz":
    raise UserError(f"--out must end in .npz: got {out}.")
  pool = archives.prepare(name, options.archive, out, options.sha256)
  print(f"{printable(out)} holds {len(pool.train.labels):,} training and {len(pool.test.labels):,} test images of "
        f"{pool.num_classes} classes")


def describe(splits: data.Splits) -> str:
  """Returns a text with the size, image shape and class counts of each split, and the normalisation of images."""
  lines = ["split        examples  image         of each class"]
  for name, part in zip(("train", "validation", "test"), splits[:3], strict=True):
    streamed = isinstance(part, data.Stream)
    counts = "known when read" if streamed else _counts(np.bincount(part.labels, minlength=splits.num_classes))
    shape = "x".join(map(str, data.image_shape(part)))
    lines.append(f"{name:10}  {data.num_examples(part):9,}  {shape:12}  {counts}")
  of_images = isinstance(splits.train, data.Stream) or splits.train.images.dtype == np.uint8
  for name, values in (("mean", splits.mean), ("deviation", splits.std)):
    lines.append(f"{name} of {'train / 255, by channel' if of_images else 'train, by column, to standardise by'}: "
                 f"{', '.join(f'{v:.4f}' for v in values[:20])}{', …' if len(values) > 20 else ''}")
  return "\n".join(lines)


def _counts(counts: np.ndarray) -> str:
  if len(counts) <= 12:
    return " ".join(f"{c:,}" for c in counts)
  return f"{counts.min():,} to {counts.max():,} ({len(counts)} classes, {np.sum(counts == 0)} absent)"


def augmented(config, splits: data.Splits) -> np.ndarray:
  """Returns 64 augmented training images of the first epoch, as grey levels ``[64, H, W, C]``."""
  batch = next(data.training_batches(splits.train, 0, batch_size=64, num_devices=1, seed=config.seed))
  augment = data.build_augmentation(num_classes=splits.num_classes, **config.augmentation)
  image, label, mask = (jnp.asarray(batch[key][0]) for key in ("image", "label", "mask"))
  images = jax.jit(lambda *x: augment(*x, jax.random.key(config.seed), None).images)(image, label, mask)
  views = len(images) // 64
  return np.round(np.asarray(images[views - 1::views])).astype(np.uint8)  # The last view of each.


def draw(images: np.ndarray, path: pathlib.Path) -> None:
  """Writes images as an enlarged PNG of eight rows; a UserError without Pillow, or if the file cannot be written."""
  try:
    from PIL import Image
  except ImportError as error:
    raise UserError("the picture needs Pillow: pip install 'calib-jax[report]'.") from error
  images = images[..., [0, 0, 0]] if images.shape[-1] not in (1, 3) else images
  bordered = np.pad(images, ((0, 64 - len(images)), (1, 1), (1, 1), (0, 0)), constant_values=255)
  height, width, channels = bordered.shape[1:]
  rows = bordered.reshape(8, 8, height, width, channels).transpose(0, 2, 1, 3, 4)
  sheet = rows.reshape(8 * height, 8 * width, channels)
  scale = max(1, 800 // max(sheet.shape[:2]))
  sheet = sheet.repeat(scale, 0).repeat(scale, 1)
  try:
    Image.fromarray(sheet if channels == 3 else sheet[..., 0]).save(path)
  except (OSError, ValueError) as error:
    raise UserError(f"--picture: {path} cannot be written ({error}).") from error


if __name__ == "__main__":
  process.prepare()
  sys.exit(main(sys.argv[1:]))
