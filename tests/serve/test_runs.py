"""Runs through the API: their list, their reports, ids, damaged folders."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from PIL import Image
from support.models import tiny
from support.serving import client, refused

from cots import bench
from cots.evaluate import write_report

METHODS = ("zeroshot", "tpt+cots")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    root = tmp_path_factory.mktemp("served")
    rng = np.random.default_rng(0)
    for dataset in ("first", "second"):
        for name in ("cat", "dog", "car"):
            folder = root / dataset / name
            folder.mkdir(parents=True)
            Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(folder / "photo.png")
    config = bench.RunConfig(
        model=tiny("vit"), datasets=(root / "first", root / "second"), methods=METHODS, seeds=(0, 1),
        out=root / "runs" / "finished", views=2, augmix=False,
    )  # fmt: skip
    bench.run(config)
    shutil.copytree(root / "runs" / "finished", root / "runs" / "part")
    (root / "runs" / "part" / "DONE").unlink()
    run = bench.Run.open(root / "runs" / "finished")
    write_report(run, root / "runs" / "finished" / "report", ("html",), figures=(), resamples=2)
    (root / "runs" / "notes.txt").write_text("not a run")
    (root / "runs" / "empty").mkdir()
    for name, content in (("odd name", "{}"), ("damaged", '{"schema": 1}')):
        (root / "runs" / name).mkdir()
        (root / "runs" / name / "manifest.json").write_text(content)
    (root / "secret.html").write_text("secret")
    return root


@pytest.fixture(scope="module")
def web(shelf):
    return client(runs=shelf / "runs")


def test_the_list_has_the_runs_and_nothing_else(web, shelf):
    runs = {run["id"]: run for run in web.get("/v1/runs").json()["runs"]}
    assert set(runs) == {"finished", "part", "damaged"}
    run = runs["finished"]
    assert run["methods"] == list(METHODS)
    assert (run["seeds"], run["photos"]) == ([0, 1], 6)
    assert run["weights_hash"] == tiny("vit").weights_hash
    assert (run["complete"], run["report"], run["damaged"]) == (True, "/reports/finished", None)
    assert (runs["part"]["complete"], runs["part"]["report"]) == (False, None)
    assert runs["damaged"]["damaged"] == "manifest.json: cots is missing"
    assert client().get("/v1/runs").json() == {"runs": []}
    assert client(runs=shelf / "nowhere").get("/v1/runs").json() == {"runs": []}


def test_a_report_is_the_page_and_can_do_nothing(web, shelf):
    answer = web.get("/reports/finished")
    assert answer.content == (shelf / "runs" / "finished" / "report" / "report.html").read_bytes()
    assert "<h1>Calibration report</h1>" in answer.text
    (policy,) = answer.headers.get_list("content-security-policy")
    assert {"sandbox", "default-src 'none'", "frame-ancestors 'self'"} <= set(policy.split("; "))
    assert "allow-" not in policy
    assert "script" not in policy


@pytest.mark.parametrize(
    "id",
    ["nothing", "part", "..", "%2e%2e", "..%2fsecret.html", "finished%2f..%2f..", "odd%20name", "notes.txt", "."],
)
def test_an_id_is_only_compared(web, id):
    answer = web.get(f"/reports/{id}")
    assert "secret" not in answer.text
    if answer.request.url.path.startswith("/reports/"):  # the client itself resolves dots
        assert answer.status_code == 404


@pytest.mark.parametrize("linked", ["report", "report/report.html"])
def test_a_link_in_a_run_folder_leads_nowhere(shelf, tmp_path, linked):
    run = tmp_path / "runs" / "foreign"
    shutil.copytree(shelf / "runs" / "finished", run)
    target = tmp_path / "private"
    shutil.move(run / linked, target)
    (run / linked).symlink_to(target)
    web = client(runs=tmp_path / "runs")
    assert web.get("/v1/runs").json()["runs"][0]["report"] is None
    refused(web.get("/reports/foreign"), 404, "no_report", "id")


def test_with_a_token_the_address_of_a_report_has_a_key(shelf):
    web = client(runs=shelf / "runs", token="s3cret-word")
    runs = web.get("/v1/runs", headers={"authorization": "Bearer s3cret-word"}).json()["runs"]
    address = next(run["report"] for run in runs if run["id"] == "finished")
    assert "s3cret" not in address
    assert web.get(address).status_code == 200
    for wrong in ("/reports/finished", "/reports/finished?key=", address[:-1], f"{address}0", address + "%ff"):
        refused(web.get(wrong), 401, "unauthorized")
    refused(web.get(address.replace("finished", "part")), 401, "unauthorized")
