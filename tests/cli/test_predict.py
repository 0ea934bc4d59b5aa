"""`cots predict`: a table, JSON lines or CSV; folders; what cannot be read; and what is said of mistakes."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pty
import sys
import threading

import pytest
from support.models import tiny
from support.serving import photo
from typer.testing import CliRunner

import cots
from cots.classes import class_list
from cots.cli import app, main
from cots.cli._predict import _last_column
from cots.methods import percentage

CLASSES = ["cat", "dog", "sports car"]


@pytest.fixture(autouse=True)
def small_model(monkeypatch):
    monkeypatch.setattr("cots.classifier.load", lambda name, **options: tiny("vit"))
    monkeypatch.setattr("cots.classifier.NONE_BELOW", 0.0)  # to a random model every photo is none of these


@pytest.fixture
def photos(tmp_path):
    for i, place in enumerate(("b.png", "a.jpg", "deep/er/c.PNG")):
        file = tmp_path / "photos" / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(photo(i, kind="JPEG" if place.endswith("jpg") else "PNG"))
    (tmp_path / "photos" / "notes.txt").write_text("not a photo")
    (tmp_path / "photos" / ".hidden.png").write_text("left behind")
    return tmp_path / "photos"


def run(*words, code: int = 0):
    words = ["predict", *map(str, words), "--views", "8"]
    if not any(str(word).startswith("--classes") for word in words):
        words += ["--classes", ",".join(CLASSES)]
    result = CliRunner().invoke(app, words)
    if isinstance(result.exception, cots.CotsError):
        raise result.exception
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def test_a_missing_class_file_is_told_its_neighbour(photos):
    (photos / "breeds.txt").write_text("cat\ndog")
    with pytest.raises(
        cots.InputError, match=r"breed.txt' does not exist. Did you mean 'breeds.txt'\? Check the path."
    ):
        run(photos, f"--classes={photos / 'breed.txt'}")
    with pytest.raises(cots.InputError, match=r"colours.txt' does not exist. Check the path."):
        run(photos, f"--classes={photos / 'colours.txt'}")


def test_images_that_folders_leave_out_are_counted(photos):
    for name in ("x.JXL", "y.jxl", "deep/z.nef", ".w.svg"):
        (photos / name).write_bytes(b"")
    result = run(photos)
    assert "cots: skipped images in folders: 2 .jxl, 1 .nef. Convert them to JPEG or PNG" in result.stderr
    assert len(result.stdout.splitlines()) == 3


def test_json_lines_in_a_pipe_are_the_classifiers_results(photos):
    result = run(photos, "--seed", "3", "--top", "2", "--batch-size", "2", "--method", "tpt+cots")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    files = [photos / "a.jpg", photos / "b.png", photos / "deep/er/c.PNG"]
    assert [line["file"] for line in lines] == list(map(str, files)), "folders at any depth, in order"
    classifier = cots.Classifier(tiny("vit"), CLASSES, "tpt+cots", views=8, seed=3)
    for line, file in zip(lines, files, strict=True):
        expected = classifier(file)
        assert (line["label"], line["method"], line["abstained"]) == (expected.label, "tpt+cots", False)
        assert line["confidence"] == pytest.approx(expected.confidence, abs=1e-4)
        assert line["tau"] == pytest.approx(expected.tau, rel=1e-3)
        assert line["alpha"] is None
        assert [entry["class"] for entry in line["top"]] == [name for name, _ in expected.top(2)]
    assert result.stderr == ""


def test_csv(photos):
    rows = list(csv.DictReader(io.StringIO(run(photos / "a.jpg", "--csv", "--top", "4").stdout)))
    assert len(rows) == 1
    assert rows[0]["class_1"] == rows[0]["label"]
    assert float(rows[0]["probability_1"]) == float(rows[0]["confidence"])
    assert rows[0]["class_4"] == "", "there are only three classes"
    assert sum(float(rows[0][f"probability_{i}"]) for i in (1, 2, 3)) == pytest.approx(1, abs=1e-5)


def test_files_for_other_tools(photos, tmp_path):
    """The ending names the format; Label Studio and FiftyOne are named, and told how to load the file."""
    for name in ("out.csv", "out.jsonl", "out.json"):
        assert run(photos / "a.jpg", "--out", tmp_path / name).stdout == ""
    (row,) = csv.DictReader((tmp_path / "out.csv").read_text().splitlines())
    (line,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert row["label"] == line["label"] == json.loads((tmp_path / "out.json").read_text())["label"]
    studio, fiftyone = tmp_path / "tasks.json", tmp_path / "labels.json"
    result = run(photos, "--format", "label-studio", "--out", studio)
    assert f"labelling configuration {tmp_path / 'tasks.xml'}, then import {studio}" in result.stderr
    assert [task["data"]["file"][-5:] for task in json.loads(studio.read_text())] == ["a.jpg", "b.png", "c.PNG"]
    assert (tmp_path / "tasks.xml").read_text().startswith("<View>")
    result = run(photos, "--format", "fiftyone", "--out", fiftyone)
    assert f"data_path='{photos}', labels_path='{fiftyone}'" in result.stderr
    assert set(json.loads(fiftyone.read_text())["labels"]) == {"a", "b", "deep/er/c"}
    assert len(json.loads(run(photos, "--format", "label-studio").stdout)) == 3, "or to standard output"
    parquet = pytest.importorskip("pyarrow.parquet")
    run(photos, "--out", tmp_path / "out.parquet")
    assert parquet.read_table(tmp_path / "out.parquet").column("file").to_pylist()[0] == str(photos / "a.jpg")


def test_abstaining_keeps_the_candidates(photos):
    (line,) = map(json.loads, run(photos / "a.jpg", "--abstain", "1").stdout.splitlines())
    assert line["label"] is None
    assert line["abstained"] is True
    assert len(line["top"]) == 3
    (line,) = map(json.loads, run(photos / "a.jpg", "--abstain", "0.01").stdout.splitlines())
    assert line["label"] in CLASSES


def test_photos_outside_the_list_are_flagged(photos, monkeypatch):
    monkeypatch.setattr("cots.classifier.NONE_BELOW", 2.0)
    result = run(photos)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["none_of_these"], line["abstained"]) for line in lines] == [(True, False)] * 3
    assert result.stderr == "cots: 3 photos: 3 perhaps none of these classes.\n"
    result = run(photos, "--none-of-these")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["label"], line["abstained"]) for line in lines] == [(None, True)] * 3
    assert result.stderr == "cots: 3 photos: 3 perhaps none of these classes.\n"
    # The photos themselves as the reference: only the smallest score counts as a member's.
    lines = [json.loads(line) for line in run(photos, "--reference", photos).stdout.splitlines()]
    assert not any(line["none_of_these"] for line in lines)


def test_the_range_is_the_classifiers(photos):
    (line,) = map(json.loads, run(photos / "a.jpg", "--range").stdout.splitlines())
    found = cots.Classifier(tiny("vit"), CLASSES, views=8, ranges=True)(photos / "a.jpg")
    assert line["confidence_range"] == pytest.approx(found.confidence_range)
    (line,) = map(json.loads, run(photos / "a.jpg").stdout.splitlines())
    assert line["confidence_range"] is None


def test_unreadable_files_are_listed_at_the_end_and_the_others_done(photos):
    (photos / "broken.jpg").write_text("no image")
    (photos / "empty.png").write_bytes(b"")
    (photos / "hostile.jpg").write_bytes(
        b"Image type: Z image\r\nImage size (x*y): 8*8\r\n".ljust(511, b"\0") + b"\x1a"
    )
    result = run(photos, code=1)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["error"] is None for line in lines] == [True, True, False, False, False, True]
    assert (lines[2]["label"], lines[2]["confidence"], lines[2]["top"]) == (None, None, [])
    listed = result.stderr.splitlines()
    assert listed[0] == "cots: 3 of 6 could not be read:"
    assert "broken.jpg" in listed[1]
    assert "not an image" in listed[1]
    assert "empty.png" in listed[2]
    assert "hostile.jpg': IM, a format that cots does not read. Convert it to one of JPEG" in listed[3]
    (row,) = csv.DictReader(io.StringIO(run(photos / "broken.jpg", "--csv", code=1).stdout))
    assert "not an image" in row["error"]


def test_results_come_as_batches_finish(photos):
    """The stream reads no more than a batch ahead of what it has given."""
    read = []

    def files():
        for i in range(5):
            read.append(i)
            yield photo(i)

    stream = cots.Classifier(tiny("vit"), CLASSES, views=4, batch_size=2).stream(files())
    next(stream)
    assert read == [0, 1]
    next(stream)
    next(stream)
    assert read == [0, 1, 2, 3]
    assert len(list(stream)) == 2
    # Nothing but bad images comes out too, before the end.
    bad = (b"no" if read.append(i) is None else b"" for i in range(100, 200))
    assert next(cots.Classifier(tiny("vit"), CLASSES, views=4, batch_size=2).stream(bad)).error
    assert max(read) < 110


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--classes", " , "], "no class names"),
        (["--classes", "names.txt"], "names.txt' does not exist"),
        (["--classes", "imagnet"], "Did you mean 'imagenet'"),
        (["--classes", "cat,dog,cat"], r"'cat' appears twice \(names 1 and 3.*or pass --allow-duplicates\.$"),
        (["https://example.org/x.jpg"], "^https://example.org/x.jpg: cots does not download photos"),
        (["--method", "tptt"], "Did you mean 'tpt'"),
        (["--abstain", "70"], "--abstain is a confidence"),
        (["--json", "--csv"], "cannot be combined"),
        (["--format", "csv", "--json"], "cannot be combined"),
        (["--out", "predictions.xlsx"], "name its format with --format, or end it in .csv, "),
        (["--format", "parquet"], "Name it with --out"),
        (["--template", "no braces"], "must contain {} exactly once"),
    ],
)
def test_what_is_wrong_is_named(photos, words, named):
    with pytest.raises(cots.InputError, match=named):
        run(photos / "a.jpg", *words)


def test_missing_things_are_named(photos, tmp_path):
    result = CliRunner().invoke(app, ["predict", str(photos / "a.jpg")])
    assert "Pass names ('tabby cat,golden retriever'), a file" in str(result.exception)
    with pytest.raises(cots.InputError, match=r"nowhere\.jpg: no such file"):
        run(photos / "a.jpg", tmp_path / "nowhere.jpg")
    (tmp_path / "empty").mkdir()
    with pytest.raises(cots.InputError, match="has no images"):
        run(tmp_path / "empty")


def test_class_files_as_editors_write_them(photos, tmp_path):
    file = tmp_path / "names.txt"
    file.write_bytes("\ufeffsports_car\r\n  cat \r\n\r\n".encode())
    (line,) = map(json.loads, run(photos / "a.jpg", "--classes", file).stdout.splitlines())
    assert {entry["class"] for entry in line["top"]} == {"sports car", "cat"}
    for content, named in (
        (b"cat\r\n\r\ndog\r\n", "class 2 has an empty name"),
        (b"\xef\xbb\xbf\r\n\r\n", "is empty"),
        (b"caf\xe9\n", "UTF-8"),
        (b"x" * 2**22, "has 4194304 characters, more than 1000"),
    ):
        file.write_bytes(content)
        with pytest.raises(cots.InputError, match=named):
            run(photos / "a.jpg", "--classes", file)


@pytest.mark.parametrize("given", [None, "ACTIVE"])
def test_waiting_threads_sleep_unless_the_environment_says_otherwise(given, photos, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    run(photos / "a.jpg")
    assert os.environ["OMP_WAIT_POLICY"] == (given or "PASSIVE")


def test_many_names_on_the_command_line(photos):
    """Longer than a file name can be."""
    names = [f"thing {place}" for place in range(60)]
    (line,) = map(json.loads, run(photos / "a.jpg", "--classes", ",".join(names), "--top", "60").stdout.splitlines())
    assert {entry["class"] for entry in line["top"]} == set(names)


def on_streams(monkeypatch, out, err, *words) -> int:
    """The program's exit code with these standard streams."""
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(sys, "argv", ["cots", "predict", *map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code or 0


def test_a_table_on_a_terminal(photos, monkeypatch):
    """In a pseudo-terminal: the photos' rows below one header, the unsure ones marked, names as they are."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    near, far = pty.openpty()
    shown = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # Linux says so when the other side is closed
            while part := os.read(near, 65536):
                shown.extend(part)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(far, "w") as terminal:
        options = ["--classes", "cat,[dog],car", "--views", "4", "--abstain", "1"]
        assert on_streams(monkeypatch, terminal, terminal, photos, *options) == 0
    reader.join(60)
    os.close(near)
    text = shown.decode()
    assert text.count("unsure") == 4, "three rows and the count at the end"
    assert "cots: 3 photos: 3 unsure." in text
    assert text.count("confidence") == 1, "one header"
    assert "candidates" in text
    assert "[dog]" in text, "a name is text, not markup"
    assert '"file"' not in text


@pytest.mark.filterwarnings("ignore:Without labels")
@pytest.mark.parametrize(
    ("options", "title"),
    [
        ({}, "then"),
        ({"abstain": 1e-6}, "candidates"),
        ({"none_of_these": True}, "candidates"),
        ({"mode": "present"}, "each class by itself"),
    ],
)
def test_the_settings_decide_on_the_last_title(options, title):
    assert _last_column(cots.Classifier(tiny("vit"), CLASSES, **options)) == title


def test_a_reader_that_disconnects_is_no_crash(photos, monkeypatch):
    near, far = os.pipe()
    os.close(near)
    said = io.StringIO()
    files = [photos / "a.jpg"] * 6
    with os.fdopen(far, "w") as closed:
        assert on_streams(monkeypatch, closed, said, *files, "--classes", "cat,dog", "--views", "2") == 1
    assert said.getvalue() == ""


@pytest.mark.parametrize(
    ("p", "shown"),
    [(1.0, ">99.9%"), (0.9996, ">99.9%"), (0.9994, "99.9%"), (0.5, "50.0%"), (0.0004, "<0.1%"), (0.0, "<0.1%")],
)
def test_the_table_claims_neither_certainty_nor_nothing(p, shown):
    assert percentage(p, 1) == shown


def test_pipes_and_circles_in_a_folder(photos):
    os.mkfifo(photos / "pipe.jpg")
    (photos / "deep" / "round").symlink_to(photos, target_is_directory=True)
    (photos / "gone.jpg").symlink_to("nowhere.jpg")
    (photos / "self.jpg").symlink_to("self.jpg")
    result = run(photos, "--method", "zeroshot", code=1)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["file"] for line in lines if line["error"] is None] == [
        str(photos / name) for name in ("a.jpg", "b.png", "deep/er/c.PNG")
    ]
    assert "3 of 6 could not be read" in result.stderr
    for name in ("gone.jpg", "self.jpg", "pipe.jpg': not a regular file"):
        assert name in result.stderr


def test_a_folder_that_cannot_be_listed_is_named(photos, monkeypatch):
    listed = os.scandir

    def scandir(path):
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr("os.scandir", scandir)
    with pytest.raises(cots.InputError, match=r"deep' cannot be listed \(Permission denied\)"):
        run(photos)


def test_one_class_causes_a_warning(photos):
    result = run(photos / "a.jpg", "--classes", "cat", "--method", "zeroshot")
    assert "With one class its probability is always 1" in result.stderr


def test_bad_photos_are_listed_when_the_command_is_interrupted(photos, monkeypatch):
    (photos / "a.jpg").write_bytes(b"")

    def stream(self, images):
        yield found
        raise KeyboardInterrupt

    (found,) = cots.Classifier(tiny("vit"), ["cat", "dog"], "zeroshot")([b""])
    monkeypatch.setattr(cots.Classifier, "stream", stream)
    result = run(photos, code=130)
    assert "1 of 3 could not be read" in result.stderr


def test_a_closed_output_is_no_crash(photos, monkeypatch):
    monkeypatch.setattr("sys.argv", ["cots", "predict", str(photos / "a.jpg"), "--classes", "cat,dog", "--views", "1"])
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(SystemExit) as stopped:
        main()
    sys.stdout.close()
    assert stopped.value.code == 0


def test_known_lists_templates_and_duplicates(photos):
    (one,) = [json.loads(line) for line in run(photos / "b.png", "--classes", "everyday").stdout.splitlines()]
    assert one["label"] in class_list("everyday")
    prompts = ["--template", "a photo of a {}.", "--template", "the {}"]
    averaged = run(photos / "b.png", "--method", "zeroshot", *prompts).stdout
    expected = cots.Classifier(tiny("vit"), CLASSES, "zeroshot", views=8, template=[prompts[1], prompts[3]])
    assert json.loads(averaged)["confidence"] == pytest.approx(expected(photos / "b.png").confidence, abs=1e-6)
    with pytest.raises(cots.InputError, match="tunes the words of one template, but the task has 2"):
        run(photos / "b.png", *prompts)
    with pytest.raises(cots.InputError, match="The class 'cat' appears twice"):
        run(photos / "b.png", "--classes", "cat,dog,cat")
    run(photos / "b.png", "--classes", "cat,dog,cat", "--allow-duplicates")
