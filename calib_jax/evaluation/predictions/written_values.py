"""Values as tools and people write them: "90%", log-probabilities of confidences, yes and no, C and I."""

from collections.abc import Callable, Sequence

import numpy as np

from calib_jax._system.errors import FileError, short

# What else a right and a wrong answer are called, in any case.
VERDICTS = (("true", "false"), ("yes", "no"), ("y", "n"), ("t", "f"), ("c", "i"), ("correct", "incorrect"),
            ("right", "wrong"), ("pass", "fail"))


def numbers(texts: Sequence[str], name: str, say: Callable[[str], None]) -> np.ndarray:
  """Returns texts as float64 numbers, of percentages such as "90%" as fractions; others are a FileError with a row."""
  texts = [text.strip() for text in texts]
  are_percent = [text.endswith("%") for text in texts]
  if any(are_percent) and not all(are_percent):
    row = are_percent.index(not are_percent[0])
    raise FileError(f": {short(name)} must hold percentages such as 90% in all rows, or in none: row {row}, counted "
                    f"from 0, holds {short(texts[row])}, and row 0 {short(texts[0])}.")
  values = np.empty(len(texts))
  for row, text in enumerate(texts):
    try:
      values[row] = float(text.rstrip("%"))
    except ValueError:
      raise FileError(f": {short(name)} must hold numbers: row {row}, counted from 0, holds {short(text)}.") from None
  if all(are_percent) and texts:
    say(f": its {name} are percentages, such as {short(texts[0])}, and are divided by 100.")
    return values / 100
  return values


def from_logarithms(values: np.ndarray, name: str, say: Callable[[str], None]) -> np.ndarray:
  """Returns confidences of their logarithms, which must be at most 0."""
  if (values > 0).any():
    row = int((values > 0).argmax())
    raise FileError(f": its {name} must be logarithms of probabilities, at most 0: that of row {row}, counted from 0, "
                    f"is {values[row]:g}.")
  say(f": its {name} is read as the logarithm of the probability that an answer is right.")
  return np.exp(values)


def verdicts(correct: np.ndarray, name: str, say: Callable[[str], None]) -> np.ndarray:
  """Returns whether answers are right as bools, where texts such as yes and no, or C and I, say it; else the array."""
  if correct.dtype.kind != "U":
    return correct
  values = {text.strip().lower() for text in correct.ravel().tolist()}
  pair = next((pair for pair in VERDICTS if values and values <= set(pair)), None)
  if pair is None:
    return correct
  if pair != VERDICTS[0]:
    say(f": its {name} are texts: {short(pair[0])} is a right answer and {short(pair[1])} a wrong one.")
  return np.char.lower(np.char.strip(correct)) == pair[0]
