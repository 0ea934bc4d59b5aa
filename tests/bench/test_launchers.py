"""Real processes: under torchrun, and with the variables that srun sets; the figures are those of one process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.runs import figures, photos

from cots import bench

PROGRAMS = Path(sys.executable).parent
FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("data") / "photos", 22, broken=("car/2.png",))  # two shards


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """View features of that one process."""
    return tmp_path_factory.mktemp("features")


@pytest.fixture(scope="module")
def expected(dataset, cache, tmp_path_factory):
    """The figures of one process."""
    options = {"datasets": [dataset.where], "methods": "tpt+cots", "views": 2, "device": "cpu", "cache": cache}
    return figures(bench.run(bench.RunConfig(**options, out=tmp_path_factory.mktemp("runs") / "x")))


@pytest.fixture
def words(dataset, cache, expected, tmp_path) -> list[str]:
    """The command; the features of the first 64 photos are there, those of the others are left to their rank."""
    shutil.copytree(cache, tmp_path / "features")
    (last,) = tmp_path.glob("features/*/seed0/00001.safetensors")
    last.unlink()
    (tmp_path / "run.toml").write_text("views = 2\n")
    command = [str(PROGRAMS / "cots"), "run", "--config", str(tmp_path / "run.toml"), "--datasets", dataset.where]
    command += ["--methods", "tpt+cots", "--device", "cpu", "--cache", str(tmp_path / "features")]
    return [*command, "--out", str(tmp_path / "y")]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return {**kept, "OMP_NUM_THREADS": "1", **more}


def test_torchrun(words, expected, tmp_path):
    launcher = [str(PROGRAMS / "torchrun"), "--standalone", "--nproc-per-node", "2", "--no-python"]
    done = subprocess.run(
        [*launcher, *words], env=environment(), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "engine: rank 0 of 2 (RANK, WORLD_SIZE)" in done.stdout
    run = bench.Run.open(tmp_path / "y")
    assert run.complete
    assert figures(run) == expected


def test_the_variables_of_srun(words, expected, tmp_path):
    step = {"SLURM_NTASKS": "2", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "17"}
    tasks = [
        subprocess.Popen(
            words,
            env=environment(**step, SLURM_PROCID=str(task), SLURM_LOCALID=str(task)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for task in range(2)
    ]
    told = [task.communicate(timeout=300) for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], told
    assert "engine: rank 0 of 2 (SLURM_PROCID, SLURM_NTASKS)" in told[0][0]
    run = bench.Run.open(tmp_path / "y")
    assert run.complete
    assert figures(run) == expected
