import atexit
import functools
import gc
import logging
import os
import sys

import pytest

# Small tensors: more threads only wait for each other, and results must not depend on how many there are. Set before
# torch is imported, for this process and for every process that a test starts.
os.environ["OMP_NUM_THREADS"] = "1"
# Commands are printed as they are typed without uv, however the tests were started.
os.environ.pop("UV", None)
# Sources, and tests with their assertions rewritten, are compiled once and not in every process and run.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
gc.disable()  # until all is imported: hardly any of it is garbage

# Files whose tests take longest: begun first, so that no core waits for one of them at the end. test_kernels comes
# before test_gpu, because Triton cannot compile in a process that has interpreted kernels.
LONG = (
    "test_kernels", "test_ray", "test_page", "test_readme", "test_interrupt", "test_plan", "test_job", "test_figures",
    "test_gpu", "test_train", "test_sklearn", "test_bench", "test_startup", "test_schemas", "test_write",
    "test_classifier", "test_protocol", "test_examples", "test_mini", "test_fold", "test_files", "test_runs",
    "test_server", "test_parts",
)  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        gc.enable()
        return  # the process that only hands out tests needs no torch
    if hasattr(config, "workerinput"):
        atexit.register(os._exit, 0)  # all is reported: taking apart what torch has imported would take seconds
    import torch
    from hypothesis import Phase, settings
    from support.compiler import without_compiler

    torch.set_num_threads(1)
    # Without the phase that explains failures, which traces every line of every example.
    settings.register_profile("cots", phases=[phase for phase in Phase if phase is not Phase.explain])
    settings.load_profile("cots")
    torch.testing._comparison._HAS_DTENSOR = False  # assert_close would import distributed tensors, which takes seconds
    with without_compiler():
        import open_clip  # noqa: F401
    # In each phase of a test, pytest adds its handlers to every logger that does not propagate: torch has dozens.
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("torch")]:
        logging.getLogger(name).propagate = True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


def pytest_collection_finish() -> None:
    """Spare the garbage collector a look at every imported module whenever a test makes many objects."""
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # so that nothing counts as leaked at exit


@pytest.fixture(scope="session", autouse=True)
def made_once():
    """What one process of a user needs once or twice and the tests hundreds of times, always with the same result.

    CLIP's 49,408 tokens, unpacked and sorted for every model; the tree of commands, made for every call of one.
    """
    import open_clip
    import typer.testing

    from cots.backbones import _mini

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_mini, "_clip_tokenizer", functools.cache(_mini._clip_tokenizer))
        patch.setattr(open_clip.factory, "SimpleTokenizer", functools.cache(open_clip.SimpleTokenizer))
        patch.setattr(typer.testing, "_get_command", functools.cache(typer.testing._get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk():
    """Processes are killed here, but the power is never cut: what the system has buffered is not lost."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
