"""Scripts outside the package as modules."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def load_script(path: Path | str, name: str) -> ModuleType:
    """The module `name` from a file; a relative path starts at the repository's root."""
    spec = spec_from_file_location(name, ROOT / path)
    assert spec
    assert spec.loader
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
