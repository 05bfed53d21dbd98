"""A finished run: its models, predictions and calibrators, which ``Run.load`` takes from its directory."""

from collections.abc import Callable, Mapping, Sequence
import functools
import pathlib
from typing import Any, NamedTuple

import jax
from jax.typing import ArrayLike
import ml_collections
import numpy as np

from calib_jax import calibrators, evaluation, training
from calib_jax._checks import class_names
from calib_jax._system.errors import UserError
from calib_jax._system.files import stem
from calib_jax.evaluation.predictions import ensembles
from calib_jax.training import data
from calib_jax.training.last_layer.laplace import Laplace
from calib_jax.training.last_layer.laplace import fit as fit_laplace
from calib_jax.training.run import manifest
from calib_jax.training.run.data import additional_sets, check_laplace, load_splits
from calib_jax.training.run.directory import read_config
from calib_jax.training.run.methods import plain_cross_entropy


def seeds_of(config: ml_collections.ConfigDict) -> range:
  """Returns the seeds of a run; each trains a model."""
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

  def __init__(self, config: ml_collections.ConfigDict, folder: pathlib.Path, which: str = ""):
    """Takes the run of ``config`` in ``folder``; see ``load``."""
    self.config: ml_collections.ConfigDict = config
    self.folder: pathlib.Path = folder
    self.which: str = which
    self.seeds: tuple[int, ...] = tuple(seeds_of(config))
    self.devices = jax.local_devices()
    self._models: dict[tuple[int, ...], _Models] = {}
    self._laplace: dict[int, Laplace] = {}
    self._loaded = False  # Whether the files may be others than those that the run wrote.

  @classmethod
  def load(cls, workdir: str | pathlib.Path, which: str = "", *, own_code: bool = False) -> "Run":
    """Loads the finished run in a directory.

    A warning names the files that are used and are not those that the run wrote, by its manifest.

    Args:
      workdir: a run's ``--workdir``, or its subdirectory ``baseline``.
      which: ``"best"`` for each seed's model of the lowest validation loss, which only runs with
        ``training.select="best"`` or ``"refined"`` keep; ``"average"`` for the averaged one, which only
        runs with ``training.average`` keep; ``"last"`` for the last step's; "" for the first of these that was
        kept.
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
      manifest.warn(doubt)
    run._loaded = manifest.read(root)[0] is not None
    return run

  def predict(self, images: ArrayLike, *, seed: int | None = None) -> np.ndarray:
    """Returns the logits of images. For the run's own test images, on the same devices, they equal the saved ones.

    Args:
      images: uint8 ``[N, H, W, C]``, or rows like the run's own data.
      seed: the seed of the model; None for the first or, with ``evaluation.ensemble``, for the ensemble of all.

    Returns:
      float32 ``[N, K]``; of an ensemble, or with ``evaluation.samples``, the logarithms of the mean probabilities.

    Raises:
      UserError: if the images have another dtype or shape, or there is no model of that seed.
    """
    if seed is None and self.config.evaluation.ensemble:
      labels = np.zeros(len(images), np.int32)
      members = [self._outputs(images, of_seed, "logits") for of_seed in self.seeds]
      return ensembles.pooled([evaluation.Predictions(logits, labels) for logits in members]).logits
    return self._outputs(images, seed, "logits")

  def features(self, images: ArrayLike, *, seed: int | None = None) -> np.ndarray:
    """Returns the features before the head.

    Args:
      images: uint8 ``[N, H, W, C]``, or rows like the run's own data.
      seed: the seed of the model; None for the first.

    Returns:
      float32 ``[N, D]``.

    Raises:
      UserError: if the images have another dtype or shape, or there is no model of that seed.
    """
    return self._outputs(images, seed, "features")

  def laplace(self, seed: int | None = None) -> Laplace:
    """Returns the Laplace approximation of the head of ``seed`` (default: the first), with ``evaluation.laplace``.

    It is fitted to the training split, and ``run.laplace(seed).log_probs(run.features(images, seed=seed))`` predicts.

    Raises:
      UserError: if the head is not linear or too large, or the training images do not fit in memory.
    """
    seed = self.seeds[0] if seed is None else seed
    if seed not in self._laplace:
      check_laplace(self.config, splits := self.splits(seed))
      head = self.variables(seed)["params"]["head"]
      features = self.features(splits.train.images, seed=seed)
      try:
        self._laplace[seed] = fit_laplace(features, splits.train.labels, kernel=head["kernel"], bias=head["bias"],
                                          hessian=self.config.evaluation.laplace or "auto")
      except ValueError as error:
        raise UserError(f"config key evaluation.laplace: {error}") from error
    return self._laplace[seed]

  def variables(self, seed: int | None = None) -> dict[str, Any]:
    """Returns ``params`` and ``batch_stats`` of the model of ``seed`` (default: the first), for ``model.apply``."""
    models, place = self._group(seed)
    return jax.tree.map(lambda x: x[place], models.variables)

  def splits(self, seed: int | None = None) -> data.Splits:
    """Returns the run's own data, split as it was for ``seed`` (default: the first)."""
    return load_splits(self.config, self.seeds[0] if seed is None else seed)

  def calibrators(self) -> evaluation.FittedRows:
    """Fits the calibrators of ``config.evaluation`` to the validation split, and saves them in ``calibrators/``.

    If it has any, and ``recommended`` is true, so is what ``calib_jax.calibrators.recommended`` adds.
    ``calib_jax.calibrators.load`` reads the files.

    Returns:
      The calibrators by label, each with its params of every seed.
    """
    options, validation = self.config.evaluation, self.saved("validation")
    labelled = {label: calibrators.get(**section) for label, section in options.calibrators.items()}
    if labelled and options.recommended:
      added = calibrators.recommended(*validation[0].logits.shape)
      labelled |= {label: added[label] for label in added if label not in ("TS", *labelled)}
    fitted = evaluation.fit(validation, labelled)
    for label, (calibrator, params) in fitted.items():
      by_name = calibrator if calibrator.name in calibrators.CALIBRATORS else None  # One of the user's own has no name.
      for seed, seed_params in zip(self.seeds, params, strict=True):
        path = self.folder / "calibrators" / f"{stem(label)}_seed{seed}.npz"
        path.parent.mkdir(exist_ok=True)
        calibrators.save(path, calibrators.Fitted(by_name, seed_params, fitted.num_classes, fitted.classes))
    return fitted

  def evaluate(self, tests: Mapping[str, Any] | None = None, calibrators: Mapping[str, Any] | None = None
               ) -> dict[str, dict[str, dict[str, evaluation.Estimate]]]:
    """Evaluates the run on test sets, before and after calibration.

    Args:
      tests: sets by name. A set is ``(images, labels)``, or a section like ``config.data`` (a dict with ``name``), of
        which the test split is used. None for the run's own test split.
      calibrators: calibrators by label, to fit to the validation split; None for ``config.evaluation``'s.

    Returns:
      ``{set: {calibrator: {metric: estimate}}}``; see ``evaluation.evaluate``.
    """
    fitted = self.calibrators() if calibrators is None else evaluation.fit(self.saved("validation"), calibrators)
    options, tables = self.config.evaluation, {}
    for name, source in ({"test": None} if tests is None else tests).items():
      parts = self.saved(name) if source is None else self._predictions(source)
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
          labels, logits = self._of_examples(examples, seed, "logits")
          extra = {"features": self._of_examples(examples, seed, "features")[1]} if options.save_features else {}
          evaluation.save(path, logits=logits, labels=labels, kind=kind, classes=self.splits(seed).classes, **extra)
          manifest.add(self.folder, [path])

  def saved(self, name: str) -> list[evaluation.Predictions]:
    """Returns the saved predictions of a set, one element a seed."""
    files = [prediction_file(self.folder, name, seed) for seed in self.seeds]
    self._compare(manifest.names(manifest.root(self.folder), files))
    return [evaluation.load(file) for file in files]

  def _compare(self, names: Sequence[str]) -> None:
    """Warns if files that are about to be read are not those that a loaded run wrote."""
    if self._loaded and (doubt := manifest.doubt(manifest.root(self.folder), names)):
      manifest.warn(doubt)

  def _predictions(self, source: Any) -> list[evaluation.Predictions]:
    """Predicts ``(images, labels)``, or the test split of a section like ``config.data``, with every seed's model."""
    predictions = []
    for seed in self.seeds:
      classes = self.saved("test")[0].classes
      if isinstance(source, tuple):
        images, labels = source
        logits = self.predict(images, seed=seed)
      else:
        splits = data.load(seed=seed, **{"validation_fraction": self.config.data.validation_fraction, **source})
        labels, logits = self._of_examples(splits.test, seed, "logits")
        if splits.classes and classes:  # Labels are places among the classes of their own data set.
          labels = np.argsort(class_names.places(splits.classes, classes, ("the data set", "the run")))[labels]
      predictions.append(evaluation.Predictions(logits, np.asarray(labels, np.int32), classes=classes))
    return predictions

  def _outputs(self, images: ArrayLike, seed: int | None, name: str) -> np.ndarray:
    models, _ = self._group(seed)
    images = np.asarray(images)
    shape, kinds = models.shape, {"uint8": "u", "float32": "bf", "int32": "iu"}
    fits = images.dtype.kind in kinds[models.shape.dtype] and (shape.dtype != "uint8" or images.dtype == np.uint8)
    if not fits or images.shape[1:] != shape.image_shape or not len(images):
      raise UserError(f"images must be {shape.dtype} of shape [N, {', '.join(map(str, shape.image_shape))}], at least "
                      f"one, like those that the run was trained on: got {images.dtype} of shape {images.shape}."
                      + (" These are channels first: images.transpose(0, 2, 3, 1)." if len(shape.image_shape) == 3 and
                         images.shape[1:] == (shape.image_shape[2], *shape.image_shape[:2]) else ""))
    examples = data.Examples(images.astype(shape.dtype, copy=False), np.zeros(len(images), np.int32))
    return self._of_examples(examples, seed, name)[1]

  def _of_examples(self, examples: "data.Examples | data.Stream", seed: int | None, name: str
                   ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the labels of examples, which may be a stream, and the outputs ``name`` of the model of ``seed``."""
    models, place = self._group(seed)
    step = models.features_step if name == "features" else models.predict_step
    try:
      outputs = training.predict(step, models.variables, [examples] * len(models.seeds),
                                 self.config.training.batch_size, training.Layout.of(self.devices))
    except (TypeError, ValueError) as error:  # The config of a run that was changed since then.
      reason = next(iter(str(error).splitlines()), type(error).__name__)
      raise UserError(f"the model of {self.folder}'s config.json cannot predict its images: {reason[:300]}") from error
    return outputs["labels"][place], outputs[name][place]

  def _group(self, seed: int | None) -> tuple[_Models, int]:
    """Returns the models that trained, and so must predict, with the model of ``seed``, and its place among them."""
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
    root = manifest.root(self.folder)
    shape_file = manifest.names(root, [group.folder.with_suffix(".json")])
    self._compare([*manifest.newest(root, group.folder), *shape_file])
    head = training.plan(self.config)[-1].head or self.config.head
    model = training.classifier(self.config, head, shape.num_classes)
    variables = training.Layout.of(self.devices).everywhere(group.variables(self.which))
    predictor = functools.partial(training.predictor, model, shape, len(group.seeds), self.devices,
                                  parallel=self.config.training.parallel)
    return _Models(group.seeds, variables, shape, predictor(samples=self.config.evaluation.samples, seeds=group.seeds),
                   predictor(features=True))

