"""Options stand in groups with examples below them, and a wrong one is answered by one line."""

import re

import pytest

from calib_jax.cli import apply, compare, evaluate, parsers

COMMANDS = {"evaluate": evaluate, "compare": compare, "apply": apply}


@pytest.mark.parametrize(("name", "arguments", "answer"), [
  ("evaluate", ["--tets", "a.npz"], "error: unrecognized arguments: --tets a.npz. Did you mean '--test'?\n"),
  ("evaluate", ["--test", "a.npz", "--risk=low"], "error: argument --risk: invalid float value: 'low'. calib-jax "
   "evaluate --help lists the options.\n"),
  ("compare", [], "error: the following arguments are required: RUN_OR_FILE. calib-jax compare --help lists the "
   "options.\n"),
  ("apply", ["--out", "a.csv"], "error: the following arguments are required: --calibrator, --predictions. calib-jax "
   "apply --help lists the options.\n")])
def test_a_wrong_option_is_one_line(name, arguments, answer, capsys):
  with pytest.raises(SystemExit, match="2"):
    COMMANDS[name].main(arguments)
  assert capsys.readouterr().err == answer


def test_the_help_has_groups_and_examples(capsys):
  with pytest.raises(SystemExit, match="0"):
    evaluate.main(["--help"])
  text = capsys.readouterr().out
  titles = re.findall(r"^(\w+):$", text, re.MULTILINE)
  assert titles == ["options", *parsers.GROUPS, "examples"]
  assert re.findall(r"--\w+", text.split("\noptions:")[1].split("\nfiles:")[0]) == ["--help"]
  written = re.findall(r"^  calib-jax (\w+) (.*)$", text.split("\nexamples:")[1], re.MULTILINE)
  assert len(written) == 3 and all(name == "evaluate" for name, _ in written)
  for _, options in written:
    assert set(re.findall(r"--\w+", options)) <= set(re.findall(r"--\w+", text.split("\nexamples:")[0]))
