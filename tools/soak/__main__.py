"""Soak test: hostile and damaged inputs, interrupted runs and a flooded server, on this machine.

    python tools/soak                      # everything, in at most 10 minutes
    python tools/soak --minutes 1          # every part, with fewer repetitions, as in CI
    python tools/soak --parts swaps,locks  # some parts

Each part is bounded in number and time, and connects to this machine only. The exit status is 1 if anything failed.
"""

import os
import sys
import warnings
from pathlib import Path

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    sys.path[0] = str(Path(__file__).parents[1])
    warnings.simplefilter("ignore")  # about class names and damaged files, which are what this is about
    from soak.command import main

    raise SystemExit(main(__doc__))
