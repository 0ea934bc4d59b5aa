"""RunConfig: defaults, TOML files, and errors before anything is written."""

from __future__ import annotations

import json

import pytest
from support.models import tiny
from support.runs import config, photos

import cots
from cots import bench


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
    assert json.loads(json.dumps(read.as_dict()))["settings"] == read.settings == {"ctpt": {"weight": 20.0}}
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
        ({"seeds": "0,x"}, "seeds must be a whole number >= 0, not 'x'"),
        ({"batch_size": 0}, "batch_size must be a whole number >= 1"),
        ({"shard_size": 10}, "shard_size=10 is not a multiple of batch_size=4"),
        ({"limit": 0}, "limit must be a whole number >= 1"),
        ({"workers": -1}, "workers must be a whole number >= 0"),
        ({"precision": "bfloat16"}, "Pass them to cots.load"),
        ({"renderer": "torch"}, "Unknown renderer 'torch'"),
        ({"settings": {"ctp": {}}}, "Unknown adapter or calibrator in settings 'ctp'. Did you mean 'ctpt'"),
        ({"settings": {"ctpt": {"wait": 1}}}, "Unknown setting of adapter 'ctpt': 'wait'. Did you mean 'weight'"),
        ({"settings": {"tda": {"state": 1}}}, "The state of tda is managed by the run"),
        ({"settings": {"ctpt": 3}}, "settings must be a mapping"),
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
        ({"part": 2}, "part must be i/n, such as 1/4 to 4/4, not 2"),
        ({"part": "1/2", "engine": "ray"}, "part='1/2' has no effect with engine='ray'"),
        ({"engine": "ray", "gpus_per_worker": 2}, "gpus_per_worker must be at most 1"),
        ({"engine": "ray", "gpus_per_worker": 1}, "gpus_per_worker=1 contradicts device='cpu'"),
        ({"engine": "ray", "cpus_per_worker": -1}, "cpus_per_worker must be a number >= 0"),
        ({"part": "1/2", "out": "memory://x"}, "need a shared location"),
    ],
)
def test_errors_come_before_anything_is_written(dataset, tmp_path, changes, message):
    with pytest.raises(cots.InputError, match=message):
        bench.plan(config(dataset, **{"out": tmp_path / "y", "methods": "ctpt+cots,tda", **changes})).run()
    assert not (tmp_path / "y").exists()
