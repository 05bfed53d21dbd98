"""The formulas that docs/calibrators.md gives for serving without JAX are those of ``apply``, in NumPy and PyTorch."""

import pathlib
import re

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from calib_jax import calibrators
from tests.calibrators.data import made, padded, synthetic

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "calibrators.md"
SECTION = DOCS.read_text(encoding="utf-8").split("| calibrator | scores, before the softmax |")[1].split("\n\n")[0]
FORMULAS = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", SECTION, re.MULTILINE))


def _scores(name, params, z, functions):
  """Evaluates the formula of the docs: its code comes first, and ``with`` introduces definitions."""
  text = FORMULAS[name]
  definitions = re.findall(r"`(\w) = (.*?)`", text)
  if name == "structured_matrix_scaling":
    definitions = re.findall(r"`(\w) = (.*?)`", FORMULAS["structured_vector_scaling"])
    code = f"{re.match(r'`(.*?)`', FORMULAS['structured_vector_scaling'])[1]} {re.search(r'`(.*?)`', text)[1]}"
  else:
    code = re.match(r"`(.*?)`", text)[1]
  names = {"z": z, "p": params, "K": z.shape[1], **functions}
  for symbol, value in definitions:
    names[symbol] = eval(value, names)
  return eval(code, names)


def test_the_table_has_every_calibrator_that_is_a_formula():
  assert len(FORMULAS) == 8 and FORMULAS.keys() <= calibrators.CALIBRATORS.keys()


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(f"fit {name}"))
                                  for name in FORMULAS])
def test_the_formula_of_the_docs_is_apply(name):
  logits, labels, where = padded("K=10")
  params = made(name).fit(logits, labels, where=where)
  z = synthetic(600, 10, seed=1)[0]
  expected = np.exp(made(name).apply(params, jnp.asarray(z)))
  arrays = {key: np.asarray(value) for key, value in params.items()}
  functions = {"softmax": lambda x: special.softmax(x, -1), "log_softmax": lambda x: special.log_softmax(x, -1),
               "log": np.log}
  actual = special.softmax(_scores(name, arrays, z, functions), axis=-1)
  np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
  torch = pytest.importorskip("torch", reason="PyTorch is not installed")
  functions = {"softmax": lambda x: torch.softmax(x, -1), "log_softmax": lambda x: torch.log_softmax(x, -1),
               "log": torch.log}
  tensors = {key: torch.as_tensor(value) for key, value in arrays.items()}
  actual = torch.softmax(_scores(name, tensors, torch.as_tensor(z), functions), -1).numpy()
  np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
