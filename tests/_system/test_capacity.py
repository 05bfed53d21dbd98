"""Compiled programs are dropped before their memory mappings run out."""

import pathlib

import jax
import jax.numpy as jnp
import pytest

from calib_jax._system import capacity
from calib_jax.training import config
from calib_jax.training.engine import loop


@pytest.mark.skipif(not pathlib.Path("/proc/self/maps").exists(), reason="this system does not list mappings")
@pytest.mark.slow
def test_programs_are_forgotten_only_where_their_mappings_are_many():
  double = jax.jit(lambda x: 2 * x)
  double(jnp.ones(3))
  capacity.forget_programs(share=2.0)  # A process that has run many tests may be over the half of the default.
  assert double._cache_size() == 1
  capacity.forget_programs(share=0.0)
  assert double._cache_size() == 0
  assert double(jnp.ones(3)).tolist() == [2, 2, 2]


def test_every_training_asks_whether_programs_are_too_many(monkeypatch):
  asked = []
  monkeypatch.setattr(capacity, "forget_programs", lambda: asked.append(True))
  monkeypatch.setattr(loop.programs, "build", lambda *_: 1 / 0)  # Nothing needs to be trained here.
  with pytest.raises(ZeroDivisionError):
    loop.train(config.load("configs/digits_savuc.py", []), [], seeds=[0])
  assert asked
