"""``calib_jax.sklearn.CalibratedClassifier`` beside scikit-learn's ``CalibratedClassifierCV``, on its own data sets.

Run: python -m experiments.calibrators.scikit_learn [--splits=5] [--workdir=DIR]

Five data sets that come with scikit-learn and four classifiers: 20 pairs. Each split trains and calibrates on a random
half of the examples, stratified by class, and tests on the other half. All calibrate by five folds and keep one
classifier, but for the rows named "five classifiers", the default of scikit-learn. Seconds are of fit and
predict_proba in one process, whose compiled programs later splits use again, so that the median has none in it. A pair
and split that has its rows is not repeated.
"""

from collections.abc import Callable, Sequence
import sys
import time
import warnings

import numpy as np
import pandas as pd
from scipy import stats
from sklearn import datasets, model_selection
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.metrics import log_loss
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from calib_jax.sklearn import CalibratedClassifier
from experiments.common import commands, markdown, studies

LEVEL = 0.95
BASELINE = "sigmoid, scikit-learn"
CLASSIFIERS = {
  "gradient boosting": lambda: HistGradientBoostingClassifier(max_iter=50, random_state=0),
  "forest": lambda: RandomForestClassifier(100, random_state=0),
  "SVM": lambda: make_pipeline(StandardScaler(), SVC(random_state=0)),
  "naive Bayes": GaussianNB,
}


def _theirs(method: str, **options) -> Callable:
  return lambda classifier: CalibratedClassifierCV(classifier, method=method, cv=5, **options)


def _ours(method: str) -> Callable:
  return lambda classifier: CalibratedClassifier(classifier, method)


CALIBRATED = {
  BASELINE: _theirs("sigmoid", ensemble=False),
  "isotonic, scikit-learn": _theirs("isotonic", ensemble=False),
  "temperature, scikit-learn": _theirs("temperature", ensemble=False),
  "sigmoid, scikit-learn, five classifiers": _theirs("sigmoid", ensemble=True),
  **{name: _ours(name) for name in ("temperature_scaling", "platt", "beta_calibration", "structured_vector_scaling",
                                    "structured_matrix_scaling", "auto")},
}


def data(name: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns the features and the labels of a data set; a value above the median is the class of ``diabetes``."""
  x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
  return x, (y > np.median(y)).astype(int) if name == "diabetes" else y


DATA = ("iris", "wine", "diabetes", "breast_cancer", "digits")


def measured(name: str, classifier: str, split: int) -> list[dict[str, object]]:
  """Returns the rows of a data set, a classifier and a split: one for each way to calibrate."""
  x, y = data(name)
  x_train, x_test, y_train, y_test = model_selection.train_test_split(x, y, test_size=0.5, stratify=y,
                                                                      random_state=split)
  new = []
  for label, make in CALIBRATED.items():
    started = time.perf_counter()
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # Their optimisers warn of overflows.
      probs = make(CLASSIFIERS[classifier]()).fit(x_train, y_train).predict_proba(x_test)
    seconds = time.perf_counter() - started
    new.append({"calibrated": label, "accuracy": f"{np.mean(probs.argmax(1) == y_test):.6g}",
                "log_loss": f"{log_loss(y_test, probs):.6g}",
                "brier": f"{np.mean(np.sum((probs - np.eye(probs.shape[1])[y_test]) ** 2, 1)):.6g}",
                "seconds": f"{seconds:.4g}"})
  return new


def page(rows: pd.DataFrame) -> str:
  """Returns the page in Markdown.

  Values of a split are means over the pairs. The standard error of a difference over J splits, whose halves overlap,
  is that of Nadeau & Bengio 2003: its variance over splits times 1/J + (test examples) / (training examples), here 1.
  """
  values = rows.pivot(index=["data", "classifier", "split"], columns="calibrated")
  loss, brier = (values[score].sub(values[score][BASELINE], axis=0) for score in ("log_loss", "brier"))
  by_pair = loss.groupby(["data", "classifier"]).mean()
  cells = pd.DataFrame({
    "accuracy": (100 * values.accuracy.mean()).map("{:.2f}".format),
    "loss": values.log_loss.mean().map("{:.4f}".format), "change": loss.groupby("split").mean().apply(interval),
    "brier": values.brier.mean().map("{:.4f}".format), "brier change": brier.groupby("split").mean().apply(interval),
    "wins": (by_pair < 0).sum().map(f"{{}} of {len(by_pair)}".format),
    "seconds": values.seconds.median().map("{:.2f}".format)}).loc[[*CALIBRATED]]
  cells.loc[BASELINE, ["change", "brier change", "wins"]] = ""
  return markdown.filled("calibrators/scikit_learn.md.jinja", pairs=len(by_pair), splits=rows.split.nunique(),
                         baseline=BASELINE, lines=cells.itertuples())


def interval(by_split: pd.Series) -> str:
  """Returns the mean of differences ``[J]`` of splits in halves, and its interval."""
  half = stats.t.ppf((1 + LEVEL) / 2, len(by_split) - 1) * np.sqrt((1 / len(by_split) + 1) * by_split.var())
  return f"{by_split.mean():+.4f} [{by_split.mean() - half:+.4f}, {by_split.mean() + half:+.4f}]"


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs what has no rows yet, and writes the page."""
  parser = commands.parser(__spec__.name, __doc__, results=True)
  commands.add_numbers(parser, {"splits": 5})
  options = parser.parse_args(arguments)
  cells = tuple((name, classifier, split) for split in range(options.splits) for name in DATA
                for classifier in CLASSIFIERS)
  studies.Study("scikit_learn", ("data", "classifier", "split"), cells, measured, page, options.workdir).publish()
  return 0


if __name__ == "__main__":
  sys.exit(main())
