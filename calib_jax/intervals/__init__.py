"""Intervals, differences and tests of any metric, from resamples of its examples.

``draws`` says which examples a resample has, for JAX and NumPy alike. ``percentiles`` and ``bias_correction`` turn the
values of resamples into intervals, the latter by the ``BiasModel`` (``bias_models``) that stands beside a calibration
error. ``bootstrap``, ``differences`` and ``calibration_tests`` compute the values of any metric in JAX, and
``resamples`` has intervals of metrics in NumPy, of many rows of a table at once. The public names are in
``calib_jax.metrics``.
"""
