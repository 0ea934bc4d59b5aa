"""`cots calibrate`: the logits of any method, with errors that name the array and the row."""

from __future__ import annotations

import errno
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import cots
import cots.cli._calibrate as module
from cots.cli import app


def logits(n: int = 40, views: int | None = 6, classes: int = 4, seed: int = 0):
    rng = np.random.default_rng(seed)
    shape = (n, classes) if views is None else (n, views, classes)
    zero_shot = rng.normal(size=shape).astype(np.float32)
    adapted = 3 * zero_shot + rng.normal(size=shape).astype(np.float32)
    weak = zero_shot if views is None else zero_shot[:, 0]
    labels = np.where(rng.random(n) < 0.6, weak.argmax(1), rng.integers(0, classes, n))
    return {"adapted": adapted, "zero_shot": zero_shot, "labels": labels}


def run(tmp_path, arrays: dict, *words, save=np.savez) -> tuple[str, dict]:
    save(tmp_path / "in.npz", **arrays)
    result = CliRunner().invoke(app, ["calibrate", str(tmp_path / "in.npz"), "-o", str(tmp_path / "out.npz"), *words])
    if result.exception and not isinstance(result.exception, SystemExit):
        assert {file.name for file in tmp_path.iterdir()} <= {"in.npz", "out.npz"}, "nothing half-written is left"
        raise result.exception
    assert result.exit_code == 0, result.output
    with np.load(tmp_path / "out.npz", allow_pickle=False) as out:
        return result.stdout, {name: out[name] for name in out.files}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_results_are_those_of_the_library_whatever_the_pieces(tmp_path, monkeypatch, save):
    arrays = logits()
    monkeypatch.setattr(module, "BUDGET", 7 * 24)  # 40 rows in pieces of 7
    shown, out = run(tmp_path, arrays, save=save)
    expected = cots.calibrate(arrays["adapted"], arrays["zero_shot"])
    np.testing.assert_allclose(out["probabilities"], expected.probabilities, atol=1e-6)
    np.testing.assert_array_equal(out["prediction"], expected.prediction)
    np.testing.assert_allclose(out["tau"], expected.tau, rtol=1e-5)
    np.testing.assert_allclose(out["confidence"], expected.confidence, atol=1e-6)
    np.testing.assert_array_equal(out["labels"], arrays["labels"])
    before = cots.calibrate(arrays["adapted"], arrays["zero_shot"], method="none")
    rows = {line.split()[0]: [float(x) for x in line.split()[1:]] for line in shown.splitlines()[2:5]}
    plain = cots.calibrate(arrays["zero_shot"], arrays["zero_shot"], method="none")
    for title, result in (("zero-shot", plain), ("before", before), ("after", expected)):
        correct = result.prediction == arrays["labels"]
        picked = result.probabilities[np.arange(40), arrays["labels"]]
        figures = [
            100 * correct.mean(),
            100 * float(cots.metrics.ece(result.confidence, correct)),
            -np.log(picked).mean(),
            100 * result.confidence.mean(),
        ]
        assert rows[title] == pytest.approx(figures, abs=6e-3)
    assert rows["after"][1] < rows["before"][1], "what was made too sure is less wrong about it"
    assert "cots inherits the calibration of zero-shot" in shown


