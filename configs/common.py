"""The fields of every run. The default of a field also sets its type."""

from ml_collections import ConfigDict, config_dict


def get_config() -> ConfigDict:
  """Returns the defaults, which train cross entropy on the embedded digits; other configs change some of them."""
  config = ConfigDict()
  config.seed = 0
  config.num_seeds = 1  # The number of models, with seeds seed, seed + 1, ...; tables show their mean.
  config.compare_with_cross_entropy = False  # Whether to also train plain cross entropy, all else equal, and report it.

  config.data = ConfigDict(dict(name="digits", dir="~/tensorflow_datasets", path="", validation_fraction=0.25,
                                held_out_fraction=0.1))  # For the second phase of the schedule "interleaved".
  config.augmentation = ConfigDict(dict(name="none"))
  config.model = ConfigDict(dict(name="mlp", hidden=(128, 128), dtype="float32"))

  config.head = ConfigDict(dict(name="linear"))

  config.loss = ConfigDict()
  config.loss.primary = ConfigDict(dict(name="cross_entropy"))
  config.loss.secondary = ConfigDict(dict(name=""))  # An empty name means no secondary loss.
  config.loss.weight = 1.0  # The weight of the secondary loss.
  config.loss.reduction = "mean"  # Or "sum", of the primary loss over the global batch.
  config.loss.scope = "global"  # The batch of a secondary loss: "global", or "device" for each device's own share.

  config.optimizer = ConfigDict()
  config.optimizer.name = "sgd"
  config.optimizer.learning_rate = 0.1
  config.optimizer.momentum = 0.9
  config.optimizer.nesterov = False
  config.optimizer.clip_norm = config_dict.placeholder(float)  # The largest global norm of a gradient; None for any.
  config.optimizer.l2 = 0.0  # The coefficient of the squared norm of parameters in the loss.
  config.optimizer.weight_decay = 0.0  # Decoupled from the gradient.
  config.optimizer.coupled_weight_decay = 0.0  # Added to the gradient after clipping, as in PyTorch's SGD.
  config.optimizer.decay_norms_and_biases = False  # Whether these three apply to norms and biases too.
  config.optimizer.schedule = "cosine"
  config.optimizer.boundaries = (0.3, 0.6, 0.8)  # With "piecewise": fractions of the run at which the rate changes.
  config.optimizer.decay = 0.2  # With "piecewise": the factor that multiplies the rate at each boundary.
  config.optimizer.warmup_epochs = 0

  # With "warm_start" and "two_stage": the directory of a run, or a .safetensors file.
  config.stage1 = ConfigDict(dict(workdir="", weights=""))
  # With schedules of two stages: the optimizer of the second stage.
  config.stage2 = ConfigDict(dict(optimizer=config.optimizer.copy_and_resolve_references()))

  config.training = ConfigDict()
  config.training.schedule = "joint"  # Or another of docs/training.md, such as "interleaved" or "two_stage".
  config.training.secondary_rate = 1.0  # With "interleaved": the factor that multiplies updates of the second phase.
  # With "interleaved": whether batch norm uses its running statistics in the second phase.
  config.training.freeze_batch_stats_in_secondary = False
  config.training.peeling_exponent = 1.0  # With "layer_peeled": γ; group i of L freezes after (i/L)^γ of the training.
  config.training.peeling_freezes_batch_stats = True  # Whether frozen groups keep their running batch statistics.
  config.training.batch_size = 128  # The global batch, which is spread evenly over all devices.
  config.training.parallel = "pmap"  # Or "shard_map": how steps are spread over devices, with the same results.
  config.training.accumulation_steps = 1  # The number of parts in which the model gets a batch, to save memory.
  config.training.num_epochs = 60
  config.training.num_steps = config_dict.placeholder(int)  # If set, it overrides num_epochs.
  config.training.stage2_epochs = 40  # With schedules of two stages: the epochs of the second stage.
  # With schedules of two stages: whether the second one computes features once, rather than in each step.
  config.training.cache_features = False
  config.training.seeds_together = True  # Whether seeds train in the same steps, or one after another.
  config.training.log_every_steps = 50
  config.training.evaluate_every_epochs = 10
  # Or "best", the model of the lowest validation loss among the evaluations; or "refined", that of the lowest
  # validation NLL after a temperature is fitted.
  config.training.select = "last"
  # The loss that the validation split is scored by: "objective", what training minimises; "nll"; or "auto", the NLL if
  # the primary loss is one of a whole batch, and else the objective.
  config.training.validation_loss = "auto"
  config.training.select_after_epochs = 0  # With "best" and "refined": evaluations up to this epoch do not count.
  config.training.patience = config_dict.placeholder(int)  # With both: evaluations without a new best before a stop.
  config.training.max_skipped_steps = 0  # The number of steps that may have a loss or gradient that is not finite.

  config.checkpoint = ConfigDict()
  config.checkpoint.keep = 2
  config.checkpoint.every_minutes = 5.0  # Checked at each report (log_every_steps).
  config.checkpoint.every_steps = config_dict.placeholder(int)  # If set, saves also after every so many steps.
  config.profile = 0  # The number of steps to trace for TensorBoard's profiler, from the tenth on.

  config.evaluation = ConfigDict()
  config.evaluation.num_bins = 15
  config.evaluation.num_resamples = 1000  # Resamples of the bootstrap intervals.
  config.evaluation.corruptions = ()  # Corruptions of the test images, each at all evaluation.severities.
  config.evaluation.severities = (1, 2, 3, 4, 5)
  config.evaluation.ood = ()  # Data sets, or .npz files, whose test images are out of distribution.
  config.evaluation.save_features = False  # Whether to save the features of these sets with their predictions.
  config.evaluation.predict_train = False  # Whether to predict the training split too.
  config.evaluation.calibrators = ConfigDict({
    "TS": dict(name="temperature_scaling", objective="nll"),
    "TS-SB-ECE": dict(name="temperature_scaling", objective="soft_binned_ece", form="bin"),
  })
  return config.lock()
