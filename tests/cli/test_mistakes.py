"""The commands of docs/mistakes.md print what the page says, and end as it says."""

import pickle
import re
import shlex
import sys

import numpy as np
import pytest

from calib_jax._system.errors import UserError
from calib_jax.cli import evaluate as evaluation_command
from calib_jax.training.distributed import processes
from main import main
from tests.programs import ROOT, python

PAGE = (ROOT / "docs/mistakes.md").read_text(encoding="utf-8")
MISTAKES = re.findall(r"```sh\n(.*)\n```\n\n```text\n(.*)\n```", PAGE)
# In processes of their own: what TensorFlow Datasets, a machine without it and one without a GPU do.
MACHINES = {"is not prepared": {"offline": True}, "JAX_PLATFORMS": {"JAX_PLATFORMS": "cuda"},
            "needs TensorFlow": {"blocked": ("tensorflow", "tensorflow_datasets")}}


@pytest.fixture
def here(tmp_path, monkeypatch):
  """A directory with the configs and the files that the commands name."""
  rng, labels = np.random.default_rng(0), np.arange(60) % 3
  images, logits = rng.integers(0, 256, (60, 4, 4), dtype=np.uint8), rng.normal(size=(60, 3)).astype(np.float32)
  (tmp_path / "configs").symlink_to(ROOT / "configs")
  np.savez(tmp_path / "images.npz", images=images, labels=labels)
  np.savez(tmp_path / "labels_from_1.npz", images=images, labels=labels + 1)
  probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
  np.savez(tmp_path / "probabilities.npz", logits=probs, labels=labels)
  np.savez(tmp_path / "logits_as_probs.npz", probs=logits, labels=labels)
  (tmp_path / "pickled.npz").write_bytes(pickle.dumps({"images": images, "labels": labels}, protocol=4))
  monkeypatch.chdir(tmp_path)
  return tmp_path


def _matches(sentence, line):
  return re.fullmatch(".*".join(map(re.escape, sentence.split("…"))), line)


def _parts(command):
  """The module of a command and its arguments, without the variables before it."""
  words = [word for word in shlex.split(command) if not re.match("[A-Z_]+=", word)]
  assert words[0] == "python"
  return words[2 if words[1] == "-m" else 1], words[3 if words[1] == "-m" else 2:]


@pytest.mark.parametrize(("command", "sentence"), [
  # A mistake that is mended goes on to a whole evaluation.
  pytest.param(*pair, id=pair[1][:50], marks=() if pair[1].startswith("error: ") else pytest.mark.slow)
  for pair in MISTAKES if not any(words in pair[1] for words in MACHINES)])
def test_the_sentence_is_that_of_the_page(command, sentence, here, monkeypatch, capsys):
  program, arguments = _parts(command)
  monkeypatch.setattr(sys, "argv", [program, *arguments])
  monkeypatch.setattr(processes, "connect", lambda *_: None)  # JAX runs already, with the devices of the tests.
  code = main(arguments) if program == "main.py" else evaluation_command.main()
  lines = capsys.readouterr().err.splitlines()
  assert code == (2 if sentence.startswith("error: ") else 0)
  assert lines and all(_matches(sentence, line) for line in lines), lines
  assert not (here / "runs").exists()


@pytest.mark.parametrize(("command", "sentence", "machine"), [
  pytest.param(*pair, machine, id=words, marks=pytest.mark.slow)
  for pair in MISTAKES for words, machine in MACHINES.items() if words in pair[1]])
def test_the_sentence_on_other_machines_is_that_of_the_page(command, sentence, machine, tmp_path):
  program, arguments = _parts(command)
  if "is not prepared" in sentence:  # Relative to a directory of this test, and not to the project's.
    arguments = [word.replace("downloads", f"{tmp_path}/downloads") for word in arguments]
    sentence = sentence.replace("downloads", f"{tmp_path}/downloads")
  done = python(program, *arguments[:1], f"--workdir={tmp_path / 'run'}", *arguments[2:], tmp_path=tmp_path,
                **{"blocked": (), **machine})
  assert done.returncode == 2
  assert _matches(sentence, done.stderr.strip().splitlines()[-1]), done.stderr
  assert "Traceback" not in done.stderr and not (tmp_path / "run").exists()


@pytest.mark.parametrize(("asked", "advice"), [
  ("cuda", "pip install 'jax[cuda13]==…', or unset"), ("tpu,cpu", "pip install 'jax[tpu]==…', or unset"),
  ("neuron", "unset")])
def test_devices_that_are_not_there_are_one_sentence(asked, advice, monkeypatch):
  def missing():
    raise AssertionError

  monkeypatch.setattr(processes.jax, "devices", missing)
  monkeypatch.setenv("JAX_PLATFORMS", asked)
  with pytest.raises(UserError) as error:
    processes._check_devices()
  assert _matches(f"JAX finds no device for JAX_PLATFORMS={asked}: {advice} JAX_PLATFORMS, which takes what there is.",
                  str(error.value))


def test_the_page_has_ten_mistakes():
  assert PAGE.count("\n## ") == 10 and len(MISTAKES) == 11
