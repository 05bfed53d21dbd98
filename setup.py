"""Says which packages a wheel holds: calib_jax, and the directory configs/ as calib_jax.configs."""

from setuptools import find_packages, setup

setup(packages=[*find_packages(include=["calib_jax", "calib_jax.*"]), "calib_jax.configs"],
      package_dir={"calib_jax.configs": "configs"})
