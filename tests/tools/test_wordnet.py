"""The tree that ships: what tools/wordnet.py takes from WordNet's file."""

from __future__ import annotations

import pytest
from support.scripts import load_script

DATA = """\
  1 This database is licensed.
  2
00000001 03 n 01 animal 0 000 | a living thing
00000002 03 n 01 pet 0 001 @ 00000001 n 0000 | kept at home
00000003 03 n 02 canine 0 dog_family 0 002 @ 00000001 n 0000 ~ 00000004 n 0000 | toothed
00000004 05 n 01 dog 0 002 @ 00000003 n 0000 @ 00000002 n 0000 | two parents
00000005 05 n 01 hound 0 001 @ 00000004 n 0000 | "hunts" | loudly
00000006 05 n 02 beagle 0 small_hound 0 001 @ 00000005 n 0000 | small
00000007 05 n 01 basset 0 001 @ 00000005 n 0000 | long
00000008 05 n 01 wolf 0 001 @ 00000003 n 0000 | wild
""".splitlines()
LEAVES = ["00000006", "00000007", "00000008"]


@pytest.fixture(scope="module")
def wordnet():
    return load_script("tools/wordnet.py", "wordnet_tool")


def test_the_first_parent_and_the_licence_are_kept(wordnet):
    licence, synsets = wordnet.parse(DATA)
    assert licence == "# This database is licensed.\n#\n"
    assert synsets["00000004"] == wordnet.Synset(("dog",), "00000003")
    assert synsets["00000003"].lemmas == ("canine", "dog family")
    assert synsets["00000001"].parent is None


def test_only_branches_stay_and_names_are_unique(wordnet):
    _, synsets = wordnet.parse(DATA)
    parents = wordnet.branches(LEAVES, synsets)
    hound, canine = "00000005", "00000003"
    assert parents == {"00000006": hound, "00000007": hound, "00000008": canine, hound: canine, canine: None}
    leaves = {"00000006": "beagle", "00000007": "basset", "00000008": "hound"}  # a class with the name of a group
    names = wordnet.name_nodes(parents, leaves, synsets)
    assert names[hound] == "hound (canine)"
    assert len(set(names.values())) == len(names)
