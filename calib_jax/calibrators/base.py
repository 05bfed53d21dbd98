"""What a calibrator is, calibrators by name, the one that changes nothing, and what all fits share."""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import functools
import math
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np

from calib_jax import _checks as checks
from calib_jax._checks import class_names, registry
from calib_jax._numerics.lbfgs import shares
from calib_jax._numerics.softmax import pick, predicted, without_absent
from calib_jax._system import compilation

Array = jax.Array
Factory = TypeVar("Factory", bound=Callable)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Calibrator:
  """Two functions, and how they were made.

  A logit of -inf, or of 1e4 or more below the largest of its row, belongs to a class that the row does not have, such
  as an option that a question lacks. Fits and ``apply`` leave it out: its probability is 0 and its log-probability
  -inf; where a formula counts classes, the row's count; the row is no example of the class in one-vs-rest
  methods; and as a feature in the scores of other classes, its logit or log-probability is 0. A row of one class gives
  it probability 1, and is not fitted to.

  Params of iterative fits say how they ended: ``converged``, whether the objective is at its optimum within tolerance,
  and ``iterations``. Fits of one temperature, and those that begin with temperature scaling, have ``at_bound`` too:
  whether that temperature is at an end of its range, which the data then do not determine, because every prediction is
  right, or because none is better than equal probabilities.

  Calibrators of one factory with equal options are equal, and so are static arguments of ``jax.jit`` for which it
  compiles once.

  Attributes:
    fit: ``fit(logits, labels, *, where=None, weights=None)`` learns from held-out ``logits`` ``[..., K]`` and
      ``labels`` ``[...]``, whose leading axes are flattened, and returns params, a pytree of arrays. ``where``
      ``[...]`` says which examples count, and ``weights`` ``[...]``, finite and at least 0, for how many examples each
      stands: integer weights are repeated rows. A fit raises ValueError if a logit that counts is NaN or inf, a label
      is out of range or of a class that its row does not have, or nothing counts. Within ``jit`` and ``vmap`` it cannot
      raise; ``converged`` is then False.
    apply: ``apply(params, logits)``, pure, returns the log-probabilities of logits ``[..., K]``. Of a factory's
      calibrator it is one compiled program outside of ``jax.jit`` too, which serves a range of numbers of rows.
    name: the name of the factory in ``CALIBRATORS``; empty for functions of your own, which are pickled as they are.
    options: the factory's arguments by name.
    together: whether ``apply`` is a function of all rows together, as in ``label_shift``. Otherwise an
      evaluation calibrates some rows at a time.
    records: whether it calibrates records, as ``record_calibration`` does, whose two columns are of a wrong and of a
      right answer.
  """

  fit: Callable[..., Any]
  apply: Callable[[Any, Array], Array]
  name: str = ""
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  together: bool = False
  records: bool = False

  def __post_init__(self):
    """Makes ``apply`` one program; functions of one's own may be NumPy's."""
    if self.name and not self.together and not isinstance(self.apply, functools.partial):
      object.__setattr__(self, "apply", functools.partial(_applied, self, self.apply))

  def __call__(self, *args: Any, **kwargs: Any) -> None:
    """Says what to call in place of a calibrator, which is not fitted."""
    name = self.name or "calibrator"
    raise TypeError(f"{name} is a calibrator that is not fitted yet: write fitted = calibrator.fitted(logits, labels), "
                    "which is a function of logits.")

  def fitted(self, logits: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = None,
             weights: ArrayLike | None = None, classes: Sequence[str] | None = None) -> "Fitted":
    """Fits, and returns a function of logits that holds its params.

    Args:
      logits: as ``fit`` takes them, here and below.
      labels: the labels of the logits.
      where: which examples count.
      weights: example weights; an integer w equals w copies of the row.
      classes: the names of the K classes in the order of the logits; None for none. ``save`` and ``export`` keep them,
        and ``calib-jax apply`` joins them with a file's.

    Returns:
      The function of logits ``[..., K]``, which can be compiled, pickled and exported.

    >>> fitted = identity().fitted(jnp.array([[2.0, 0.0]]), jnp.array([0]))
    >>> jnp.exp(fitted(jnp.array([[0.0, 0.0]])))
    Array([[0.5, 0.5]], dtype=float32)
    """
    # A fit of your own may take neither, and is then called without them.
    options = {name: value for name, value in (("where", where), ("weights", weights)) if value is not None}
    params, num_classes = self.fit(logits, labels, **options), np.shape(logits)[-1]
    return Fitted(self, params, num_classes, None if classes is None else class_names.checked(classes, num_classes))

  def _key(self) -> tuple:
    return (self.name, self.options) if self.name else (self.fit, self.apply)

  def __eq__(self, other: object) -> bool:
    """Whether both have the same name and options or, without a name, the same functions."""
    return isinstance(other, Calibrator) and self._key() == other._key()

  def __hash__(self) -> int:
    """Leaves out the values of options, which may have no hash."""
    return hash((self.name, *self.options) if self.name else (self.fit, self.apply))

  def __repr__(self) -> str:
    """The call that makes the calibrator."""
    if not self.name:
      return f"Calibrator({self.fit!r}, {self.apply!r})"
    return f"{self.name}({', '.join(f'{option}={value!r}' for option, value in self.options.items())})"

  def __reduce__(self) -> tuple[Any, ...]:
    """Makes a pickle hold the name and the options, because functions within a factory cannot be pickled."""
    if self.name:
      return functools.partial(get, self.name, **self.options), ()
    return Calibrator, (self.fit, self.apply, "", {}, self.together, self.records)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["params"],
                   meta_fields=["calibrator", "num_classes", "classes"])
