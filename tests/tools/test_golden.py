"""Comparison of two recordings: what counts as a difference."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.scripts import load_script

golden = load_script("tools/golden.py", "golden")


def record(folder: Path, value: float = 0.5, ids: str = '["a.jpg"]', hashed: str = "0" * 16, seconds: int = 1) -> Path:
    shard = folder / "run" / f"pets-{hashed}" / "00000.safetensors"
    shard.parent.mkdir(parents=True)
    tensors = {"probabilities": np.float32([value, 1 - value]), "milliseconds": np.float32([seconds])}
    save_file(tensors, shard, {"ids": ids, "written": str(seconds)})
    (shard.parent / "manifest.json").write_text(f'{{"hash": "{hashed}"}}')
    (folder / "run" / "page.json").write_text(f'{{"accuracy": 50.0, "seconds": {seconds}}}')
    return folder


def test_times_hashes_and_manifests_do_not_count(tmp_path, capsys):
    before, after = record(tmp_path / "a"), record(tmp_path / "b", hashed="1" * 16, seconds=2)
    assert golden.compare(before, after) == 0
    assert "run: 2 files, 0 differences" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "named"),
    [({"value": float(np.nextafter(np.float32(0.5), 1))}, "probabilities"), ({"ids": '["b.jpg"]'}, "ids")],
)
def test_one_bit_or_another_sample_counts(change, named, tmp_path, capsys):
    assert golden.compare(record(tmp_path / "a"), record(tmp_path / "b", **change)) == 1
    assert named in capsys.readouterr().out


def test_files_that_only_one_recording_has_count(tmp_path):
    before, after = record(tmp_path / "a"), record(tmp_path / "b")
    (after / "run" / "page.json").rename(after / "run" / "other.json")
    assert golden.compare(before, after) == 2


def test_parts_that_were_not_recorded_again_do_not_count(tmp_path):
    before, after = record(tmp_path / "a"), record(tmp_path / "b")
    (before / "demo").mkdir()
    (before / "demo" / "demo.json").write_text("{}")
    assert golden.compare(before, after) == 0
    with pytest.raises(SystemExit, match="contains no recording"):
        golden.compare(before, tmp_path / "b" / "run")
