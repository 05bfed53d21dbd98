"""Data sets by name, their splits and batches, corruptions, and augmentation on the device."""

from calib_jax._checks.registry import import_modules
from calib_jax.training.data.augmentation import (
  AUGMENTATIONS,
  augmix,
  build_augmentation,
  cutmix,
  mixup,
  mixup_inference,
  normalize,
)
from calib_jax.training.data.batches import (
  ORDERS,
  image_shape,
  in_order,
  num_examples,
  steps_per_epoch,
  training_batch,
  training_batches,
)
from calib_jax.training.data.corruptions import CORRUPTIONS, corrupt
from calib_jax.training.data.per_image import crop_flip, none, randaugment, random_erasing
from calib_jax.training.data.record_streams import Stream
from calib_jax.training.data.sources import SOURCES, load, out_of_distribution, source_options
from calib_jax.training.data.sources.corrupted import published, published_files
from calib_jax.training.data.sources.mixture import gaussian_mixture, mixture_posterior
from calib_jax.training.data.splits import EvaluationSet, Examples, Pool, Splits, held_out, long_tailed, stratified

import_modules(__name__)  # A new file of this package registers what it holds.

__all__ = ["AUGMENTATIONS", "CORRUPTIONS", "ORDERS", "SOURCES", "EvaluationSet", "Examples", "Pool", "Splits", "Stream",
           "augmix", "build_augmentation", "corrupt", "crop_flip", "cutmix", "gaussian_mixture", "held_out",
           "image_shape", "in_order", "load", "long_tailed", "mixture_posterior", "mixup", "mixup_inference", "none",
           "normalize", "num_examples", "out_of_distribution", "published", "published_files", "randaugment",
           "random_erasing", "source_options", "steps_per_epoch", "stratified", "training_batch", "training_batches"]
