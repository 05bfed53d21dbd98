"""Writes a tiny data set named cifar100 in the format of TensorFlow Datasets: python tests/write_cifar100.py DIR."""

import sys

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds


def examples(num_examples, seed):
  """As many examples as asked for, of classes 0, 1, …, each class of a brightness of its own."""
  labels = np.arange(num_examples) % 100
  noise = np.random.default_rng(seed).integers(0, 56, (num_examples, 32, 32, 3))
  images = (noise + 2 * labels[:, None, None, None]).astype(np.uint8)
  ids = [str(i).encode() for i in range(num_examples)]
  return tf.data.Dataset.from_tensor_slices({"id": ids, "image": images, "coarse_label": labels % 20, "label": labels})


if __name__ == "__main__":
  cifar100 = tfds.builder("cifar100", data_dir=sys.argv[1], try_gcs=False)
  tfds.dataset_builders.store_as_tfds_dataset(
    name="cifar100", version=str(cifar100.version), data_dir=sys.argv[1], features=cifar100.info.features,
    split_datasets={"train": examples(200, 0), "test": examples(50, 1)})
