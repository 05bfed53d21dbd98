"""The rows of a run's last-layer Laplace approximation: its predictions of every set, with calibrators of its own."""

from calib_jax import evaluation
from calib_jax.run import manifest
from calib_jax.run.data import additional_sets
from calib_jax.run.run import Run, prediction_file

TITLE = "Laplace"  # Of the rows, after the name of the method.


def model(run: Run, plain: evaluation.Model) -> tuple[evaluation.Model, list[evaluation.Predictions]]:
  """Returns the model that predicts with the Laplace approximation of each seed's head.

  Predictions are saved in a folder of ``predictions/`` that is named by the options, and are not made again.

  Args:
    run: a run whose predictions are saved.
    plain: its model without the approximation, whose sets and calibrators this one has too.

  Returns:
    The model, with the run's calibrators fitted to its own predictions of the validation split, and these.
  """
  options = run.config.evaluation
  folder = f"laplace_{options.laplace}" + (f"_{options.laplace_samples}" if options.laplace_samples else "")
  names = ("validation", *plain.sets)
  for place, seed in enumerate(run.seeds):
    splits = run.splits(seed)
    images = {"test": lambda splits=splits: splits.test, "validation": lambda splits=splits: splits.validation}
    images |= {name: lambda load=load: load().examples for name, load in additional_sets(run.config, seed)}
    for name in names:
      path = prediction_file(run.folder, f"{folder}/{name}", seed)
      if not path.exists():
        part = run.saved(name)[place]
        features = run.features(images[name]().images, seed=seed) if part.features is None else part.features
        logits = run.laplace(seed).log_probs(features, num_samples=options.laplace_samples, seed=seed)
        path.parent.mkdir(exist_ok=True)
        evaluation.save(path, logits, part.labels, part.kind, classes=part.classes, train_counts=part.train_counts)
        manifest.add(run.folder, [path])
  sets = {name: run.saved(f"{folder}/{name}") for name in names}
  validation = sets.pop("validation")
  return evaluation.Model(sets, evaluation.fit(validation, {
    label: calibrator for label, (calibrator, _) in plain.fitted.items()})), validation
