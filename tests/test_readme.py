"""The README's Python is run as it stands, and its commands are those of the Makefile."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_snippets_run(code):
  exec(compile(code, "README.md", "exec"), {})


def test_the_commands_of_the_first_screen_are_targets():
  targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
  assert set(re.findall(r"^make (\w+)", README, re.MULTILINE)) == {"demo", "test"} <= targets


def test_files_it_names_exist():
  for name in re.findall(r"\]\(([\w/.]+)\)", README) + re.findall(r"configs/\w+\.py", README):
    assert (ROOT / name).is_file(), name
