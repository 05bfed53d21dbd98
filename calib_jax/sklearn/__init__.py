"""Calibrators as scikit-learn estimators: ``pip install "calib-jax[sklearn]"``.

``CalibratedClassifier`` calibrates a classifier, and ``Calibrator`` the scores of a model of any framework.

>>> from sklearn.datasets import load_digits
>>> from sklearn.naive_bayes import GaussianNB
>>> x, y = load_digits(return_X_y=True)
>>> model = CalibratedClassifier(GaussianNB()).fit(x[:1000], y[:1000])
>>> model.predict_proba(x[1000:]).shape
(797, 10)
"""

from calib_jax.sklearn.estimators import CalibratedClassifier, Calibrator

__all__ = ["CalibratedClassifier", "Calibrator"]
