"""The equal search: its candidates, and sentences that follow from its rows."""

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


@pytest.mark.parametrize("own", [{"loss.weight": 0.3}, {"augmentation": {"name": "mixup"}}])
def test_every_method_has_twelve_candidates_of_which_its_own_setting_is_the_first(own):
  space = equal_search.space_of("one", own, AUGMENTATION, 0.1)
  candidates = equal_search.halving.draw(space, 100)
  assert len(candidates) == 12 and equal_search.named(candidates[0]) == "one"
  fields = [equal_search.halving.fields(space, choice) for choice in candidates]
  assert fields[0] == own and len({str(x) for x in fields}) == 12
  assert {x.get("optimizer.learning_rate", 0.1) for x in fields} >= {0.1, 0.2}
  assert all(x["augmentation"]["name"] == "mixup" for x in fields if "augmentation" in own)


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
  assert "Not shown to differ: 1 of 2. The lowest mean is that of focal with RandAugment: -" in page
  assert "the aim of 5% less than cross entropy with the same search is met." in page
  assert "a higher log loss than cross entropy with the same search: focal." in together
  assert "the aim of 10% less than cross entropy with the same search is missed." in together
  assert "Shown to lower the log loss: RandAugment, twice the rate." in together


def test_sentences_follow_from_the_rows():
  page = _page(**{"focal with RandAugment": 0.401, "cross entropy with RandAugment": 0.4})
  assert "a lower log loss than cross entropy with the same search: none." in page
  assert "Not shown to differ: 2 of 2" in page
  assert "the aim of 5% less than cross entropy with the same search is missed" in page
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
