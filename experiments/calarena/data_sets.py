"""Predictions that need no download: of classifiers trained here, and of networks whose predictions are saved.

Data that come with scikit-learn or with this package, and synthetic sets, called so, train classifiers on half of the
examples, stratified by class. Of the other half, one half calibrates and the other tests. ``diabetes_above_median``
asks whether a patient's value is above the median; ``digits_even`` and ``fashion_mnist_small_tops`` group the classes
of digits and of Fashion-MNIST.

Of saved predictions one random half calibrates and the other tests. Networks of one data set share its images, and so
are one data set for every interval. Their binary problems sum the probabilities of classes: animals against vehicles of
CIFAR-10, and even against odd digits of MNIST.
"""

from collections.abc import Callable
import functools
import pathlib
from typing import NamedTuple
import warnings

import numpy as np
from scipy import special
from sklearn import datasets
from sklearn.base import ClassifierMixin
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from calib_jax._system.errors import UserError
from calib_jax.evaluation.predictions.loading import load
from calib_jax.training.data.sources.arrays import fashion_mnist_small

Arrays = tuple[np.ndarray, np.ndarray]
CLASSIFIERS: dict[str, Callable[[], ClassifierMixin]] = {
  "gradient boosting": lambda: HistGradientBoostingClassifier(max_iter=50, random_state=0),
  "forest": lambda: RandomForestClassifier(100, random_state=0),
  "SVM": lambda: make_pipeline(StandardScaler(), SVC(random_state=0)),
  "naive Bayes": GaussianNB,
  "logistic regression": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=200)),
  "network": lambda: make_pipeline(StandardScaler(), MLPClassifier((64,), max_iter=60, random_state=0)),
}
SYNTHETIC_SIZE = 8_000  # As many as Fashion-MNIST's, so that fits of one shape are compiled once.
ANIMALS = (2, 3, 4, 5, 6, 7)  # Bird, cat, deer, dog, frog and horse of CIFAR-10.
EVEN = (0, 2, 4, 6, 8)
TOPS = (0, 2, 3, 4, 6)  # T-shirt, pullover, dress, coat and shirt of Fashion-MNIST.


class Experiment(NamedTuple):
  """The predictions of one model on one data set, to fit to and to test on: log-probabilities ``[N, K]`` and labels."""

  fit: Arrays
  test: Arrays


class Source(NamedTuple):
  """A data set, the classifiers that are trained on it and, if it is a problem of two groups, those of the second."""

  make: Callable[[], Arrays]
  classifiers: tuple[str, ...]
  grouped: tuple[int, ...] = ()


def _embedded(name: str) -> Callable[[], Arrays]:
  return functools.partial(getattr(datasets, f"load_{name}"), return_X_y=True)


def _diabetes() -> Arrays:
  x, y = datasets.load_diabetes(return_X_y=True)
  return x, (y > np.median(y)).astype(int)


def _fashion() -> Arrays:
  pool = fashion_mnist_small()
  x = np.concatenate([pool.train.images, pool.test.images])
  return x.reshape(len(x), -1) / 255, np.concatenate([pool.train.labels, pool.test.labels])


def _classification(num_classes: int, **options) -> Arrays:
  return datasets.make_classification(SYNTHETIC_SIZE, 20, n_informative=8, n_classes=num_classes, flip_y=0.1,
                                      n_clusters_per_class=1 if num_classes > 4 else 2, random_state=0, **options)


def _quantiles(num_classes: int) -> Arrays:
  x, y = datasets.make_gaussian_quantiles(n_samples=SYNTHETIC_SIZE, n_features=5, n_classes=num_classes,
                                          random_state=0)
  return x + np.random.default_rng(0).normal(scale=0.3, size=x.shape), y


def _blobs(num_classes: int) -> Arrays:
  return datasets.make_blobs(SYNTHETIC_SIZE, 5, centers=num_classes, cluster_std=5, random_state=0)


ALL = tuple(CLASSIFIERS)
# Naive Bayes of pixels, which are not independent, has log losses of 6 to 38 nats, which means would be of.
PIXELS = ("gradient boosting", "forest", "SVM", "logistic regression", "network")
MANY_PIXELS = ("forest", "logistic regression", "network")  # The others take long.
MANY_CLASSES = ("forest", "naive Bayes", "logistic regression", "network")
SYNTHETIC = ("gradient boosting", "forest", "naive Bayes", "network")
SOURCES = {
  "breast_cancer": Source(_embedded("breast_cancer"), ALL),
  "diabetes_above_median": Source(_diabetes, ALL),
  "digits_even": Source(_embedded("digits"), PIXELS, EVEN),
  "fashion_mnist_small_tops": Source(_fashion, MANY_PIXELS, TOPS),
  "synthetic_classification_2": Source(functools.partial(_classification, 2), SYNTHETIC),
  "synthetic_imbalanced_2": Source(functools.partial(_classification, 2, weights=(0.93,)), SYNTHETIC),
  "synthetic_hastie_2": Source(lambda: datasets.make_hastie_10_2(SYNTHETIC_SIZE, random_state=0), SYNTHETIC, (1,)),
  "synthetic_moons_2": Source(lambda: datasets.make_moons(SYNTHETIC_SIZE, noise=0.4, random_state=0), SYNTHETIC),
  "synthetic_quantiles_2": Source(functools.partial(_quantiles, 2), SYNTHETIC),
  "iris": Source(_embedded("iris"), ALL),
  "wine": Source(_embedded("wine"), ALL),
  "digits": Source(_embedded("digits"), PIXELS),
  "fashion_mnist_small": Source(_fashion, MANY_PIXELS),
  "synthetic_quantiles_4": Source(functools.partial(_quantiles, 4), SYNTHETIC),
  "synthetic_classification_4": Source(functools.partial(_classification, 4), SYNTHETIC),
  "synthetic_blobs_4": Source(functools.partial(_blobs, 4), SYNTHETIC),
  "synthetic_classification_20": Source(functools.partial(_classification, 20), MANY_CLASSES),
  "synthetic_blobs_20": Source(functools.partial(_blobs, 20), MANY_CLASSES),
  "synthetic_classification_50": Source(functools.partial(_classification, 50), MANY_CLASSES),
}
GROUPED = {"cifar10": ("cifar10_animals", ANIMALS), "mnist": ("mnist_even", EVEN)}


