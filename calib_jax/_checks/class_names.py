"""Joins two sets of classes by their names, so that the order of columns changes nothing."""

from collections.abc import Sequence

SHOWN = 8  # Names that a message lists.


def places(names: Sequence[str], wanted: Sequence[str], owners: tuple[str, str]) -> list[int]:
  """For each of the classes ``wanted`` its place among ``names``; a ValueError unless both have the same names.

  ``owners`` says whose ``names`` and whose ``wanted`` they are. In a file of one column ``prob_ill`` the other class
  may have no name but "not ill", which stands for any.

  >>> places(["dog", "cat"], ["cat", "dog"], ("test.csv", "val.csv"))
  [1, 0]
  >>> places(["not ill", "ill"], ["ill", "well"], ("test.csv", "val.csv"))
  [1, 0]
  """
  if len(names) == len(wanted) == 2:
    names, wanted = _other_named(names, wanted), _other_named(wanted, names)
  place = {name: i for i, name in enumerate(names)}
  if place.keys() != set(wanted):
    alone = [(owner, [name for name in own if name not in set(others)])
             for owner, own, others in zip(owners, (names, wanted), (wanted, names), strict=True)]
    raise ValueError(f"the classes of {owners[0]} are not those of {owners[1]}: "
                     + " and ".join(f"only {owner} has {listed(own)}" for owner, own in alone if own) + ".")
  return [place[name] for name in wanted]


def _other_named(names: Sequence[str], others: Sequence[str]) -> list[str]:
  """Two names; "not X" becomes the name that ``others`` have beside X."""
  for name, beside in zip(names, names[::-1], strict=True):
    if name == f"not {beside}" and beside in others:
      other = next(x for x in others if x != beside)
      return [beside if x == beside else other for x in names]
  return list(names)


def listed(names: Sequence[str]) -> str:
  """The first names as a phrase for a message."""
  more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
  return ", ".join(repr(name) if len(name) <= 60 else repr(f"{name[:60]}…") for name in names[:SHOWN]) + more


def checked(classes: Sequence[object], num_classes: int) -> tuple[str, ...]:
  """The names of ``num_classes`` classes as texts; a ValueError unless they are as many different ones."""
  names = tuple(map(str, classes))
  if len(names) != num_classes or len(set(names)) != len(names):
    raise ValueError(f"classes must be {num_classes} different names, one for each class in the order of the logits: "
                     f"got {listed(names)}.")
  return names