def test_other_methods_shapes_and_types(tmp_path):
    arrays = logits()
    text = np.random.default_rng(1).normal(size=(4, 8))
    _, out = run(tmp_path, {**arrays, "text_features": text}, "--method", "ecots", "--solver", "exact")
    alpha = cots.mean_similarity(text)
    expected = cots.calibrate(arrays["adapted"], arrays["zero_shot"], method="ecots", alpha=alpha, solver="exact")
    np.testing.assert_allclose(out["probabilities"], expected.probabilities, atol=1e-6)
    flat = logits(views=None)
    del flat["labels"]
    shown, out = run(
        tmp_path, {name: np.asfortranarray(z.astype(np.float16)) for name, z in flat.items()}, "--rows", "samples"
    )
    halves = [flat[name].astype(np.float16).astype(np.float32)[:, None] for name in ("adapted", "zero_shot")]
    np.testing.assert_allclose(out["probabilities"], cots.calibrate(*halves).probabilities, atol=1e-6)
    assert set(out) == {"probabilities", "prediction", "confidence", "tau"}
    assert "accuracy" not in shown
    _, out = run(tmp_path, flat, "--rows", "views")
    one = cots.calibrate(flat["adapted"], flat["zero_shot"], rows="views")
    np.testing.assert_allclose(out["probabilities"], one.probabilities[None], atol=1e-6)
    with pytest.raises(cots.InputError, match="pass rows='views' or rows='samples'"):
        run(tmp_path, flat)
    _, out = run(tmp_path, arrays, "--method", "ecots", "--alpha", "0.5")
    expected = cots.calibrate(arrays["adapted"], arrays["zero_shot"], method="ecots", alpha=0.5)
    np.testing.assert_allclose(out["probabilities"], expected.probabilities, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda a: a.pop("adapted"), "no array 'adapted'; it has labels, zero_shot"),
        (lambda a: a.pop("zero_shot"), "no array 'zero_shot'"),
        (lambda a: a.update(zero_shot=a["zero_shot"][:, :, :3]), r"\(40, 6, 4\) and zero_shot \(40, 6, 3\)"),
        (lambda a: a.update(adapted=a["adapted"][0, 0]), r"adapted \(4,\) and zero_shot .* the same shape"),
        (lambda a: a.update(adapted=a["adapted"].astype(str)), "adapted cannot be read .it has type <U"),
        (lambda a: a.update(labels=a["labels"] + 3), r"labels must be whole numbers in 0\.\.3 .* index \d+ is \d"),
        (lambda a: a.update(labels=a["labels"][:7]), "one value for each of the 40 samples"),
        (lambda a: a.update(labels=a["labels"] + 0.5), "labels must be whole numbers"),
        (lambda a: a.update(text_features=np.ones((3, 2))), "one row for each of the 4 classes"),
        (lambda a: a.update(label=a["labels"]), "Did you mean 'labels'"),
        (
            lambda a: a["adapted"].__setitem__((17, 2, 1), np.nan),
            r"adapted has .* not finite in row 17 \(counted",
        ),
        (lambda a: a["zero_shot"].__setitem__(slice(3, 39), np.inf), r"zero_shot .* row 3, 4, 5, 6, 7, \.\.\."),
    ],
)
def test_what_is_wrong_is_named(tmp_path, change, named):
    arrays = logits()
    change(arrays)
    with pytest.raises(cots.InputError, match=named):
        run(tmp_path, arrays)
    assert not (tmp_path / "out.npz").exists()


def test_options_are_checked(tmp_path):
    with pytest.raises(cots.InputError, match="Did you mean 'cots'"):
        run(tmp_path, logits(), "--method", "cotss")
    with pytest.raises(cots.InputError, match="alpha"):
        run(tmp_path, logits(), "--method", "ecots")


def test_safetensors_in_and_out(tmp_path):
    """The same results as from .npz; bfloat16 logits are read too."""
    arrays = logits()
    _, expected = run(tmp_path, arrays)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    save_file(tensors, tmp_path / "in.safetensors")
    words = ["calibrate", str(tmp_path / "in.safetensors"), "-o", str(tmp_path / "out.safetensors")]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "accuracy %" in result.stdout
    found = load_file(tmp_path / "out.safetensors")
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name].numpy(), array)
    save_file({name: tensors[name].bfloat16() for name in ("adapted", "zero_shot")}, tmp_path / "in.safetensors")
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    (tmp_path / "in.safetensors").write_bytes(b"damaged")
    assert "cannot be read" in str(CliRunner().invoke(app, words).exception)
    assert "must end in" in str(CliRunner().invoke(app, [*words, "-o", "out.txt"]).exception)


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


def test_pickles_are_never_executed(tmp_path, capsys):
    arrays = logits()
    arrays["labels"] = np.array([Evil()] * 40, dtype=object)
    with pytest.raises(cots.InputError, match="labels cannot be read \\(it holds Python objects\\)"):
        run(tmp_path, arrays)
    (tmp_path / "in.npz").write_bytes(pickle.dumps(Evil()))
    result = CliRunner().invoke(app, ["calibrate", str(tmp_path / "in.npz"), "-o", str(tmp_path / "out.npz")])
    assert isinstance(result.exception, cots.InputError)
    assert "executed" not in capsys.readouterr().out + result.output