@dataclasses.dataclass(frozen=True, eq=False)  # ``jax.jit`` compiles what has a hash, and arrays have none.
class Fitted:
  """A function of logits: a calibrator and the params that it was fitted with, which are the leaves of this pytree.

  Attributes:
    calibrator: what was fitted.
    params: its params.
    num_classes: K of the fit; None if it is not known.
    classes: the names of the K classes in the order of the logits; None if they have none.
  """

  calibrator: Calibrator
  params: Any
  num_classes: int | None = None
  classes: tuple[str, ...] | None = None

  def __call__(self, logits: Array) -> Array:
    """Returns the calibrated log-probabilities of logits ``[..., K]``."""
    try:
      return self.calibrator.apply(self.params, logits)
    except (TypeError, ValueError) as error:
      number = np.shape(logits)[-1:]
      if not self.num_classes or not number or number[0] == self.num_classes:
        raise
      raise ValueError(f"{self.calibrator.name} was fitted to {self.num_classes} classes, and the logits have "
                       f"{number[0]}.") from error

  def apply(self, logits: Array) -> Array:
    """Does what calling it does."""
    return self(logits)


PADDED = 2**21  # Numbers of logits up to which rows are padded.


def _applied(calibrator: Calibrator, apply: Callable[..., Array], params: Any, logits: ArrayLike, *more: ArrayLike
             ) -> Array:
  """What ``apply`` of a calibrator gives, by one compiled program, which serves a range of numbers of rows.

  Outside of ``jax.jit`` each operation of ``apply`` would be compiled for each number of rows: some 20 programs and a
  second for every size of a batch, until the process has no place left for them.
  """
  is_own = any(isinstance(x, Calibrator) and not x.name for x in calibrator.options.values())
  if more or is_own or not np.ndim(logits) or not np.size(logits) or checks.is_traced(logits, *jax.tree.leaves(params)):
    return apply(params, logits, *more)
  rows = np.asarray(logits) if isinstance(logits, np.ndarray) or checks.is_on_host(logits) else None
  if rows is None or rows.size > PADDED or rows.dtype not in (np.float32, np.float64):
    logits = checks.floating(logits, "logits")
    checks.warn_of_probs(logits)
    return _compiled_apply(calibrator, params, logits)
  checks.warn_of_probs(checks.on_device(rows[:checks.LOOKED_AT]))
  rows = rows.reshape(-1, rows.shape[-1])
  padded = np.zeros((_padded_size(len(rows)), rows.shape[1]), rows.dtype)
  padded[:len(rows)] = rows
  # NumPy takes the rows again, because a slice of a JAX array is a program for each number of rows.
  compiled = compilation.for_fits(_apply_of, padded.size, static_argnums=0)
  return jax.device_put(np.asarray(compiled(calibrator, params, padded))[:len(rows)].reshape(logits.shape))


