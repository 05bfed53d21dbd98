"""Chooses the directory that keeps compiled programs between runs, and how much is spent on programs that run once."""

from collections.abc import Callable, Iterator
import contextlib
import contextvars
import functools
import os
import pathlib

import jax

FEW = 2**18  # Numbers that a program reads, up to which ``sized`` may compile it fast.
# What takes at least so many seconds to compile is kept. JAX's 1.0 keeps hardly a program of a small run: the demo's
# network then starts in 1.3 s when programs are kept, and with 0.1 in 0.6; a second evaluation takes 5.0 and 4.1 s.
LEAST_SECONDS = 0.1
SMALL = 2**15  # Numbers up to which a fit takes far less time than its compilation.
KNOWN = ("0.10.", "0.11.", "0.12.")  # Versions whose options were measured: XLA refuses those that it does not know.
_runs_once = contextvars.ContextVar("runs_once", default=False)


def keep() -> str | None:
  """Makes JAX keep compiled programs in the directory that ``JAX_COMPILATION_CACHE_DIR`` names.

  Without that variable it is ``calib_jax`` in the user's cache directory (``$XDG_CACHE_HOME`` or ``~/.cache``).
  Compiled programs are code that is run, so a directory that is made is the user's alone. If it cannot be made,
  nothing is kept, and a sentence for the user is returned.
  """
  asked = jax.config.jax_compilation_cache_dir
  if asked and "://" in asked:  # A bucket.
    return None
  try:
    folder = pathlib.Path(asked) if asked else default_folder()
    for path in (*reversed(folder.parents), folder):  # By itself, ``parents=True`` makes them with other permissions.
      path.mkdir(mode=0o700, exist_ok=True)
  except (OSError, RuntimeError) as error:  # A RuntimeError says that the user has no home directory.
    jax.config.update("jax_compilation_cache_dir", None)
    return f"compiled programs are not kept for the next run, because their directory cannot be made ({error})."
  jax.config.update("jax_compilation_cache_dir", str(folder))
  if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
  return None


def once(function: Callable, **options) -> Callable:
  """``jax.jit(function, **options)`` for a program that runs once: it compiles fast rather than into fast code."""
  return functools.wraps(function)(lambda *args: _jitted(function, "fast", **options)(*args))


@contextlib.contextmanager
def running_once() -> Iterator[None]:
  """Within it, programs of ``sized`` are compiled as those that run once, if they read little."""
  token = _runs_once.set(True)
  try:
    yield
  finally:
    _runs_once.reset(token)


def fewer_passes() -> dict[str, int]:
  """Returns options with which XLA:CPU compiles in less time, by fewer passes of LLVM, to the same numbers.

  A program that draws a network's parameters has the same bits after half the time, and with JAX 0.12 after a tenth:
  PreResNet-56 starts in 11 s in place of 82. JAX takes options only of a program that is not part of another.
  """
  known = jax.default_backend() == "cpu" and jax.__version__.startswith(KNOWN)
  return {"xla_backend_optimization_level": 1} if known else {}


def sized(function: Callable, size: int, **options) -> Callable:
  """``jax.jit`` of a program that reads ``size`` numbers; within ``running_once``, few are compiled fast."""
  once = "fast" if size <= FEW else "few passes"
  return _jitted(function, once if _runs_once.get() else "users", **options)


def for_fits(function: Callable, size: int, small: str = "fast", **options) -> Callable:
  """As ``sized``, for a fit, which few processes make often: a program of few numbers is compiled faster.

  From import to answer a temperature of 2,000 x 2 logits then takes 1.2 s of processor in place of 2.2, and each later
  fit 0.5 ms in place of 0.2. Up to ``FEW`` numbers fewer passes compile in two thirds of the time, and a later fit
  takes up to twice as long: of 5,000 x 10 logits 2.4 ms in place of 1.3. A size has one program, so that equal fits
  have equal bits. ``small`` is "few passes" for fits that compile as soon with these. It may not be a part of another
  program: JAX says so with a ValueError.
  """
  if _runs_once.get():
    return sized(function, size, **options)
  return _jitted(function, small if size <= SMALL else "few passes" if size <= FEW else "users", **options)


@functools.lru_cache(maxsize=64)
def _jitted(function: Callable, how: str, **options) -> Callable:
  if how == "users":
    return jax.jit(function, **options)

  @functools.wraps(function)
  def alone(*args):
    token = _runs_once.set(False)  # JAX refuses options for programs within a program, which ``sized`` would set.
    try:
      return function(*args)
    finally:
      _runs_once.reset(token)

  return jax.jit(alone, compiler_options=frugal(0 if how == "fast" else 1), **options)


def frugal(level: int = 0) -> dict[str, bool | int]:
  """Returns options with which XLA:CPU compiles in less time and memory, to slower code.

  With JAX 0.10 it takes 80 MB in place of 240 MB for ``CalibrationHistogram.compute``.
  With JAX 0.12 an evaluation takes 6 s in place of 9. At ``level`` 1, fits are as fast as with all passes.
  """
  if jax.default_backend() != "cpu" or not jax.__version__.startswith(KNOWN):
    return {}
  emitters = {"xla_cpu_use_fusion_emitters": False} if jax.__version__.startswith("0.10.") else {}
  return {"xla_backend_optimization_level": level, **emitters}


def default_folder() -> pathlib.Path:
  """Returns ``calib_jax`` in the user's cache directory."""
  base = os.environ.get("XDG_CACHE_HOME", "")
  # The XDG specification says that a relative path is to be ignored.
  return (pathlib.Path(base) if os.path.isabs(base) else pathlib.Path("~/.cache").expanduser()) / "calib_jax"
