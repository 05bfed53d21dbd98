"""Executes a run from its config to its report, and loads a finished run with ``Run.load``.

For example::

  run = Run.load("runs/digits_savuc")
  logits = run.predict(images, seed=0)
  run.evaluate({"mine": (images, labels)})["mine"]["none"]["ece"].estimate
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import pathlib
import sys
import time
from typing import Any, NamedTuple

import jax
from jax.typing import ArrayLike
from ml_collections import ConfigDict
import numpy as np

from calib_jax import calibrators, data, evaluation, training
from calib_jax._system import compilation
from calib_jax._system.errors import UserError, printable
from calib_jax._system.files import stem
from calib_jax.run import lock, manifest, outputs
from calib_jax.run.data import additional_sets, foreign_sets, load_splits
from calib_jax.run.directory import check_workdir, create, read_config, write_config
from calib_jax.run.methods import CROSS_ENTROPY, method_name, plain_cross_entropy, remarks
from calib_jax.training.distributed import processes

SPLITS = ("validation", "test")


def execute(config: ConfigDict, workdir: pathlib.Path, hooks: Sequence[Callable] = (), *, reports: bool = True) -> None:
  """Trains, calibrates, evaluates and reports. The first process writes everything in ``workdir``.

  Args:
    config: a complete config, as ``config.load`` returns it.
    workdir: the run's directory. Models that it already holds are not trained again.
    hooks: the hooks of ``training.train``.
    reports: whether to evaluate and report; if not, the run ends with its predictions.

  Raises:
    UserError: for a mistake of the user, or if another run holds ``workdir``.
    training.Stopped: after a signal.
  """
  started = time.monotonic()
  check_workdir(workdir)
  methods = {method_name(config): (config, workdir)}
  if config.compare_with_cross_entropy and CROSS_ENTROPY not in methods:
    methods = {CROSS_ENTROPY: (plain_cross_entropy(config), workdir / "baseline"), **methods}
  training.check_weights(config)
  splits = load_splits(config, config.seed)  # Raises an error about the data before anything is written.
  for method_config, _ in methods.values():
    training.check_phases(method_config, splits)
  not_kept = compilation.keep()
  if not processes.is_first():  # The first process holds the directory for all of them.
    for method, (method_config, folder) in methods.items():
      train_seeds(method_config, folder, method, hooks)
    return
  for name, load in foreign_sets(config, config.seed):
    if not all(prediction_file(folder, name, seed).exists() for _, folder in methods.values()
               for seed in _seeds(config)):
      load()  # Raises an error about these files too.
  create(workdir)
  with lock.held(workdir):
    damage = manifest.begin(workdir)
    for sentence in (write_config(config, workdir), not_kept, *remarks(config)):
      if sentence:
        say(sentence)
    manifest.keep(workdir, damage)
    for method, (method_config, folder) in methods.items():
      train_seeds(method_config, folder, method, hooks)
    if reports:
      report(config, workdir, methods)
    manifest.finish(workdir, damage)
  if reports:
    say(f"\ndone in {time.monotonic() - started:.0f} s; {workdir} holds")
    for path in sorted(workdir.iterdir()):
      if path.name != lock.NAME:
        say(f"  {printable(path)}{'/' if path.is_dir() else ''}")


def report(config: ConfigDict, workdir: pathlib.Path, methods: Mapping[str, tuple[ConfigDict, pathlib.Path]]) -> None:
  """Predicts the additional sets, and writes tables, figures and the page.

  Args:
    config: the config of the run.
    workdir: the run's directory.
    methods: the config and the folder of each method, by its name in tables.
  """
  runs = {method: Run(method_config, folder) for method, (method_config, folder) in methods.items()}
  say(f"\ncalibrating and evaluating ({config.evaluation.num_resamples:,} bootstrap resamples) …")
  for run in runs.values():
    run.predict_sets()
  results = evaluation.judge({method: run.model() for method, run in runs.items()},
                             num_bins=config.evaluation.num_bins, num_resamples=config.evaluation.num_resamples)
  outputs.write(results, workdir, title=f"{config.data.name}: {method_name(config)}", config=config.to_dict(),
                     log=workdir / "metrics.jsonl")


def train_seeds(config: ConfigDict, folder: pathlib.Path, method: str, hooks: Sequence[Callable] = ()) -> None:
  """Trains the models that are not finished yet; writes metrics, checkpoints and predictions in ``folder``.

  Predictions that are there already are not written again.
  """
  seeds = _seeds(config)
  missing = [seed for seed in seeds if not processes.agreed(
    all(prediction_file(folder, split, seed).exists() for split in SPLITS))]
  with contextlib.ExitStack() as stack:
    log = None
    if missing and processes.is_first():
      (folder / "predictions").mkdir(parents=True, exist_ok=True)
      log = training.MetricLog(folder, outputs.reliability_picture(method))
      stack.callback(log.close)
    for group in training.groups_to_train(folder, seeds, missing, config.training.seeds_together):
      splits = [load_splits(config, seed) for seed in group.seeds]
      if processes.is_first():
        group.write_shape(training.shape_of(splits[0]))
      _, predictions = training.train(config, splits, seeds=group.seeds, folder=group.folder, log=log,
                                      label=f"{method}, {group.folder.name}", predicted=SPLITS, hooks=hooks)
      for seed, split_of_seed, by_split in zip(group.seeds, splits, predictions, strict=True):
        train = split_of_seed.train  # Labels of data that do not fit in memory are not counted: it takes minutes.
        counts = np.bincount(train.labels, minlength=split_of_seed.num_classes) if isinstance(
          train, data.Examples) else None
        for split, arrays in by_split.items() if processes.is_first() else ():
          if not (path := prediction_file(folder, split, seed)).exists():
            evaluation.save(path, **arrays, classes=splits[0].classes, train_counts=counts)
            manifest.add(folder, [path])


def _seeds(config: ConfigDict) -> range:
  return range(config.seed, config.seed + config.num_seeds)


def prediction_file(folder: pathlib.Path, name: str, seed: int) -> pathlib.Path:
  """Returns the file that holds a run's predictions of a split or another set."""
  return folder / "predictions" / f"{name}_seed{seed}.npz"


