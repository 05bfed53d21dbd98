"""Columns as R writes them: tidymodels' ``augment()`` and caret's ``savePredictions``."""

from collections.abc import Callable, Sequence

from calib_jax.evaluation.predictions.headers import LABELS, listed

PREFIX, PREDICTED = ".pred_", ".pred_class"
TRUTH = ("class", "truth", "obs", "outcome")  # What the column of the true class is called, in any case.


def renamed(names: Sequence[str], values: Callable[[int], set[str]], say: Callable[[str], None]) -> list[str]:
  """Returns names of columns; R's probabilities are called ``prob_CLASS``, and the truth ``label``.

  ``augment()`` has ``.pred_No``, ``.pred_Yes`` and the truth under the name that it had; caret has ``pred``, ``obs``
  and columns called as the classes, which ``values``, of the column at a place, tells apart from others. Other files
  stay as they are.
  """
  if any(name.startswith(PREFIX) for name in names):
    classes = [name for name in names if name.startswith(PREFIX) and name != PREDICTED]
    others = [name for name in names if not name.startswith(".")]
    named = [name for name in others if name.lower() in (*LABELS, *TRUTH)] or (others if len(others) == 1 else [])
    new = {name: f"prob_{name.removeprefix(PREFIX)}" for name in classes}
    tool = "tidymodels' augment()"
  elif {"pred", "obs"} <= set(names):
    classes = [name for name in names if name in values(names.index("obs")) - {"pred", "obs"}]
    new, named, tool = {name: f"prob_{name}" for name in classes}, ["obs"], "caret"
  else:
    return list(names)
  if len(classes) < 2 or not named:
    return list(names)
  if named[0].lower() not in LABELS:
    new[named[0]] = LABELS[1]
  say(f": its columns are read as those of {tool}: {listed(classes)} are the probabilities of these classes, and "
      f"{named[0]} is the true class.")
  return [new.get(name, name) for name in names]
