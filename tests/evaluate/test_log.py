"""Figures of runs in other tools: what arrives, once, whatever the logger or the run do meanwhile."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from support.runs import config, photos, stop_at

import cots
from cots import bench
from cots.bench import _plan
from cots.evaluate import RunLog, _log, _loggers

METHODS = ("zeroshot", "tpt+cots", "tda")
SEEDS = (0, 1)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("data") / "photos", 7)


def settings(data, out, **changes) -> bench.RunConfig:
    return config(data, out, **{"methods": METHODS, "seeds": SEEDS, "views": 2, **changes})


class Notes:
    """A logger that keeps what it is sent; `trouble` is called before each call."""

    name = "notes"

    def __init__(self, trouble=lambda what: None) -> None:
        self.trouble, self.calls = trouble, []

    def start(self, run, known):
        self.trouble("start")
        self.calls.append(("start", known))
        return "somewhere"

    def log(self, dataset, method, seed, figures):
        self.trouble("log")
        self.calls.append(("log", method, seed, dict(figures)))

    def close(self, complete):
        self.trouble("close")
        self.calls.append(("close", complete))

    @property
    def cells(self):
        return [call[1:3] for call in self.calls if call[0] == "log"]


def run_with(logger, wanted, **options) -> bench.Run:
    with RunLog([logger]) as log:
        return bench.plan(wanted).run(finished=log, **options)


ALL = sorted((method, seed) for method in METHODS for seed in SEEDS)


def test_every_method_and_seed_arrives_once_with_its_figures(data, tmp_path):
    notes = Notes()
    run = run_with(notes, settings(data, tmp_path / "x"))
    assert notes.calls[0] == ("start", "")
    assert notes.calls[-1] == ("close", True)
    assert sorted(notes.cells) == ALL
    for _, method, seed, figures in notes.calls[1:-1]:
        records = run.records(data.name, method, seed)
        assert figures["accuracy"] == np.mean(records.prediction == records.label)
        assert figures["mean_confidence"] == pytest.approx(np.mean(records.confidence), rel=1e-6)
        of_label = records.probabilities[np.arange(len(records)), records.label]
        assert figures["nll"] == pytest.approx(-np.log(of_label.astype(np.float64)).mean(), rel=1e-5)
        assert 0 <= figures["ece"] <= 1
        assert figures["failed"] == 0
        assert np.isfinite(list(figures.values())).all()
    again = Notes()
    run_with(again, settings(data, tmp_path / "x"))
    assert again.calls == [("start", "somewhere"), ("close", True)]


def test_a_resumed_run_sends_the_rest(data, tmp_path):
    first, second = Notes(), Notes()
    stop = stop_at(60)

    def progress(stage, dataset, seed, done, total):
        if seed == 1:
            stop(stage, dataset, seed, done, total)

    wanted = settings(data, tmp_path / "x")
    with pytest.raises(KeyboardInterrupt), RunLog([first]) as log:
        bench.plan(wanted).run(progress, finished=log)
    assert first.calls[-1] == ("close", False)
    assert {seed for _, seed in first.cells} >= {0}
    run_with(second, wanted)
    assert second.calls[0] == ("start", "somewhere")
    assert sorted(first.cells + second.cells) == ALL


def test_a_finished_run_can_be_sent_later(data, tmp_path):
    wanted = settings(data, tmp_path / "x", methods=["zeroshot"])
    bench.run(wanted)
    notes = Notes()
    run_with(notes, wanted)
    assert notes.cells == [("zeroshot", 0), ("zeroshot", 1)]
    assert bench.check_run(tmp_path / "x").ok
    assert bench.unpack_run(bench.pack_run(tmp_path / "x", tmp_path / "x.cots.tar"), tmp_path / "y").complete


@pytest.mark.parametrize("what", ["start", "log", "close"])
@pytest.mark.parametrize("error", [ValueError("no disk\x1b[31m"), SystemExit(1)], ids=["error", "exit"])
def test_a_logger_that_fails_is_dropped_with_one_warning(what, error, data, tmp_path):
    def trouble(now):
        if now == what:
            raise error

    wanted = settings(data, tmp_path / "x", methods=["zeroshot"])
    with pytest.warns(UserWarning, match=f"notes failed .{type(error).__name__}.*send the missing") as caught:
        run = run_with(Notes(trouble), wanted)
    assert len(caught) == 1
    assert run.complete
    later = Notes()
    run_with(later, wanted)
    assert len(later.cells) == (0 if what == "close" else 2)


def test_a_logger_that_hangs_does_not_hold_the_run(data, tmp_path, monkeypatch):
    monkeypatch.setattr(_log, "_WAIT", 0.2)
    released = threading.Event()
    wanted = settings(data, tmp_path / "x", methods=["zeroshot"])
    try:
        with pytest.warns(UserWarning, match="notes does not answer"):
            assert run_with(Notes(lambda what: released.wait(60)), wanted).complete
    finally:
        released.set()


def test_another_logger_still_gets_everything(data, tmp_path):
    def trouble(what):
        raise OSError

    notes, bad = Notes(), Notes(trouble)
    bad.name = "bad"
    with pytest.warns(UserWarning, match="logger bad failed"), RunLog([bad, notes]) as log:
        bench.plan(settings(data, tmp_path / "x")).run(finished=log)
    assert sorted(notes.cells) == ALL


def test_corrected_figures_are_sent_again(tmp_path):
    data = photos(tmp_path / "photos", 3, broken=("car/1.png",))
    good = (tmp_path / "photos/car/0.png").read_bytes()
    wanted = settings(data, tmp_path / "x", methods=["zeroshot"], seeds=(0,))
    notes = Notes()
    run_with(notes, wanted)
    run_with(notes, wanted)
    (tmp_path / "photos/car/1.png").write_bytes(good)
    run_with(notes, wanted, retry_failed=True)
    assert [call[3]["failed"] for call in notes.calls if call[0] == "log"] == [1, 0]


class Nothing:
    failed = 3

    def __len__(self) -> int:
        return 0


def test_a_method_of_which_every_sample_failed(data, tmp_path, monkeypatch):
    wanted, notes = settings(data, tmp_path / "x", methods=["zeroshot"], seeds=(0,)), Notes()
    monkeypatch.setattr(bench.Run, "records", lambda *cell: Nothing())
    run_with(notes, wanted)
    assert notes.calls[1] == ("log", "zeroshot", 0, {"failed": 3.0})


def test_a_damaged_list_of_what_was_sent_is_named(data, tmp_path):
    wanted = settings(data, tmp_path / "x", methods=["zeroshot"])
    run_with(Notes(), wanted)
    (tmp_path / "x" / "log-notes.json").write_text("{")
    with pytest.warns(UserWarning, match=r"log-notes.json is damaged .*Delete it to send all figures again"):
        run_with(Notes(), wanted)


def test_a_cluster_announces_what_is_written():
    heard = []
    report = _plan._announcing("run", lambda *event: heard.append(event), lambda *event: heard.append(event))
    report("views", "pets", 0, 9, 9)
    report("methods", "pets", 0, 3, 9)
    report("methods", "pets", 0, 9, 9)
    assert heard[-2:] == [("methods", "pets", 0, 9, 9), ("run", ("pets", 0))]
    assert len(heard) == 4


@pytest.mark.parametrize(
    ("name", "module"), [("wandb", "wandb"), ("mlflow", "mlflow"), ("tensorboard", "torch.utils.tensorboard")]
)
def test_a_missing_package_is_named_before_the_run(name, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(cots.InputError, match=f"needs the package {name} .*pip install {name}"):
        RunLog([name])


def test_unknown_loggers():
    with pytest.raises(cots.InputError, match=r"Unknown logger 'wandv'.*Did you mean 'wandb'"):
        RunLog(["wandv"])


class FakeWandB(ModuleType):
    """Keeps runs by id, as the service does."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs, self.given = {}, []

    def init(self, **options):
        self.given.append(options)
        run = self.runs.setdefault(
            options["id"], SimpleNamespace(id=options["id"], rows=[], ends=[], metrics=[], config={})
        )
        run.config = SimpleNamespace(update=lambda values, allow_val_change: setattr(run, "values", values))
        run.log = run.rows.append
        run.define_metric = lambda *names, **more: run.metrics.append((names, more))
        run.finish = lambda exit_code: run.ends.append(exit_code)
        return run