class _Models(NamedTuple):
  """The models of seeds that trained together, and the compiled steps that predict with them."""

  seeds: tuple[int, ...]
  variables: Any  # All arrays have a leading axis of seeds.
  shape: training.Shape
  predict_step: Callable
  features_step: Callable


class Run:
  """A finished run, with its models, predictions and calibrators. It can be evaluated on any other data."""

  def __init__(self, config: ConfigDict, folder: pathlib.Path, which: str = ""):
    """Takes the run of ``config`` in ``folder``; see ``load``."""
    self.config, self.folder, self.which = config, folder, which
    self.seeds = tuple(_seeds(config))
    self.devices = jax.local_devices()
    self._models: dict[tuple[int, ...], _Models] = {}
    self._loaded = False  # Whether the files may be others than those that the run wrote.

  @classmethod
  def load(cls, workdir: str | pathlib.Path, which: str = "", *, own_code: bool = False) -> "Run":
    """Loads the finished run in a directory.

    A warning names the files that are used and are not those that the run wrote, by its manifest.

    Args:
      workdir: a run's ``--workdir``, or its subdirectory ``baseline``.
      which: ``"best"`` for each seed's model of the lowest validation loss, which only runs with
        ``training.select="best"`` or ``"refined"`` keep; ``"last"`` for that of the last step; "" for the best if it
        was kept and else the last.
      own_code: whether import paths in the run's ``config.json`` are imported, which runs their code.

    Returns:
      The run.

    Raises:
      UserError: if the directory holds no run, or its config names import paths and ``own_code`` is false.
    """
    folder = pathlib.Path(workdir)
    root = manifest.root(folder)
    config = read_config(root, own_code=own_code)
    run = cls(config if root == folder else plain_cross_entropy(config), folder, which)
    if doubt := manifest.doubt(root, [manifest.CONFIG]):
      warn(doubt)
    run._loaded = manifest.read(root)[0] is not None
    return run

  def predict(self, images: ArrayLike, *, seed: int | None = None) -> np.ndarray:
    """Returns the logits of images. For the run's own test images, on the same devices, they equal the saved ones.

    Args:
      images: uint8 ``[N, H, W, C]``.
      seed: the seed of the model; None for the first.

    Returns:
      float32 ``[N, K]``.

    Raises:
      UserError: if the images have another dtype or shape, or there is no model of that seed.
    """
    return self._outputs(images, seed, "logits")

  def features(self, images: ArrayLike, *, seed: int | None = None) -> np.ndarray:
    """Returns the features before the head.

    Args:
      images: uint8 ``[N, H, W, C]``.
      seed: the seed of the model; None for the first.

    Returns:
      float32 ``[N, D]``.

    Raises:
      UserError: if the images have another dtype or shape, or there is no model of that seed.
    """
    return self._outputs(images, seed, "features")

  def variables(self, seed: int | None = None) -> dict[str, Any]:
    """Returns ``params`` and ``batch_stats`` of the model of ``seed`` (default: the first), for ``model.apply``."""
    models, place = self._group(seed)
    return jax.tree.map(lambda x: x[place], models.variables)

  def splits(self, seed: int | None = None) -> data.Splits:
    """Returns the run's own data, split as it was for ``seed`` (default: the first)."""
    return load_splits(self.config, self.seeds[0] if seed is None else seed)

  def calibrators(self) -> evaluation.Fitted:
    """Fits the calibrators of ``config.evaluation`` to the validation split, and saves them in ``calibrators/``.

    ``calib_jax.calibrators.load`` reads the files.

    Returns:
      The calibrators by label, each with its params of every seed.
    """
    labelled = {label: calibrators.get(**section) for label, section in self.config.evaluation.calibrators.items()}
    fitted = evaluation.fit(self.saved("validation"), labelled)
    for label, (_, params) in fitted.items():
      for seed, seed_params in zip(self.seeds, params, strict=True):
        path = self.folder / "calibrators" / f"{stem(label)}_seed{seed}.npz"
        path.parent.mkdir(exist_ok=True)
        calibrators.save(path, seed_params)
    return fitted

  def evaluate(self, tests: Mapping[str, Any] | None = None, calibrators: Mapping[str, Any] | None = None
               ) -> dict[str, dict[str, dict[str, evaluation.Estimate]]]:
    """Evaluates the run on test sets, before and after calibration.

    Args:
      tests: sets by name. A set is ``(images, labels)``, or a section like ``config.data`` (a dict with ``name``), of
        which the test split is used. None for the run's own test split.
      calibrators: calibrators by label, to fit to the validation split; None for those of ``config.evaluation``.

    Returns:
      ``{set: {calibrator: {metric: estimate}}}``; see ``evaluation.evaluate``.
    """
    fitted = self.calibrators() if calibrators is None else evaluation.fit(self.saved("validation"), calibrators)
    options, tables = self.config.evaluation, {}
    for name, given in ({"test": None} if tests is None else tests).items():
      parts = self.saved(name) if given is None else self._predictions(given)
      rows = {label: evaluation.calibrated(fitted, label, parts) for label in (evaluation.UNCALIBRATED, *fitted)}
      tables[name] = evaluation.evaluate(rows, num_bins=options.num_bins, num_resamples=options.num_resamples)
    return tables

  def model(self) -> evaluation.Model:
    """Returns the saved predictions of the test split and of the sets that ``config.evaluation`` lists."""
    names = dict.fromkeys(("test", *(name for name, _ in additional_sets(self.config, self.seeds[0]))))
    return evaluation.Model({name: self.saved(name) for name in names}, self.calibrators())

  def predict_sets(self) -> None:
    """Predicts the additional sets that ``config.evaluation`` lists, unless their predictions are saved already."""
    options = self.config.evaluation
    for seed in self.seeds:
      for name, load in additional_sets(self.config, seed):
        path = prediction_file(self.folder, name, seed)
        if not path.exists():
          examples, kind = load()
          extra = {"features": self.features(examples.images, seed=seed)} if options.save_features else {}
          evaluation.save(path, logits=self.predict(examples.images, seed=seed), labels=examples.labels, kind=kind,
                          **extra)
          manifest.add(self.folder, [path])

  def saved(self, name: str) -> list[evaluation.Predictions]:
    """Returns the saved predictions of a set, one element a seed."""
    files = [prediction_file(self.folder, name, seed) for seed in self.seeds]
    self._compare(manifest.names(manifest.root(self.folder), files))
    return [evaluation.load(file) for file in files]

  def _compare(self, names: Sequence[str]) -> None:
    """Warns if files that are about to be read are not those that a loaded run wrote."""
    if self._loaded and (doubt := manifest.doubt(manifest.root(self.folder), names)):
      warn(doubt)

  def _predictions(self, given: Any) -> list[evaluation.Predictions]:
    """Predicts ``(images, labels)``, or the test split of a section like ``config.data``, with every seed's model."""
    predictions = []
    for seed in self.seeds:
      images, labels = given if isinstance(given, tuple) else data.load(
        seed=seed, **{"validation_fraction": self.config.data.validation_fraction, **given}).test
      predictions.append(evaluation.Predictions(self.predict(images, seed=seed), np.asarray(labels, np.int32)))
    return predictions

  def _outputs(self, images: ArrayLike, seed: int | None, name: str) -> np.ndarray:
    models, place = self._group(seed)
    images = np.asarray(images)
    if images.dtype != np.uint8 or images.shape[1:] != models.shape.image_shape:
      raise UserError(f"images must be uint8 of shape [N, {', '.join(map(str, models.shape.image_shape))}] like those "
                      f"that the run was trained on: got {images.dtype} of shape {images.shape}.")
    step = models.features_step if name == "features" else models.predict_step
    examples = data.Examples(images, np.zeros(len(images), np.int32))
    outputs = training.predict(step, models.variables, [examples] * len(models.seeds), self.config.training.batch_size,
                               training.Layout.of(self.devices))
    return outputs[name][place]

  def _group(self, seed: int | None) -> tuple[_Models, int]:
    """Returns the models that trained with that of ``seed``, and its place among them.

    They give the same bits only if they predict together.
    """
    seed = self.seeds[0] if seed is None else seed
    groups = training.groups_on_disk(self.folder)
    group = next((group for group in groups if seed in group.seeds), None)
    if group is None:
      raise UserError(f"{self.folder} holds no checkpoint of seed {seed}; it has those of "
                      f"{', '.join(str(seed) for group in groups for seed in group.seeds) or 'no other seed'}.")
    if group.seeds not in self._models:
      self._models[group.seeds] = self._restored(group)
    return self._models[group.seeds], group.seeds.index(seed)

  def _restored(self, group: training.Group) -> _Models:
    shape = group.read_shape() or training.shape_of(load_splits(self.config, group.seeds[0]))
    self._compare(manifest.newest(manifest.root(self.folder), group.folder))
    head = training.plan(self.config)[-1].head or self.config.head
    model = training.classifier(self.config, head, shape.num_classes)
    variables = training.Layout.of(self.devices).everywhere(group.variables(self.which))
    return _Models(group.seeds, variables, shape, *(
      training.predictor(model, shape, len(group.seeds), self.devices, features=wanted,
                         parallel=self.config.training.parallel) for wanted in (False, True)))


def warn(text: str) -> None:
  """Prints a warning."""
  print(f"warning: {printable(text)}", file=sys.stderr, flush=True)


def say(text: str) -> None:
  """Prints a line and flushes it."""
  print(printable(text, lines=True), flush=True)
