"""Taxonomies from files: both forms, and every input that must be refused or resolved."""

import numpy as np
import pytest

from cots import InputError
from cots.classes import class_list
from cots.taxonomy import TaxonomyFile

RANKS = """kingdom,family,genus,species,common name
Animalia,Ardeidae,Ardea,cinerea,grey heron
Animalia,Ardeidae,Ardea,purpurea,purple heron
Animalia,Ardeidae,Egretta,garzetta,little egret
Animalia,Sulidae,Morus,bassanus,northern gannet
Plantae,Moraceae,Morus,alba,white mulberry
Plantae,Moraceae,Morus,nigra,
"""


def tree_of(text, classes, folder, name="tree.csv"):
    file = folder / name
    file.write_text(text)
    return TaxonomyFile.read(file).tree(classes)


def paths(tree):
    return [[tree.names[node] for node in tree.path(leaf)] for leaf in tree.leaves]


def test_ranks_are_keyed_by_their_full_path(tmp_path):
    text = RANKS.replace("nigra,", "nigra,black mulberry")
    classes = ["Grey_heron", "Ardea purpurea", "garzetta", "northern gannet", "white mulberry", "black mulberry"]
    tree = tree_of(text, classes, tmp_path)
    assert paths(tree) == [
        ["Animalia", "Ardeidae", "Ardea", "Grey_heron"],
        ["Animalia", "Ardeidae", "Ardea", "Ardea purpurea"],
        ["Animalia", "Ardeidae", "garzetta"],
        ["Animalia", "northern gannet"],  # not below the mulberries' genus of the same name
        ["Morus", "white mulberry"],
        ["Morus", "black mulberry"],
    ]
    ranks = dict(zip(tree.names, tree.ranks, strict=True))
    assert (ranks["Ardeidae"], ranks["Ardea"], ranks["Grey_heron"]) == ("family", "genus", "species")


@pytest.mark.parametrize("separator", [",", "\t", " "])
def test_edges_may_come_in_any_order_and_without_a_header(separator, tmp_path):
    rows = ["cat persian", "mammal dog", "dog beagle", "mammal cat", "cat siamese", "dog pug", "life mammal"]
    text = "\ufeff# a comment, with commas\n" + "\n".join(rows).replace(" ", separator) + "\n"
    tree = tree_of(text, ["beagle", "persian", "pug", "siamese"], tmp_path)
    assert tree.names[0] == "mammal"
    assert paths(tree) == [["dog", "beagle"], ["cat", "persian"], ["dog", "pug"], ["cat", "siamese"]]


def test_edges_can_name_ranks(tmp_path):
    text = "parent,child,rank\n,cat,species\n,dog,species\ncat,persian,breed\ncat,siamese,breed\ndog,pug,breed\n"
    tree = tree_of(text, ["persian", "siamese", "pug"], tmp_path)
    assert dict(zip(tree.names, tree.ranks, strict=True)) == {
        "": None, "cat": "species", "persian": "breed", "siamese": "breed", "pug": "breed",
    }  # fmt: skip


def test_missing_classes_single_children_and_groups_that_are_classes(tmp_path):
    text = "parent,child\nanimal,mammal\nmammal,cat\nmammal,dog\ndog,beagle\nanimal,bird\n"
    tree = tree_of(text, ["beagle", "dog", "spaceship", "cat"], tmp_path)
    assert paths(tree) == [["mammal", "dog", "beagle"], ["mammal", "dog", "dog"], ["spaceship"], ["mammal", "cat"]]
    assert "bird" not in tree.names
    for node in set(tree.parents) - {-1}:
        assert tree.parents.count(node) > 1


