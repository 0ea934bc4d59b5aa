"""One vocabulary: settings and keys are called the same in command line, Python and HTTP."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest
from typer.testing import CliRunner

import cots
from cots.cli import app
from cots.cli._outputs import COLUMNS
from cots.serve._requests import PredictFields
from cots.serve._schemas import MethodResult

# option, parameter of Classifier, and field of a request or option of the server
ROWS = [
    ("--classes", "classes", "classes"),
    ("--abstain", "abstain", "abstain"),
    ("--none-of-these", "none_of_these", "none_of_these"),
    ("--range", "ranges", "ranges"),
    ("--max-pixels", "max_pixels", "--max-pixels"),
    ("--solver", "solver", "--solver"),
    ("--policy", "policy", "--policy"),
]


def options(command: str) -> str:
    return CliRunner().invoke(app, [command, "--help"]).stdout


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_door_has_the_setting_under_its_one_name(row):
    option, parameter, field = row
    assert f"{option} " in options("predict")
    assert parameter in inspect.signature(cots.Classifier).parameters
    if field.startswith("--"):
        assert f"{field} " in options("serve")
    else:
        assert field in PredictFields.model_fields


def test_every_door_has_the_same_defaults():
    parameters = inspect.signature(cots.Classifier).parameters
    shared = [name for name, field in PredictFields.model_fields.items() if name in parameters and name != "classes"]
    assert {"template", "seed", "abstain", "none_of_these", "ranges"} <= set(shared)
    for name in shared:
        default = PredictFields.model_fields[name].default
        assert (default or None) == (parameters[name].default or None), name
    assert PredictFields.model_fields["thumbnails"].default is False


def test_every_door_has_the_same_keys():
    own = {field.name for field in fields(cots.Prediction)} - {"probabilities", "classes"}
    of_the_server = {"top", "milliseconds", "id", "ask", "under_policy"}  # of the request, the monitor and the policy
    assert set(MethodResult.model_fields) - of_the_server == own - {"error", "presence"}
    columns = set(COLUMNS) - {"file", "confidence_low", "confidence_high"}
    assert columns <= own, "CSV: without lists of views and candidates"
    assert own - columns <= {"confidence_range", "views", "unsure", "candidates", "warnings", "present", "presence"}
