"""Programs of others that look for holes, if they are installed: schemathesis and bandit."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from .checks import ENDLESS, Result
from .server import Server

SOURCE = Path(__file__).parents[2] / "src"
# Findings that are meant: test and file, with the reason.
ACCEPTED = {
    ("B102", "_registry.py"): "plug-ins are programs that the user names",
    ("B615", "_hugging_face.py"): "a model is named by the user, and nothing in it is executed",
    ("B615", "_open_clip.py"): "a model is named by the user, and nothing in it is executed",
    ("B701", "text.py"): "pages escape; Markdown and TeX do it themselves",
}


def _program(name: str) -> str | None:
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def monitored(folder: Path) -> tuple[str, ...]:
    """The options of a server with a monitor, and its policy in `folder`."""
    from cots import conformal, load

    error = conformal.ErrorControl(risk=0.05, certainty=0.95, threshold=0.0, n=200, accepted=200, errors=0)
    conformal.Policy(
        model="mini", weights_hash=load("mini").weights_hash, classes=("tabby cat", "beagle"), method="tpt+ecots",
        template="a photo of a {}.", views=2, n=200, accuracy=1.0, mean_confidence=1.0, error=error,
    ).save(folder / "policy.json")  # fmt: skip
    return "--policy", str(folder / "policy.json"), "--monitor", str(folder / "monitor.db"), "--ask", "1"


def run_schemathesis(count: int = 50, until: float = ENDLESS) -> Result:
    """Requests made from the server's own OpenAPI schema: no status 5xx, and answers as documented."""
    program = _program("schemathesis")
    if program is None:
        return Result("schemathesis", 0, Counter(), "not installed")
    with tempfile.TemporaryDirectory() as folder, Server("--timeout", "10", *monitored(Path(folder))) as server:
        url = f"http://127.0.0.1:{server.port}/openapi.json"
        seconds = 600 if until == ENDLESS else max(10, until - time.monotonic())
        command = [program, "run", url, "--max-examples", str(count), "--phases", "examples,coverage,fuzzing",
                   "--checks", "not_a_server_error,response_schema_conformance,content_type_conformance",
                   "--continue-on-failure", "--no-color"]  # fmt: skip
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=seconds, cwd=folder)
        except subprocess.TimeoutExpired:
            return Result("schemathesis", 1, Counter(), f"stopped after {seconds:.0f} s")
    problems = Counter(re.findall(r"^- (.+)$", ended.stdout, re.MULTILINE))
    if ended.returncode and not problems:
        problems[f"exit status {ended.returncode}"] += 1
    return Result("schemathesis", count, problems)


def run_bandit(until: float = ENDLESS) -> Result:
    """Findings of medium or high severity in src/ that are not accepted."""
    program = _program("bandit")
    if program is None:
        return Result("bandit", 0, Counter(), "not installed")
    command = [program, "--recursive", "--quiet", "-ll", "--format", "json", str(SOURCE)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    problems = Counter[str]()
    for issue in json.loads(ended.stdout)["results"]:
        file = Path(issue["filename"]).name
        if (issue["test_id"], file) in ACCEPTED:
            continue
        problems[f"{file}:{issue['line_number']}: {issue['test_id']} {issue['issue_text']}"[:120]] += 1
    return Result("bandit", 1, problems)
