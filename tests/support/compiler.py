"""torch's compiler, which takes longer to import than torch, kept out of processes that compile nothing."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace


@contextmanager
def without_compiler():
    """Stand-ins for the helpers that torch.optim, torchvision and timm import it for; later imports get the real one.

    Also a decorator, for second implementations that take their steps with torch.optim.
    """
    names = ("torch._dynamo", "torch._dynamo.utils")
    if any(name in sys.modules for name in names):
        yield
        return
    compiler, utils = map(ModuleType, names)
    vars(compiler)["disable"] = lambda function=None, *given, **options: function
    vars(compiler)["graph_break"] = lambda: None
    vars(compiler)["config"] = SimpleNamespace(error_on_nested_fx_trace=False)  # read by torch.utils.checkpoint
    vars(utils)["is_compile_supported"] = lambda device: False
    sys.modules.update(zip(names, (compiler, utils), strict=True))
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