def test_the_tree_does_not_depend_on_the_order_of_rows(tmp_path):
    rows = RANKS.replace("nigra,", "nigra,black mulberry").splitlines()
    classes = ["little egret", "white mulberry", "grey heron"]
    first = tree_of("\n".join(rows), classes, tmp_path)
    assert first.checksum == tree_of("\n".join([rows[0], *rows[:0:-1]]), classes, tmp_path).checksum
    assert first.checksum != tree_of("\n".join(rows), classes[::-1], tmp_path).checksum


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("name\ncat\n", "one column"),
        ("parent,child\n", "a header and no rows"),
        ("a,b\nb,a\n", "'a' is above itself"),
        ("a,b\nc,c\n", "'c' is above itself"),
        ("a,x\nb,x\n", "line 2: 'x' has another parent in line 1"),
        ("a,x\n,x\n", "'x' has another parent in line 1"),
        ("a,\n", "line 1: the child is empty"),
        ("a,x\na,y,z\n", "line 2 has 3 columns, the first has 2"),
        ("a,x\nb,y\x00\n", "control character"),
        ("a,x\nb,\x1b[31my\n", "control character"),
        ("a," + "x" * 2000 + "\n", "more than 1000 characters"),
        ("a," + "x" * 200_000 + "\n", "field larger than field limit"),
        ('a,"x\ny"\n', "control character"),
        (RANKS, "line 7: the last column is empty"),
        ("kingdom,genus,species\n", "a header and no rows"),
        ("a,x\nb,y\n", "none of the 2 classes, such as 'grey heron'"),
    ],
)
def test_bad_files_are_refused_by_name(text, problem, tmp_path):
    with pytest.raises(InputError, match=r"^taxonomy '.*tree\.csv'") as refused:
        tree_of(text, ["grey heron", "purple heron"], tmp_path)
    assert problem in str(refused.value)


def test_unreadable_files_are_refused_by_name(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"does not exist\. Pass a CSV file, or a known taxonomy: imagenet"):
        TaxonomyFile.read(tmp_path / "none.csv")
    with pytest.raises(InputError, match="cannot be read"):
        TaxonomyFile.read(tmp_path)
    (tmp_path / "latin.csv").write_bytes(b"a,b\xff\n")
    with pytest.raises(InputError, match="UTF-8"):
        TaxonomyFile.read(tmp_path / "latin.csv")
    monkeypatch.setattr("cots.taxonomy._file.MAX_FILE", 3)
    with pytest.raises(InputError, match="larger than"):
        TaxonomyFile.read(tmp_path / "latin.csv")


def test_a_class_in_two_places_is_refused(tmp_path):
    text = "genus,species,name\nArdea,alba,great egret\nMorus,alba,white mulberry\n"
    with pytest.raises(InputError, match=r"the class 'alba' is in 2 places \(below 'Ardea' and below 'Morus'\)"):
        tree_of(text, ["alba", "x"], tmp_path)
    assert tree_of(text, ["Morus alba", "great egret"], tmp_path).parents == (-1, 0, 0)


def test_deep_trees(tmp_path):
    """10,000 levels, each with a class beside the next level; and as ranks, all of them single children."""
    levels = 10_000
    rows = [f"g{i},g{i + 1}\ng{i},c{i}" for i in range(levels)]
    classes = [f"c{i}" for i in range(levels)]
    tree = tree_of("\n".join(rows), classes, tmp_path)
    assert max(tree.depth) == levels - 1
    row = np.zeros((1, levels))
    row[0, [0, -2, -1]] = 0.2, 0.3, 0.5
    (node,), (share,) = tree.climb(row, 0.75)
    assert (tree.depth[node], share) == (levels - 2, 0.8)
    assert tree.sufficient_thresholds(row, [0]).tolist() == [0.8]
    assert len(tree.path(node)) == levels - 2
    header = ",".join(f"r{i}" for i in range(levels))
    same = ",".join(f"x{i}" for i in range(levels - 1))
    tree = tree_of(f"{header}\n{same},a\n{same},b\n", ["a", "b"], tmp_path)
    assert (tree.names, tree.parents) == ((f"x{levels - 2}", "a", "b"), (-1, 0, 0))


def test_the_known_tree_has_all_imagenet_names_and_its_notice():
    file = TaxonomyFile.read("imagenet")
    names = class_list("imagenet")
    tree = file.tree(names)
    assert [name for name in names if not file.found.get(name.casefold())] == []
    retriever = paths(tree)[names.index("Golden Retriever")]
    assert {"animal", "mammal", "carnivore", "dog"} <= set(retriever)
    assert file.tree(["tabby", "monarch", "tench"]).names[0] == "animal"  # WordNet's lemmas, too
