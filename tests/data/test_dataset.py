"""Dataset: its hash, its evenly spaced samples, and its way to a worker."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from support.layouts import put, write_split

from cots import InputError
from cots.adapters import ADAPTERS
from cots.data import PROTOCOLS, Dataset, Sample, open_dataset


def dataset(pairs: list[tuple[str, int]], classes: tuple[str, ...] = ("a", "b")) -> Dataset:
    return Dataset(name="x", title="x", classes=classes, samples=[Sample(i, label, f"/{i}") for i, label in pairs])


def test_the_split_hash_holds_order_ids_labels_and_names(tmp_path: Path):
    base = dataset([("1", 0), ("2", 1)])
    others = [
        dataset([("2", 1), ("1", 0)]),
        dataset([("1", 1), ("2", 1)]),
        dataset([("1", 0), ("3", 1)]),
        dataset([("1", 0), ("2", 1)], ("b", "a")),
        dataset([("1", 0), ("2", 1)], ("a", "b", "c")),
        dataset([("1", 0)]),
    ]
    assert len({d.split_hash for d in [base, *others]}) == 7
    for place in ("here", "there"):  # a copy elsewhere is the same test
        put(tmp_path / place / "mine" / "cat" / "1.jpg")
    hashes = {open_dataset(tmp_path / place / "mine").split_hash for place in ("here", "there")}
    assert len(hashes) == 1
    assert len(base.split_hash) == 64
    assert dataset([("\udcff.jpg", 0)]).split_hash  # a file name that is not UTF-8


def test_spread_samples():
    data = dataset([(str(n), n // 10 % 2) for n in range(20)])
    assert data.spread(2) == (0, 10)
    assert data.spread(50) == tuple(range(20))
    for count in range(1, 21):
        chosen = data.spread(count)
        assert len(set(chosen)) == count
        assert list(chosen) == sorted(chosen)
    assert data.class_counts == (10, 10)
    with pytest.raises(InputError, match="count must be a whole number >= 1"):
        data.spread(0)


def test_a_dataset_can_travel_to_a_worker(tmp_path: Path):
    write_split(tmp_path, "eurosat")
    data = open_dataset("eurosat", root=tmp_path)
    there = pickle.loads(pickle.dumps(data))
    assert there.samples == data.samples
    assert there.split_hash == data.split_hash
    assert there.read(3) == data.read(3)


def test_weights_are_settings_of_the_adapters():
    for protocol in PROTOCOLS.values():
        for adapter in ADAPTERS:
            ADAPTERS.check_settings(adapter, protocol.settings(adapter))
            if protocol.column == "fine-grained" and protocol.settings(adapter).keys() == {"weight"}:
                # Outside a protocol the fine-grained column is the default.
                assert protocol.settings(adapter) == {"weight": ADAPTERS.settings(adapter)["weight"]}
    variant = PROTOCOLS["imagenet-r"]
    assert [variant.settings(a)["weight"] for a in ("ctpt", "otpt", "atpt", "soc", "penalty")] == [20, 18, 60, 14, 10]
    assert variant.settings("tpt") == {}