def _padded_size(count: int) -> int:
  """The next of a few sizes: 16, 64, 256, and from there on 16 between each power of two and the next."""
  if count <= 256:
    return 16 if count <= 16 else 64 if count <= 64 else 256
  step = (1 << (count - 1).bit_length()) // 32
  return -(-count // step) * step


def _apply_of(calibrator: Calibrator, params: Any, logits: Array) -> Array:
  try:
    return calibrator.apply(params, logits)
  except TypeError as error:
    if "incompatible shapes" not in str(error):
      raise
    raise ValueError(f"the params of {calibrator.name} were fitted to another number of classes than these logits "
                     f"have, {logits.shape[-1]}.") from error


_compiled_apply = jax.jit(_apply_of, static_argnums=0)


# The factories by name: each enters itself where it is defined.
CALIBRATORS: dict[str, Callable[..., Calibrator]] = {}
register = registry.register(CALIBRATORS)
# What the params of each factory's calibrators are, as ``param_tables`` says.
PARAMS: dict[str, Mapping[str, str]] = {}


def has_params(**table: str) -> Callable[[Factory], Factory]:
  """A decorator that says of each param of a fit its axes, its interval and what else holds: see ``param_tables``."""
  def add(factory: Factory) -> Factory:
    PARAMS[factory.__name__] = table
    return factory

  return add



def get(name: str, **options: Any) -> Calibrator:
  """The calibrator called ``name``.

  Args:
    name: the name of a function of this package, as ``CALIBRATORS`` lists them.
    **options: that function's arguments.

  Returns:
    The calibrator.

  Raises:
    ValueError: for an unknown name.
    TypeError: for an option that the calibrator does not have.

  >>> get("identity").apply({}, jnp.array([[0.0, 0.0]])).round(2)
  Array([[-0.69, -0.69]], dtype=float32)
  """
  checks.choice("calibrator name", name, CALIBRATORS)
  return CALIBRATORS[name](**options)


def wrapped(base: str | Calibrator, options: Mapping[str, Any]) -> Calibrator:
  """The base of a calibrator that wraps another one: by its name and ``options``, or as its factory made it."""
  if not isinstance(base, Calibrator):
    return get(base, **options)
  if options:
    raise TypeError(f"options belong to a base chosen by name: got {', '.join(options)} beside a calibrator.")
  return base


def fit_by(solve: Callable[..., dict[str, Any]], *, of_counts: bool = False, small: str = "fast", **options: Any
           ) -> Callable[..., dict[str, Any]]:
  """The ``fit`` of a calibrator whose params are ``solve(logits, labels, weights, **options)``, compiled."""
  # ``solve`` is a function of a module, so that it is compiled once for equal options and shapes. With ``of_counts``
  # it gets the weights as ``fit_batch`` returns them, rather than with a sum of 1. How ``small`` fits are compiled is
  # what ``compilation.for_fits`` takes.
  def fit(logits, labels, *, where=None, weights=None):
    arrays = _checked(logits, labels, where, weights)
    args = solve, of_counts, tuple(options.items()), *arrays
    try:
      hash(args[2])
    except TypeError:  # Options that have no hash, such as traced numbers, are not static.
      return _solve(*args)
    if not arrays[0]:
      with contextlib.suppress(ValueError):  # Within another program; or the next call raises it again.
        return compilation.for_fits(_solve, arrays[1].size, small, static_argnums=(0, 1, 2, 3))(*args)
    return _compiled_solve(*args)

  return fit


def _solve(solve: Callable[..., dict], of_counts: bool, options: tuple, is_unchecked: bool, *arrays) -> dict:
  logits, labels, weights = _flat(is_unchecked, *arrays)
  params = solve(logits, labels, weights if of_counts else shares(weights, logits.dtype), **dict(options))
  if "converged" not in params or not is_unchecked:
    return params
  total = jnp.sum(weights.astype(logits.dtype))
  return params | {"converged": params["converged"] & jnp.all(logits < jnp.inf) & (total > 0) & (total < jnp.inf)}


_compiled_solve = jax.jit(_solve, static_argnums=(0, 1, 2, 3))


def fit_batch(logits: ArrayLike, labels: ArrayLike, where: ArrayLike | None, weights: ArrayLike | None
              ) -> tuple[Array, Array, Array]:
  """What every fit does with its arguments first: ``(logits [N, K], labels [N], weights [N])``."""
  # Of rows that do not count, or that have one class, all are 0. Logits of classes that a row does not have are -inf.
  # Without weights they are bools. Traced logits become NaN in a row whose label is no class of it, and traced weights
  # NaN where they are below 0.
  arrays = _checked(logits, labels, where, weights)
  return compilation.sized(_flat, np.size(arrays[1]), static_argnums=0)(*arrays)


def _checked(logits, labels, where, weights) -> tuple:
  """The arguments of ``_flat``: whether values could not be checked, and the arrays as they were, but for types."""
  if where is None and weights is None and checks.are_right_on_host(logits, labels):
    # Labels of any width are one program.
    return False, logits, np.asarray(labels).astype(np.int32, copy=False), np.ones(labels.shape, bool), None
  passed = logits, labels
  weights, where = checks.weights_and_where(weights, where, labels)
  logits, labels = checks.outputs_and_labels(logits, labels)
  where = checks.mask(where, labels.shape)
  checks.class_values(*passed, where, name="logits", converted=(logits, labels))
  checks.something_counts(labels, where)
  checks.warn_of_probs(logits, where)
  # With a mask in any case, fits with and without one are the same program.
  where = np.ones(labels.shape, bool) if where is None else where
  return not checks.are_checked(logits, labels, where, weights), logits, labels, where, weights


def _flat(is_unchecked: bool, logits, labels, where, weights) -> tuple[Array, Array, Array]:
  logits, labels, where = checks.masked(where, labels.shape, (logits, 0), (labels, 0))
  logits = without_absent(checks.nan_out_of_range(logits, labels, logits.shape[1]) if is_unchecked else logits)
  logits = jnp.where((pick(logits, labels) == -jnp.inf)[:, None], jnp.nan, logits)
  is_certain = jnp.sum(logits == -jnp.inf, axis=1) == logits.shape[1] - 1
  where &= ~is_certain
  return (jnp.where(is_certain[:, None], 0, logits), jnp.where(is_certain, 0, labels),
          where if weights is None else checks.counts(weights, where, logits.dtype))


class NoWeights(ValueError):
  """A fit that takes no weights was given some."""


def refuse_weights(weights: Array, name: str, why: str) -> None:
  """Raises NoWeights if ``weights``, as ``fit_batch`` returns them, were given."""
  if weights.dtype != bool:
    raise NoWeights(f"{name} takes no weights: {why}.")


def refuse_traced(name: str, *arrays: Any) -> None:
  """Raises a TypeError if an array is traced, for fits that run on the host."""
  if checks.is_traced(*arrays):
    raise TypeError(f"{name} is fitted on the host, because the shapes in its fit depend on the data: call fit outside "
                    "jax.jit and jax.vmap, and compile apply alone.")


def by_row(apply: Callable[..., Array], **options: Any) -> Callable[[Any, Array], Array]:
  """The ``apply`` of a calibrator, for logits ``[..., K]``, from a function of params and logits ``[N, K]``."""
  def apply_to_rows(params, logits):
    logits = checks.floating(logits, "logits")
    if not logits.ndim or not logits.shape[-1]:
      raise ValueError(f"logits must have the shape [..., K] of at least one class: got {logits.shape}.")
    checks.warn_of_probs(logits)
    rows = logits.reshape(math.prod(logits.shape[:-1]), logits.shape[-1])
    return apply(params, without_absent(rows), **options).reshape(logits.shape)

  return apply_to_rows


def keep_top(log_probs: Array, logits: Array) -> Array:
  """``log_probs`` with the top class of ``logits``, raised where rounding made a class of lower index its equal."""
  top, fixed = predicted(logits), jax.lax.stop_gradient(log_probs)
  above = jnp.nextafter(jnp.max(fixed, axis=-1), jnp.asarray(jnp.inf, fixed.dtype))
  lacks = jnp.where(predicted(fixed) == top, 0, above - pick(fixed, top))
  return log_probs + lacks[..., None] * jax.nn.one_hot(top, logits.shape[-1], dtype=fixed.dtype)


@register
@has_params()
def identity() -> Calibrator:
  """No calibration: ``log softmax(z)``; nothing to fit.

  Use it as the row to compare with.

  >>> calibrator = identity()
  >>> params = calibrator.fit(jnp.array([[2.0, 0.0]]), jnp.array([0]))
  >>> jnp.exp(calibrator.apply(params, jnp.array([[0.0, 0.0]])))
  Array([[0.5, 0.5]], dtype=float32)
  """
  return Calibrator(nothing_to_fit, by_row(lambda params, logits: jax.nn.log_softmax(logits)), "identity")


def nothing_to_fit(logits: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = None,
                   weights: ArrayLike | None = None) -> dict[str, Any]:
  """The ``fit`` of a calibrator without parameters: it only checks its arguments."""
  prepared, _ = checks.outputs_and_labels(logits, labels)
  _, where = checks.weights_and_where(weights, where, labels)
  checks.label_values(labels, prepared.shape[-1], where)
  checks.warn_of_probs(prepared, checks.mask(where, prepared.shape[:-1]))
  return {}
