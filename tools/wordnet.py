"""Make src/cots/embedded/imagenet-taxonomy.csv: WordNet's hypernyms of the ImageNet classes, as edges.

    apt-get download wordnet-base && dpkg -x wordnet-base_*.deb wordnet
    python tools/wordnet.py wordnet/usr/share/wordnet/data.noun

ImageNet's synsets are offsets of WordNet 3.0. WordNet is a graph with several parents per node: the first one listed is
kept. Nodes with a single child are dropped. A class can be given by open_clip's name or by a lemma of its synset that
names nothing else; of the two classes called "missile", and of the two called "sunglasses", the place of the last one
is kept.
"""

from __future__ import annotations

import csv
import io
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from cots.classes import clean_name, imagenet_names

OUT = Path(__file__).parents[1] / "src/cots/embedded/imagenet-taxonomy.csv"


@dataclass(frozen=True)
class Synset:
    lemmas: tuple[str, ...]
    parent: str | None


def parse(lines: list[str]) -> tuple[str, dict[str, Synset]]:
    """The licence at the head of data.noun, and its synsets by offset: lemmas, and the first hypernym."""
    licence, synsets = "", {}
    for line in lines:
        if line.startswith("  "):
            licence += f"# {line.strip().partition(' ')[2]}".rstrip() + "\n"
            continue
        words = line.partition(" | ")[0].split()
        count = int(words[3], 16)
        lemmas = tuple(clean_name(word) for word in words[4 : 4 + 2 * count : 2])
        pointers = words[5 + 2 * count :]
        parents = [pointers[i + 1] for i in range(0, len(pointers) - 3, 4) if pointers[i] in ("@", "@i")]
        synsets[words[0]] = Synset(lemmas, parents[0] if parents else None)
    return licence, synsets


def branches(leaves: list[str], synsets: dict[str, Synset]) -> dict[str, str | None]:
    """The parent of each leaf and of each node with two children or more, among such nodes."""
    children: dict[str, set[str]] = {}
    for leaf in leaves:
        node = leaf
        while parent := synsets[node].parent:
            children.setdefault(parent, set()).add(node)
            node = parent
    parents: dict[str, str | None] = {}
    kept = {node for node, below in children.items() if len(below) > 1}
    for node in [*leaves, *kept]:
        parent = synsets[node].parent
        while parent is not None and parent not in kept:
            parent = synsets[parent].parent
        parents[node] = parent
    return parents


def name_nodes(parents: dict[str, str | None], leaves: dict[str, str], synsets: dict[str, Synset]) -> dict[str, str]:
    """A unique name for each node: open_clip's for a class, else the first free lemma, with its parent's if none is."""
    names, taken = dict(leaves), {name.casefold() for name in leaves.values()}
    for node in sorted(set(parents) - set(leaves)):
        lemmas = synsets[node].lemmas
        free = [lemma for lemma in lemmas if lemma.casefold() not in taken]
        above = parents[node]
        names[node] = free[0] if free else f"{lemmas[0]} ({synsets[above].lemmas[0] if above else 'top'})"
        assert names[node].casefold() not in taken, names[node]
        taken.add(names[node].casefold())
    return names


def rows(synsets: dict[str, Synset]) -> list[tuple[str, str]]:
    """(parent, child) of groups, then of classes, then of their further lemmas."""
    leaves = {synset.removeprefix("n"): name for synset, name in imagenet_names().items()}
    parents = branches(list(leaves), synsets)
    names = name_nodes(parents, leaves, synsets)
    above = {node: "" if parent is None else names[parent] for node, parent in parents.items()}
    found = [(above[node], names[node]) for node in sorted(set(parents) - set(leaves)) if parents[node]]
    found += {names[node]: (above[node], names[node]) for node in leaves}.values()
    taken = {name.casefold() for name in names.values()}
    count = Counter(lemma.casefold() for node in leaves for lemma in set(synsets[node].lemmas))
    for node in leaves:
        for lemma in synsets[node].lemmas:
            if count[lemma.casefold()] == 1 and lemma.casefold() not in taken:
                found.append((above[node], lemma))
                taken.add(lemma.casefold())
    return found


def main() -> None:
    licence, synsets = parse(Path(sys.argv[1]).read_text(encoding="latin-1").splitlines())
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([("parent", "child"), *rows(synsets)])
    about = "# Hypernyms of the ImageNet classes in WordNet 3.0, selected and renamed by tools/wordnet.py.\n#\n"
    OUT.write_text(about + licence + file.getvalue(), encoding="utf-8")
    print(f"{OUT}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