def test_wandb(data, tmp_path, monkeypatch):
    fake = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    wanted = settings(data, tmp_path / "x")
    for _ in range(2):
        with RunLog(["wandb"]) as log:
            run = bench.plan(wanted).run(finished=log)
    ((name, sent),) = fake.runs.items()
    assert name == run.manifest.id
    assert fake.given[1] == {"project": "mine", "name": "x", "id": name, "resume": "allow"}
    assert sent.values["model"]["weights_hash"] == run.manifest.model.weights_hash
    assert len(sent.rows) == len(ALL)
    for row in sent.rows:
        (method,) = {key.split("/")[1] for key in row if key != "seed"}
        records = run.records(data.name, method, row["seed"])
        assert row[f"{data.name}/{method}/accuracy"] == records.correct.mean()
    assert sent.ends == [0, 0]
    assert (("*",), {"step_metric": "seed"}) in sent.metrics


class FakeMLflow(ModuleType):
    """A tracking server with the calls of MlflowClient, which refuses the names that MLflow refuses."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.experiments, self.runs = {}, {}
        self.MlflowClient = lambda: self

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id=self.experiments[name]) if name in self.experiments else None

    def create_experiment(self, name):
        return self.experiments.setdefault(name, str(len(self.experiments)))

    def create_run(self, experiment_id, run_name, tags):
        run = SimpleNamespace(name=run_name, tags=tags, params={}, metrics=[], states=[], files={})
        self.runs[str(len(self.runs))] = run
        return SimpleNamespace(info=SimpleNamespace(run_id=str(len(self.runs) - 1)))

    def log_param(self, run, key, value):
        assert key not in self.runs[run].params, "parameters cannot be changed"
        self.runs[run].params[key] = value

    def update_run(self, run, status):
        self.runs[run].states.append(status)

    set_terminated = update_run

    def log_dict(self, run, content, file):
        self.runs[run].files[file] = content

    def log_batch(self, run, metrics):
        for metric in metrics:
            assert not set("+()=,") & set(metric[0])
        self.runs[run].metrics += metrics


def test_mlflow(data, tmp_path, monkeypatch):
    fake, entities = FakeMLflow(), ModuleType("mlflow.entities")
    entities.Metric = lambda *values: values
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    wanted = settings(data, tmp_path / "x")
    for _ in range(2):
        with RunLog(["mlflow"]) as log:
            run = bench.plan(wanted).run(finished=log)
    assert list(fake.experiments) == ["cots"]
    (sent,) = fake.runs.values()
    assert sent.states == ["RUNNING", "FINISHED"] * 2
    assert sent.params["methods"] == ", ".join(METHODS)
    assert sent.tags == {"cots.run": run.manifest.id}
    assert sent.files["manifest.json"]["id"] == run.manifest.id
    found = {(key, step): value for key, value, _, step in sent.metrics}
    assert len(found) == len(sent.metrics), "every step once"
    for seed in SEEDS:
        accuracy = run.records(data.name, "tpt+cots", seed).correct.mean()
        assert found[f"{data.name}/tpt_cots/accuracy", seed] == accuracy


def test_tensorboard_files_read_back(data, tmp_path):
    pytest.importorskip("tensorboard", reason="needs the group tools")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        wanted = settings(data, tmp_path / "x")
        for _ in range(2):
            with RunLog(["tensorboard"]) as log:
                run = bench.plan(wanted).run(finished=log)
        folder = tmp_path / "x" / "tensorboard"
        assert sorted(file.name for file in folder.iterdir()) == sorted([*METHODS, "run"])
        for method in METHODS:
            events = EventAccumulator(str(folder / method)).Reload()
            for name in ("accuracy", "ece", "nll", "mean_confidence"):
                scalars = events.Scalars(f"{data.name}/{name}")
                assert [scalar.step for scalar in scalars] == list(SEEDS)
            for scalar, seed in zip(events.Scalars(f"{data.name}/accuracy"), SEEDS, strict=True):
                assert scalar.value == pytest.approx(run.records(data.name, method, seed).correct.mean())
        told = EventAccumulator(str(folder / "run")).Reload()
        (text,) = told.Tensors("manifest/text_summary")
        assert run.manifest.model.weights_hash.encode() in text.tensor_proto.string_val[0]


def test_a_run_behind_a_url_is_logged_there(data, tmp_path):
    pytest.importorskip("tensorboard", reason="needs the group tools")
    url = "memory://logged"
    with RunLog(["tensorboard"]) as log:
        run = bench.plan(settings(data, url, methods=["zeroshot"])).run(finished=log)
    assert list((run.folder / "tensorboard" / "zeroshot").iterdir())


def test_the_packages_of_loggers_are_not_imported_unless_named():
    assert set(_loggers.LOGGERS) == {"wandb", "mlflow", "tensorboard"}
    assert "wandb" not in sys.modules
    assert "mlflow" not in sys.modules
    began = time.monotonic()
    RunLog(())
    assert time.monotonic() - began < 0.1
