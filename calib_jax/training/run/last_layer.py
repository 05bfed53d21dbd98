"""The rows of a run's Laplace approximation: its predictions of every set, with calibrators of its own."""

from calib_jax import evaluation
from calib_jax.training.run import manifest
from calib_jax.training.run.data import additional_sets
from calib_jax.training.run.run import Run, prediction_file


def laplace(run: Run, plain: evaluation.Model) -> tuple[evaluation.Model, list[evaluation.Predictions]]:
  """Returns the model that predicts with the Laplace approximation of each seed's head, and its validation predictions.

  It has the sets and the calibrators of the model ``plain`` of the run, fitted to its own predictions of the validation
  split. These are saved in a folder of ``predictions/`` that is named for the options, and are not made again.
  """
  options, names = run.config.evaluation, ("validation", *plain.sets)
  folder = f"laplace_{options.laplace}"
  for place, seed in enumerate(run.seeds):
    splits = run.splits(seed)
    images = {"test": lambda splits=splits: splits.test, "validation": lambda splits=splits: splits.validation}
    images |= {name: lambda load=load: load().examples for name, load in additional_sets(run.config, seed)}
    for name in names:
      path = prediction_file(run.folder, f"{folder}/{name}", seed)
      if not path.exists():
        part = run.saved(name)[place]
        features = run.features(images[name]().images, seed=seed) if part.features is None else part.features
        path.parent.mkdir(exist_ok=True)
        log_probs = run.laplace(seed).log_probs(features)
        evaluation.save(path, log_probs, part.labels, part.kind, classes=part.classes, train_counts=part.train_counts)
        manifest.add(run.folder, [path])
  sets = {name: run.saved(f"{folder}/{name}") for name in names}
  validation = sets.pop("validation")
  return evaluation.Model(sets, evaluation.fit(validation, {
    label: calibrator for label, (calibrator, _) in plain.fitted.items()})), validation
