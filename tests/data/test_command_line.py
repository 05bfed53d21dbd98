"""python -m calib_jax.data: what it prints and the picture it leaves."""

import numpy as np
from PIL import Image
import pytest

from calib_jax import data
from calib_jax.data import __main__ as command

DIGITS = "--config=configs/digits_savuc.py"


def test_splits_counts_and_normalisation_are_printed_and_64_images_drawn(tmp_path, capsys):
  picture = tmp_path / "look.png"
  assert command.main([DIGITS, f"--picture={picture}"]) == 0
  printed = capsys.readouterr().out
  splits = data.load("digits", seed=0, validation_fraction=0.25)
  for name, part in zip(("train", "validation", "test"), splits[:3], strict=True):
    line = next(line for line in printed.splitlines() if line.startswith(name))
    assert line.split()[1:] == [f"{len(part.labels):,}", "8x8x1", *map(str, np.bincount(part.labels))]
  assert f"mean of train / 255, by channel: {splits.mean[0]:.4f}" in printed
  drawn = np.asarray(Image.open(picture))
  scale = 800 // 80
  assert drawn.shape == (80 * scale, 80 * scale)
  first = data.training_batch(splits.train, 0, batch_size=64, num_devices=1, seed=0)["image"][0, 9, :, :, 0]
  tile = drawn[::scale, ::scale].reshape(8, 10, 8, 10).transpose(0, 2, 1, 3)[1, 1]
  np.testing.assert_array_equal(tile[1:-1, 1:-1], first)
  assert (tile[[0, -1]] == 255).all()


def test_colours_many_classes_and_few_examples(tmp_path, capsys):
  images = np.random.default_rng(0).integers(0, 256, (80, 6, 7, 3), dtype=np.uint8)
  np.savez(tmp_path / "mine.npz", images=images, labels=np.arange(80) % 20)
  arguments = [DIGITS, f"--picture={tmp_path / 'look.png'}", "--config.data.name=npz",
               f"--config.data.path={tmp_path / 'mine.npz'}", "--config.augmentation.name=mixup",
               "--config.loss.secondary.name=", "--config.loss.primary.name=cross_entropy"]
  assert command.main(arguments) == 0
  assert "(20 classes, 0 absent)" in capsys.readouterr().out
  assert np.asarray(Image.open(tmp_path / "look.png")).shape[-1] == 3


@pytest.mark.parametrize(("arguments", "message"), [
  (["--picture=no/such/folder.png"], "--picture: no/such/folder.png cannot be written"),
  (["--config.data.corruption=rain"], "data.corruption must be one of"),
])
def test_a_mistake_is_one_sentence(arguments, message, tmp_path, capsys):
  assert command.main([DIGITS, f"--picture={tmp_path / 'look.png'}", *arguments]) == 2
  error_message = capsys.readouterr().err
  assert error_message.startswith("error: ") and message in error_message and error_message.count("\n") == 1