def test_damaged_files(tmp_path):
    np.savez(tmp_path / "good.npz", **logits())
    data = (tmp_path / "good.npz").read_bytes()
    words = ["calibrate", str(tmp_path / "in.npz"), "-o", str(tmp_path / "out.npz")]

    def told(content: bytes | None) -> str:
        if content is not None:
            (tmp_path / "in.npz").write_bytes(content)
        result = CliRunner().invoke(app, words)
        assert isinstance(result.exception, cots.InputError), result.exception
        return str(result.exception)

    assert "does not exist" in told(None)
    assert "in.npz cannot be read" in told(data[: len(data) // 2])
    place = data.index(b"adapted.npy") + 200
    assert "CRC" in told(data[:place] + bytes(64) + data[place + 64 :])
    with zipfile.ZipFile(tmp_path / "in.npz", "w") as archive:
        archive.writestr("adapted.npy", b"not an array")
    assert "adapted cannot be read" in told(None)


def test_files_that_zip_cannot_unpack(tmp_path):
    np.savez_compressed(tmp_path / "good.npz", **logits())
    good = (tmp_path / "good.npz").read_bytes()
    words = ["calibrate", str(tmp_path / "in.npz"), "-o", str(tmp_path / "out.npz")]

    def told(local: int, central: int, value: int) -> str:
        data = bytearray(good)
        for mark, offset in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
            place = -1
            while (place := data.find(mark, place + 1)) >= 0:
                data[place + offset] = value
        (tmp_path / "in.npz").write_bytes(data)
        result = CliRunner().invoke(app, words)
        assert isinstance(result.exception, cots.InputError), result.exception
        return str(result.exception)

    assert "adapted cannot be read" in told(6, 8, 1), "encrypted"
    assert "adapted cannot be read" in told(8, 10, 99), "an unknown compression"
    (tmp_path / "in.npz").write_bytes(good[:60] + b"\xff" * 40 + good[100:])
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, cots.InputError)
    assert "adapted" in str(result.exception)


def test_a_negative_shape(tmp_path):
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (-3, 5), }".ljust(117) + b"\n"
    with zipfile.ZipFile(tmp_path / "in.npz", "w") as archive:
        for name in ("adapted", "zero_shot"):
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head)
    result = CliRunner().invoke(app, ["calibrate", str(tmp_path / "in.npz"), "-o", str(tmp_path / "out.npz")])
    assert isinstance(result.exception, cots.InputError)
    assert "adapted cannot be read" in str(result.exception)


def test_nothing_but_a_file_is_written_over(tmp_path):
    pipe, folder = tmp_path / "pipe.npz", tmp_path / "folder.npz"
    os.mkfifo(pipe)
    folder.mkdir()
    np.savez(tmp_path / "in.npz", **logits())
    before = (tmp_path / "in.npz").read_bytes()
    for out, named in ((pipe, "device"), (folder, "folder"), (tmp_path / "in.npz", "would overwrite the input")):
        result = CliRunner().invoke(app, ["calibrate", str(tmp_path / "in.npz"), "-o", str(out)])
        assert isinstance(result.exception, cots.InputError), out
        assert named in str(result.exception)
        assert str(out) in str(result.exception)
    result = CliRunner().invoke(app, ["calibrate", str(pipe), "-o", str(tmp_path / "out.npz")])
    assert "pipe.npz is not a regular file" in str(result.exception)
    assert pipe.is_fifo()
    assert (tmp_path / "in.npz").read_bytes() == before
    assert {file.name for file in tmp_path.iterdir()} == {"in.npz", "pipe.npz", "folder.npz"}


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.write", full)
    with pytest.raises(cots.CotsError, match=r"The disk is full: .*out\.npz could not be written"):
        run(tmp_path, logits())


def test_the_weight_of_an_ensemble_is_asked_for_as_an_option(tmp_path):
    with pytest.raises(cots.InputError, match=r"text_features.*--alpha 0\.6"):
        run(tmp_path, logits(), "--method", "ecots")


@pytest.mark.parametrize("name", ["x.csv", "x.npz", "x.npy"])
def test_another_kind_of_file_gets_a_remedy_and_no_advice_to_unpickle(tmp_path, name):
    (tmp_path / name).write_text("a,b\n1,2\n")
    result = CliRunner().invoke(app, ["calibrate", str(tmp_path / name), "-o", str(tmp_path / "out.npz")])
    assert str(result.exception).endswith(
        f"{name} cannot be read (it is no .npz or .safetensors file, or incomplete). Write numeric arrays with "
        "numpy.savez or safetensors."
    )
