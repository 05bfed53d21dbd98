"""Where examples come from, their splits and batches, and augmentation on device."""

from calib_jax.data.augmentation import AUGMENTATIONS, crop_flip, none, normalize
from calib_jax.data.batches import in_order, steps_per_epoch, training_batch
from calib_jax.data.sources import SOURCES, digits, load, npz, tfds
from calib_jax.data.splits import Examples, Splits, stratified

__all__ = ["AUGMENTATIONS", "SOURCES", "Examples", "Splits", "crop_flip", "digits", "in_order", "load", "none",
           "normalize", "npz", "steps_per_epoch", "stratified", "tfds", "training_batch"]
