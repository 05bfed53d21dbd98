"""A step compiled for a TPU slice: the cycles of loops, and a network where the compiler is there."""

import importlib.util

import pytest

from experiments.benchmarks import pod

HLO = """HloModule jit_step

%condition (p: (s32[])) -> pred[] {
  %limit = s32[] constant(5), backend_config={"estimated_cycles":"0"}
}

%body (p: (s32[])) -> (s32[]) {
  %x = f32[8] add(%a, %b), backend_config={"estimated_cycles":"10"}
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %y = f32[8] multiply(%a, %b), backend_config={"estimated_cycles":"7"}
  %w = (s32[]) while((s32[]) %t), condition=%condition, body=%body
  %r = (f32[8,4], bf16[3]) all-reduce(f32[8,4] %y, bf16[3] %z), replica_groups={}
}
"""


def test_loops_count_as_often_as_they_turn_and_collectives_by_their_bytes():
  assert pod.cycles(HLO) == 7 + 5 * 10
  match, = pod.COLLECTIVE.finditer(HLO)
  assert pod._bytes(match[1]) == 8 * 4 * 4 + 3 * 2


def test_what_is_no_slice_of_v4_is_one_sentence(capsys):
  assert pod.main(["--topology", "v9:1x1"]) == 2
  assert "--topology must be of TPU v4, such as v4:2x2x4: got 'v9:1x1'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="needs the compiler of TPUs: pip install libtpu")
def test_an_mlp_is_compiled_for_sixteen_chips(tmp_path, capsys):
  fields = ("model.name=mlp", "model.hidden=(8,)")
  assert pod.main(["--topology", "v4:2x2x4", "--config", "common.py", "--fields", *fields, "--out", str(tmp_path)]) == 0
  assert "16 chips of 4 hosts" in (tmp_path / "pod.md").read_text(encoding="utf-8")
