"""What every run shares: each field with its default, which also fixes its type."""

from ml_collections import ConfigDict, config_dict


def get_config() -> ConfigDict:
  """Cross entropy on the embedded digits; a config of its own changes what it needs."""
  config = ConfigDict()
  config.seed = 0
  config.num_seeds = 1  # Trained one after another from seed, seed + 1, ...; tables show their mean.
  config.compare_with_cross_entropy = False  # Also train plain cross entropy, all else equal, and report both.

  config.data = ConfigDict(dict(name="digits", dir="~/tensorflow_datasets", path="", validation_fraction=0.25))
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
  config.optimizer.l2 = 0.0  # Coefficient of the squared norm of parameters in the loss.
  config.optimizer.weight_decay = 0.0  # Decoupled.
  config.optimizer.decay_norms_and_biases = False  # True: l2 and weight_decay are of all parameters.
  config.optimizer.schedule = "cosine"
  config.optimizer.boundaries = (0.3, 0.6, 0.8)  # Of "piecewise", as fractions of the run.
  config.optimizer.decay = 0.2  # Of "piecewise", at each boundary.
  config.optimizer.warmup_epochs = 0

  config.training = ConfigDict()
  config.training.schedule = "joint"
  config.training.batch_size = 128  # Global: spread evenly over all devices.
  config.training.num_epochs = 60
  config.training.num_steps = config_dict.placeholder(int)  # Overrides num_epochs.
  config.training.log_every_steps = 50
  config.training.evaluate_every_epochs = 10

  config.evaluation = ConfigDict()
  config.evaluation.num_bins = 15
  config.evaluation.num_resamples = 1000  # Of the bootstrap.
  config.evaluation.calibrators = ConfigDict({
    "TS": dict(name="temperature_scaling", objective="nll"),
    "TS-SB-ECE": dict(name="temperature_scaling", objective="soft_binned_ece", form="bin"),
  })
  return config.lock()
