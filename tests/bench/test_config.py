"""RunConfig: defaults, TOML files, and errors before anything is written."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from msgspec.structs import asdict
from support.models import tiny
from support.runs import config, photos

import cots
from cots import bench
from cots.bench._protocol import method_settings
from cots.data import Dataset, Sample


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("data") / "photos", 1)


@pytest.mark.parametrize(
    ("available", "changes", "batch"),
    [
        (False, {}, 16),
        (True, {}, 64),
        (True, {"device": "cpu"}, 16),
        (False, {"device": "cuda:1"}, 64),
        (False, {"engine": "ray", "gpus_per_worker": 0.5}, 64),
        (True, {"model": tiny("vit")}, 16),
        (True, {"batch_size": 24}, 24),
    ],
)
def test_batches_are_larger_on_a_gpu(tmp_path, monkeypatch, available, changes, batch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: available)
    made = bench.RunConfig(datasets="pets", methods="tpt", out=tmp_path / "x", **changes)
    assert made.batch_size == batch
    assert made.shard_size is not None
    assert made.shard_size % batch == 0


def test_a_config_from_a_file(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        'datasets = ["pets", "dtd"]\nmethods = ["tpt", "ctpt"]\nout = "a"\n[settings.ctpt]\nweight = 20.0\n'
    )
    read = bench.RunConfig.from_toml(file, {"limit": 5, "out": "c"}, out="b", seeds=[0, 1, 1], views=None)
    assert (read.datasets, read.out, read.seeds, read.limit, read.views) == (("pets", "dtd"), "b", (0, 1), 5, None)
    assert read.options.settings == read.settings == {"ctpt": {"weight": 20.0}}
    for text, message in (
        ("dataset = 1", r"Unknown key in .*run.toml: 'dataset'. Did you mean 'datasets'"),
        ("dataset = ", "not valid TOML"),
    ):
        file.write_text(text)
        with pytest.raises(cots.InputError, match=message):
            bench.RunConfig.from_toml(file)
    with pytest.raises(cots.InputError, match=r"none.toml cannot be read"):
        bench.RunConfig.from_toml(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"out": ""}, "out is empty"),
        ({"methods": []}, "methods is empty"),
        ({"datasets": ()}, "datasets is empty"),
        ({"methods": "tpt,tptt"}, "Unknown adapter 'tptt'. Did you mean 'tpt'"),
        ({"seeds": ()}, "seeds is empty"),
        ({"seeds": "0,x"}, r"seeds\[1\] must be a whole number, not 'x'"),
        ({"batch_size": 0}, "batch_size must be a whole number >= 1"),
        ({"shard_size": 10}, "shard_size=10 is not a multiple of batch_size=4"),
        ({"limit": 0}, "limit must be a whole number >= 1"),
        ({"workers": -1}, "workers must be a whole number >= 0"),
        ({"precision": "bfloat16"}, "Pass them to cots.load"),
        ({"renderer": "torch"}, "Unknown renderer 'torch'"),
        ({"settings": {"ctp": {}}}, "Unknown adapter or calibrator in settings 'ctp'. Did you mean 'ctpt'"),
        ({"settings": {"ctpt": {"wait": 1}}}, "Unknown setting of adapter 'ctpt': 'wait'. Did you mean 'weight'"),
        ({"settings": {"tda": {"state": 1}}}, "The state of tda is managed by the run"),
        ({"settings": {"ctpt": 3}}, "settings.ctpt must be a mapping, not 3"),
        ({"solver": "exakt"}, "solver"),
        ({"solver": "exact", "methods": "tpt"}, "has no effect: no method fits a temperature"),
        ({"settings": {"cots": {"k": 99}}}, "k=99 exceeds the 5 available strong views"),
        ({"settings": {"ctpt": {"steps": -1}}}, "steps must be"),
        ({"classes": "x.txt", "datasets": "pets,dtd"}, "classes applies to one dataset"),
        ({"context": "none.pt"}, "none.pt"),
        ({"model": tiny("resnet"), "methods": "ttl"}, "ttl adapts the attention of a vision transformer"),
        ({"datasets": "petz", "data": "."}, "Unknown dataset 'petz'"),
        ({"model": "nonsense"}, "Unknown model 'nonsense'"),
        ({"wait": 5.0}, "wait has no effect with engine='inline'"),
        ({"max_workers": 2}, "max_workers has no effect with engine='inline'"),
        ({"engine": "rank"}, "Unknown engine 'rank'. Did you mean 'ray'"),
        ({"part": "0/2"}, "part must be i/n, such as 1/4 to 4/4, not '0/2'"),
        ({"part": "3/2"}, "part must be i/n, such as 1/4 to 4/4, not '3/2'"),
        ({"part": 2}, "part must be text, not 2"),
        ({"seeds": [-1]}, r"seeds\[0\] must be a whole number >= 0, not -1"),
        ({"settings": {"tpt": {"lr": "x"}}, "methods": "tpt"}, "settings.tpt.lr must be a number, not 'x'"),
        ({"part": "1/2", "engine": "ray"}, "part='1/2' has no effect with engine='ray'"),
        ({"engine": "ray", "gpus_per_worker": 2}, "gpus_per_worker must be at most 1"),
        ({"engine": "ray", "gpus_per_worker": 1}, "gpus_per_worker=1 contradicts device='cpu'"),
        ({"engine": "ray", "cpus_per_worker": -1}, "cpus_per_worker must be a number >= 0"),
        ({"part": "1/2", "out": "memory://x"}, "need a shared location"),
        ({"classes": "a\0b"}, "classes must be printable text"),
    ],
)
def test_errors_come_before_anything_is_written(dataset, tmp_path, changes, message):
    with pytest.raises(cots.InputError, match=message):
        bench.plan(config(dataset, **{"out": tmp_path / "y", "methods": "ctpt+cots,tda", **changes})).run()
    assert not (tmp_path / "y").exists()


BASE = """
model = "mini"
data = "DATA"
datasets = ["pets", "dtd"]
methods = ["tpt", "tpt+cots", "ctpt+ecots"]
seeds = [0, 1]
out = "runs/x"
limit = 5
batch_size = 8
workers = 2
views = 4
augmix = true
stream_order = "list"
corrupt = "fog:3"
wait = 5.0
engine = "ray"
part = "1/2"
[settings.tpt]
lr = 0.005
steps = 1
[settings.cots]
views = "top_strong"
"""
VALUES = (
    "-1", "7", "0", "10000000000000000000000", "1e400", "nan", "true", '"x"', '""', '"../.."', '"a\\u0000b"', "[]",
    "[1]", '["x", 2]', "[[[]]]", "{}", "{x = 1}", "{x = {x = {x = 1}}}", "1979-05-27", "07:32:00", "1.5", "-inf",
)  # fmt: skip


def mutated(rng: random.Random) -> str:
    lines = BASE.strip().splitlines()
    at = rng.randrange(len(lines))
    key = lines[at].partition(" = ")[0]
    kind = rng.randrange(5)
    if kind < 3:
        lines[at] = f"{key} = {rng.choice(VALUES)}"
    elif kind == 3:
        lines[at : at + 1] = rng.choice(([], [lines[at]] * 2, [f"x{lines[at]}"], [key], [f"[{key}.x]", "y = 1"]))
    text = "\n".join(lines)
    if kind == 4:
        place = rng.randrange(len(text))
        text = text[:place] + rng.choice("[]{}=\"'.,\n\\#0é\x00") * rng.choice((0, 1, 2)) + text[place + 1 :]
    return text


def test_any_config_is_read_or_refused_with_the_key(tmp_path):
    """1,000 mutations: no error but those of cots, most of them with the name of the key."""
    rng, file, refused = random.Random(0), tmp_path / "run.toml", Counter()
    pets = Dataset(name="pets", title="Pets", classes=("cat", "dog"), samples=[Sample("0", 0, "0.jpg")])
    for _ in range(1000):
        text = mutated(rng)
        file.write_text(text, encoding="utf-8")
        try:
            made = bench.RunConfig.from_toml(file)
            for method in made.parsed:
                method_settings(made, pets, method)
        except cots.CotsError as error:
            refused[str(error)] += 1
            continue
        assert made.options == bench.RunConfig(**asdict(made)).options
    assert refused.total() > 500
    assert len(refused) > 100


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("out = -1", r"out must be text, not -1\. Correct this option, or its line"),
        ("classes = 7", r"classes must be text, not 7\."),
        ("methods = [1]", r"methods\[0\] must be text, not 1\."),
        ('[settings.tpt]\nlr = "x"', r"settings.tpt.lr must be a number, not 'x'\. Its default is 0.005"),
        ("[settings]\ntpt = 3", r"settings.tpt must be a mapping, not 3\."),
        ("x = " + "[" * 100_000, "run.toml is nested too deeply"),
        ("x = '" + "x" * 2**20 + "'", "run.toml has 1048582 bytes; a config has at most 1048576"),
    ],
)
def test_a_value_of_another_type_is_named(dataset, tmp_path, text, message):
    file = tmp_path / "run.toml"
    file.write_text(text)
    given = {"out": tmp_path / "y", "methods": ["tpt"], "datasets": [dataset], "model": tiny("vit")}
    given = {key: value for key, value in given.items() if f"{key} =" not in text}
    with pytest.raises(cots.InputError, match=message):
        bench.plan(bench.RunConfig.from_toml(file, **given))
