"""What every run shares: each field with its default, which also fixes its type."""

from ml_collections import ConfigDict, config_dict


def get_config() -> ConfigDict:
  """Cross entropy on the embedded digits; a config of its own changes what it needs."""
  config = ConfigDict()
  config.seed = 0
  config.num_seeds = 1  # Models trained, from seed, seed + 1, ...; tables show their mean.
  config.compare_with_cross_entropy = False  # Also train plain cross entropy, all else equal, and report both.

  config.data = ConfigDict(dict(name="digits", dir="~/tensorflow_datasets", path="", validation_fraction=0.25,
                                held_out_fraction=0.1))  # Of training, for the second phase of "interleaved".
  config.augmentation = ConfigDict(dict(name="none"))
  config.model = ConfigDict(dict(name="mlp", hidden=(128, 128), dtype="float32"))

  config.loss = ConfigDict()
  config.loss.primary = ConfigDict(dict(name="cross_entropy"))
  config.loss.secondary = ConfigDict(dict(name=""))  # Empty for none.
  config.loss.weight = 1.0  # Of the secondary loss.
  config.loss.scope = "global"  # The batch a secondary loss sees: "global", or "device" for each device's own share.

  config.optimizer = ConfigDict()
  config.optimizer.name = "sgd"
  config.optimizer.learning_rate = 0.1
  config.optimizer.momentum = 0.9
  config.optimizer.nesterov = False
  config.optimizer.clip_norm = config_dict.placeholder(float)  # Largest global norm of a gradient; None for any.
  config.optimizer.l2 = 0.0  # Coefficient of the squared norm of parameters in the loss.
  config.optimizer.weight_decay = 0.0  # Decoupled.
  config.optimizer.decay_norms_and_biases = False  # True: l2 and weight_decay are of all parameters.
  config.optimizer.schedule = "cosine"
  config.optimizer.boundaries = (0.3, 0.6, 0.8)  # Of "piecewise", as fractions of the run.
  config.optimizer.decay = 0.2  # Of "piecewise", at each boundary.
  config.optimizer.warmup_epochs = 0

  config.training = ConfigDict()
  config.training.schedule = "joint"  # Or "interleaved": the primary loss, then the secondary one on held-out examples.
  config.training.secondary_rate = 1.0  # Of "interleaved": multiplies the updates of the second phase.
  config.training.freeze_batch_stats_in_secondary = False  # Of "interleaved": the second phase uses running statistics.
  config.training.batch_size = 128  # Global: spread evenly over all devices.
  config.training.accumulation_steps = 1  # The batch goes through the model in so many parts, to save memory.
  config.training.num_epochs = 60
  config.training.num_steps = config_dict.placeholder(int)  # Overrides num_epochs.
  config.training.seeds_together = True  # In the same steps, for small models; False: one after another.
  config.training.log_every_steps = 50
  config.training.evaluate_every_epochs = 10
  config.training.select = "last"  # Or "best": the model of the lowest validation loss among the evaluations.
  config.training.select_after_epochs = 0  # Of "best": only evaluations after so many epochs count.
  config.training.patience = config_dict.placeholder(int)  # Of "best": evaluations without a lower one; then stop.
  config.training.max_skipped_steps = 0  # Steps whose loss or gradient is not finite; one more stops the run.

  config.checkpoint = ConfigDict()
  config.checkpoint.keep = 2
  config.checkpoint.every_minutes = 5.0  # At the next report (log_every_steps).
  config.checkpoint.every_steps = config_dict.placeholder(int)  # Also after every so many steps.
  config.profile = 0  # Steps to trace for TensorBoard's profiler, from the tenth on.

  config.evaluation = ConfigDict()
  config.evaluation.num_bins = 15
  config.evaluation.num_resamples = 1000  # Of the bootstrap.
  config.evaluation.calibrators = ConfigDict({
    "TS": dict(name="temperature_scaling", objective="nll"),
    "TS-SB-ECE": dict(name="temperature_scaling", objective="soft_binned_ece", form="bin"),
  })
  return config.lock()