def divided(dataset: str, classifier: str, split: int) -> Experiment:
  """Trains a classifier on half of a data set, and returns its predictions of the other half, in two halves."""
  x, y = _arrays(dataset)
  x_train, x, y_train, y = train_test_split(x, y, test_size=0.5, stratify=y, random_state=split)
  x_fit, x_test, y_fit, y_test = train_test_split(x, y, test_size=0.5, stratify=y, random_state=split)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", ConvergenceWarning)  # Fits that stop early are classifiers, too.
    trained = CLASSIFIERS[classifier]().fit(x_train, y_train)
  return Experiment((_predicted(trained, x_fit), y_fit.astype(np.int32)),
                    (_predicted(trained, x_test), y_test.astype(np.int32)))


def logarithms(probs: np.ndarray) -> np.ndarray:
  """Float32 log-probabilities ``[N, K]``; without classes, the probabilities are of class 1."""
  probs = probs.astype(np.float32)
  if probs.ndim == 1:
    probs = np.stack([1 - probs, probs], axis=1)
  return np.log(np.maximum(probs, np.finfo(np.float32).tiny))


@functools.lru_cache(maxsize=1)
def _arrays(dataset: str) -> Arrays:
  source = SOURCES[dataset]
  x, y = source.make()
  return x, np.isin(y, source.grouped).astype(int) if source.grouped else y


def _predicted(classifier: ClassifierMixin, x: np.ndarray) -> np.ndarray:
  """Log-probabilities ``[N, K]``; of an SVM, which has none, the decision function counts as log-odds or as logits."""
  if hasattr(classifier, "predict_proba"):
    probs = classifier.predict_proba(x)
  else:
    scores = classifier.decision_function(x)
    probs = special.expit(scores) if scores.ndim == 1 else special.softmax(scores, axis=1)
  return logarithms(probs[:, 1] if probs.ndim == 2 and probs.shape[1] == 2 else probs)


def networks(folder: pathlib.Path) -> dict[tuple[str, str], pathlib.Path]:
  """Returns the files of a folder that hold predictions of all classes, by data set and network.

  A file ``cifar10_wrn16_4.npz`` is of the network ``wrn16_4`` on the data set ``cifar10``. Files of top labels alone
  are left out, and so are people's answers.
  """
  paths = {}
  for path in sorted(folder.glob("*.npz")):
    dataset, _, network = path.stem.partition("_")
    with np.load(path, allow_pickle=False) as arrays:
      if network != "human" and {"probs", "logits"} & set(arrays):
        paths[dataset, network] = path
  if not paths:
    raise UserError(f"{folder} has no .npz file with labels, and probs or logits [N, K].")
  return paths


def halves(path: pathlib.Path, dataset: str, split: int) -> Experiment:
  """Returns saved predictions in two random halves; those of a data set of ``GROUPED`` are of two groups of classes."""
  logits, labels = load(path)[:2]
  order = np.random.default_rng(split).permutation(len(labels))
  log_probs, labels = special.log_softmax(np.asarray(logits, np.float64)[order], axis=1), labels[order]
  classes = dict(GROUPED.values()).get(dataset)
  if classes:
    log_probs = logarithms(np.minimum(np.exp(log_probs[:, classes]).sum(1), 1))
    labels = np.isin(labels, classes).astype(np.int32)
  middle = len(labels) // 2
  log_probs = log_probs.astype(np.float32)
  return Experiment((log_probs[:middle], labels[:middle]), (log_probs[middle:], labels[middle:]))


def experiments(predictions: pathlib.Path | None) -> dict[tuple[str, str], Callable[[int], Experiment]]:
  """Returns what makes the examples of every data set and model from the number of a split."""
  saved = networks(predictions) if predictions else {}
  grouped = {(GROUPED[dataset][0], network): path for (dataset, network), path in saved.items() if dataset in GROUPED}
  return {(dataset, classifier): functools.partial(divided, dataset, classifier)
          for dataset, source in SOURCES.items() for classifier in source.classifiers} | {
    (dataset, network): functools.partial(halves, path, dataset)
    for (dataset, network), path in (saved | grouped).items()}
