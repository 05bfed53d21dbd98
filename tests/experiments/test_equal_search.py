"""The equal search: its candidates, and sentences that follow from its rows."""

import collections
import itertools
import re

import numpy as np
import pandas as pd
import pytest

from calib_jax._system.errors import UserError
from experiments import audit, equal_search
from experiments.common import sweep
from experiments.common.commands import RESULTS, ROOT
from experiments.equal_search import ENSEMBLE, LABEL

AUGMENTATION = {"augmentation": {"name": "randaugment"}, "augmentation.magnitude": 6.0}
WHOLE = "cross entropy with RandAugment, twice the rate"
LOSS = {WHOLE: 0.40, "cross entropy with RandAugment": 0.42, "cross entropy with twice the rate": 0.44,
        "focal with RandAugment": 0.36, "MbLS": 0.401, WHOLE + ENSEMBLE: 0.38,
        "focal with RandAugment" + ENSEMBLE: 0.39}


def _page(same=(), **changed):
  """The findings of rows of six seeds with these log losses and a little noise; ``same`` have those of ``WHOLE``."""
  rng = np.random.default_rng(0)
  rows = [{"task": "", "method": name, "calibrator": LABEL, "seed": str(seed), "nll": str(loss + 0.002 * rng.normal()),
           "accuracy": "0.85", "ece": "0.012", "floor": "0.01"}
          for name, loss in {**LOSS, **changed}.items() for seed in range(6)]
  rows += [{**row, "method": name} for name in same for row in rows if row["method"] == WHOLE]
  return "\n".join(equal_search.findings(pd.DataFrame(rows)))


def test_all_methods_try_the_same_rates_and_decays_and_two_more_candidates(monkeypatch, tmp_path):
  tried = collections.defaultdict(list)

  def halve(config, space, candidates, **options):
    if "rate" in space:
      tried[candidates[0]["method"]] += [equal_search.halving.fields(space, choice) for choice in candidates]
    losses = [abs(i - 6) for i in range(len(candidates))]  # The pair in the middle, then the second of two more.
    return sorted(map(equal_search.halving.Standing, candidates, losses), key=lambda x: x.loss)

  monkeypatch.setattr(equal_search.halving, "halve", halve)
  methods = equal_search.methods(sweep.parse(equal_search.EXPERIMENT, [
    "--data=cifar10_jpeg.npz", "--network=resnet8", f"--out={tmp_path}"]))
  assert len(tried) == 10 and {len(of) for of in tried.values()} == {15}  # The best pair stands for two.
  grid = sorted(itertools.product(equal_search.DECAYS, equal_search.RATES))
  for fields in tried.values():
    assert sorted((x["optimizer.l2"], x["optimizer.learning_rate"]) for x in fields[:12]) == grid
    assert len({str(sorted(x.items(), key=str)) for x in fields}) == 14
    magnitudes = {x["augmentation"].get("magnitude", x.get("augmentation.magnitude")) for x in fields}
    assert len(magnitudes) == 1 and None not in magnitudes
  configs = {method.name: method.config() for method in methods}
  assert [config.num_seeds for config in configs.values()] == [10] * 6 + [5] * 6
  assert sum(equal_search.ENSEMBLE in name for name in configs) == 3
  for name, config in configs.items():
    assert ("RandAugment" in name) == bool(config.augmentation.get("magnitude"))
    assert f"decay {config.optimizer.l2:.0e}".replace("e-0", "e-") in name or "decay" not in name


def test_a_setting_that_cannot_be_trained_is_no_error_and_a_page_is_made_anew_without_a_search(monkeypatch):
  def refuse(*arguments, **options):
    raise UserError("labels are mixed")

  options = sweep.parse(equal_search.EXPERIMENT, ["--data=fashion_mnist.npz"])
  config = equal_search.scales.base(options)
  monkeypatch.setattr(equal_search.tuning, "validation_predictions", refuse)
  assert equal_search.validated(config) == [(float("inf"), 0.0)] * config.num_seeds
  monkeypatch.setattr(equal_search.halving, "halve", refuse)
  options.only = ["nothing"]
  assert equal_search.methods(options) == []
  options.only = ["AugMix", "focal"]
  with pytest.raises(UserError, match="labels are mixed"):  # It searches.
    equal_search.methods(options)


def test_the_page_says_what_is_shown_and_no_more():
  whole = _page()
  page, together = whole.split("## Ensembles of 5")
  assert "Of 3 methods, the search chose RandAugment for 2, twice the rate for 1." in page
  assert "a lower log loss than cross entropy with the same search: focal." in page
  assert "Not shown to differ: 1 of 2. Shown to differ by sign flips: none; no p of 6 seeds is below 0.031." in page
  assert "The lowest mean is that of focal with RandAugment: -" in page
  assert "the aim of 3% less than cross entropy with the same search is met." in page
  assert "a higher log loss than cross entropy with the same search: focal." in together
  assert "The lowest mean is that of focal with RandAugment, ensemble of 5: +" in together and "the aim" not in together
  assert "Shown to lower the log loss: RandAugment, twice the rate." in together


def test_sentences_follow_from_the_rows():
  page = _page(**{"focal with RandAugment": 0.401, "cross entropy with RandAugment": 0.4})
  assert "a lower log loss than cross entropy with the same search: none." in page
  assert "Not shown to differ: 2 of 2" in page
  assert "the aim of 3% less than cross entropy with the same search is missed" in page
  assert "Shown to lower the log loss: RandAugment." in page


def test_a_method_whose_networks_are_those_of_cross_entropy_is_named():
  page = _page(same=["weight decay with RandAugment, twice the rate"])
  assert "Not shown to differ: 2 of 3 (weight decay: the same training as cross entropy's)." in page


def _shown(section, word):
  """The methods that a section of a page names, each with its relative difference."""
  names = re.search(rf"a {word} log loss than cross entropy with the same search: (.*?)\. ", section)[1]
  relative = {re.split(" with |, ensemble", cells[0])[0]: cells[3] for _, _, cells in audit.tables(section)}
  return [] if names == "none" else [f"{name} ({relative[name]})" for name in names.split("; ")]


def test_the_table_of_the_guide_is_that_of_the_pages():
  guide = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
  table = [(header, cells) for _, header, cells in audit.tables(guide) if header[0] == "with this search"]
  for i, link in enumerate(table[0][0][1:], 1):
    page = (RESULTS / re.search(r"equal_search_\w+\.md", link)[0]).read_text(encoding="utf-8")
    one, five, parts = page.split("\n## ")[1:4]
    changes = {cells[0]: cells[3] for _, _, cells in audit.tables(parts)}
    others = [change for part, change in changes.items() if part != "RandAugment"]
    assert [cells[i] for _, cells in table] == [
      "; ".join(_shown(one, "lower")) or "none", str(len(_shown(one, "higher"))),
      "; ".join(_shown(five, "lower")) or "none", changes["RandAugment"], ", ".join(others) or "not chosen"]
