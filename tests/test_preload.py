"""torch's libraries load in the background; torch itself is imported later."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys, threading
from cots._preload import preload_torch

preload_torch()
for thread in set(threading.enumerate()) - {threading.main_thread()}:
    thread.join()
print("torch" in sys.modules, "libtorch_cpu" in open("/proc/self/maps").read(), os.environ["OMP_WAIT_POLICY"])
import torch
print(float(torch.ones(200, 300).matmul(torch.ones(300)).sum()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="libraries have other names elsewhere")
def test_libraries_are_loaded_before_torch_is_imported():
    rest = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=rest)
    assert done.stdout.split() == ["False", "True", "PASSIVE", "60000.0"]
    assert not done.stderr
