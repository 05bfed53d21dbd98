"""The fields of every run. The default of a field also sets its type."""

from ml_collections import ConfigDict, config_dict


def get_config() -> ConfigDict:
  """Returns the defaults, which train cross entropy on the embedded digits; other configs change some of them."""
  config = ConfigDict(dict(
    seed=0,
    num_seeds=1,  # The number of models, with seeds seed, seed + 1, ...; tables show their mean.
    compare_with_cross_entropy=False,  # Whether to also train plain cross entropy, all else equal, and report it.
    data=dict(name="digits", dir="~/tensorflow_datasets", path="", validation_fraction=0.25,
              held_out_fraction=0.1,  # For the second phase of the schedule "interleaved".
              split_seed=-1),  # The seed of one validation split for all seeds; -1 for one split of each seed.
    augmentation=dict(name="none"), head=dict(name="linear"),
    model=dict(name="mlp", hidden=(128, 128), dtype="float32"),
    loss=dict(
      primary=dict(name="cross_entropy"), secondary=dict(name=""),  # An empty name means no secondary loss.
      weight=1.0,  # The weight of the secondary loss.
      reduction="mean",  # Or "sum", of the primary loss over the global batch.
      scope="global"),  # The batch of a secondary loss: "global", or "device" for each device's own share.
    optimizer=dict(
      name="sgd", learning_rate=0.1, momentum=0.9, nesterov=False, warmup_epochs=0,
      clip_norm=config_dict.placeholder(float),  # The largest global norm of a gradient; None for any.
      l2=0.0,  # The coefficient of the squared norm of parameters in the loss.
      weight_decay=0.0,  # Decoupled from the gradient.
      coupled_weight_decay=0.0,  # Added to the gradient after clipping, as in PyTorch's SGD.
      decay_norms_and_biases=False,  # Whether these three apply to norms and biases too.
      sharpness=0.0,  # The radius of sharpness-aware minimisation (SAM), whose steps take twice the time; 0 for none.
      schedule="cosine",
      # With "piecewise": fractions of the run at which the rate changes, and the factor that multiplies it there.
      boundaries=(0.3, 0.6, 0.8), decay=0.2),
    schedule=dict(name="joint"),  # Or another of docs/training.md, such as "interleaved" or "two_stage".
    training=dict(
      batch_size=128,  # The global batch, which is spread evenly over all devices.
      # How steps are spread over devices, with the same results: by "pmap", "shard_map", or "auto", which is pmap for
      # one process and shard_map for several.
      parallel="pmap",
      accumulation_steps=1,  # The number of parts in which the model gets a batch, to save memory.
      num_epochs=60, num_steps=config_dict.placeholder(int),  # If num_steps is set, it overrides num_epochs.
      seeds_together=True,  # Whether seeds train in the same steps, or one after another.
      log_every_steps=50, evaluate_every_epochs=10,
      # Or "best", the model of the lowest validation loss among the evaluations; or "refined", that of the lowest
      # validation NLL after a temperature is fitted.
      select="last",
      # The loss that the validation split is scored by: "objective", what training minimises; "nll"; or "auto", the NLL
      # if the primary loss is one of a whole batch, and else the objective.
      validation_loss="auto",
      # The weights that predict: those after the last step if empty; "ema", their exponential moving average, or "swa",
      # their mean at the ends of the epochs of the last fraction of a stage.
      average="", average_decay=0.999, average_fraction=0.25,
      select_after_epochs=0,  # With "best" and "refined": evaluations up to this epoch do not count.
      patience=config_dict.placeholder(int),  # With both: evaluations without a new best before a stop.
      max_skipped_steps=0),  # The number of steps that may have a loss or gradient that is not finite.
    checkpoint=dict(
      keep=2, every_minutes=5.0,  # The time is checked at each report (log_every_steps).
      every_steps=config_dict.placeholder(int)),  # If set, saves also after every so many steps.
    profile=0,  # The number of steps to trace for TensorBoard's profiler, from the tenth on.
    evaluation=dict(
      num_bins=15, num_resamples=1000,  # Resamples of the bootstrap intervals.
      corruptions=(), severities=(1, 2, 3, 4, 5),  # Corruptions of the test images, each at all these severities.
      ood=(),  # Data sets, or .npz files, whose test images are out of distribution.
      # Whether to save the features of these sets with their predictions, and to predict the training split too.
      save_features=False, predict_train=False,
      calibrators={"TS": dict(name="temperature_scaling", objective="nll")},
      # Whether to fit, beside them, the structured scaling that docs/calibrators.md recommends for so many examples.
      recommended=True,
      # The number of stochastic forward passes whose mean predicts: dropout, stochastic depth. 0 for one without.
      samples=0,
      # The Hessian of a Laplace approximation of the last layer, which tables then also have: "full", "kronecker", or
      # "auto" for the full one up to 2,048 weights.
      laplace="",
      ensemble=False)))  # Whether tables also have the ensemble of all seeds, which needs data.split_seed.
  config.stage2 = ConfigDict(dict(
    optimizer=config.optimizer.copy_and_resolve_references(),  # With schedules of two stages: that of the second stage.
    # With schedules of two stages: the loss per example that the second stage minimises; "" for that of ``loss``.
    loss=dict(name="")))
  config.lock()
  config.evaluation.calibrators.unlock()  # A config adds calibrators of its own: its keys are labels, not fields.
  config.schedule.unlock()  # The options of a schedule are fields only where its name is; they are checked later.
  return config
