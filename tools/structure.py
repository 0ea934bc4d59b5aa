"""Rules for the structure of src/cots, and the figures of it.

    python tools/structure.py            # the figures, as a table
    python tools/structure.py --rules    # one line per violation of a rule, as in tests/test_structure.py

A rule is a function from the modules of the package to violations: lines `file: what is wrong`, without line numbers.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
LONGEST = 60  # lines of a function, without its decorators
# From bottom to top: a program imports the library and the programs before it.
PROGRAMS = ("data", "bench", "evaluate", "paper", "serve", "demo", "cli", "__main__")
ACCELERATION = re.compile(r"(?i:triton|cuda ?graph|kernels|jacobian|half-precision)|\bHALF\b|\.half\(\)")
MENTIONED = "triton, CUDA graphs, kernels, the Jacobian or half-precision branches"
NESTED = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Names of mappings that hold a run's settings or manifest; what reads another project's files is not meant.
SETTINGS = re.compile(r"\b(manifest|entry|entries|resolved|settings)\b")
FOREIGN = ("cots._checkpoints", "cots.backbones.", "cots.prompts.")


@dataclass(frozen=True)
class Import:
    """One imported module, with the names taken from it (none for `import x`)."""

    module: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Module:
    """A source file: `name` is its dotted name, `package` the package that its relative imports start from."""

    name: str
    file: str
    source: str
    is_package: bool

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(ast.parse(self.source)))

    @property
    def package(self) -> str:
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @property
    def room(self) -> str:
        """The part of the package that the module belongs to, such as `adapters` or `classifier`."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else "__init__"


Modules = dict[str, Module]


def read_modules(source: Path = ROOT / "src") -> Modules:
    """The modules of cots by dotted name."""
    modules = {}
    for path in sorted((source / "cots").rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        file = path.relative_to(source).as_posix()
        modules[name] = Module(name, file, path.read_text(encoding="utf-8"), is_package)
    return modules


def imports_of(module: Module, modules: Modules) -> list[Import]:
    """What a module imports from cots when it runs, at the top or inside a function."""
    for_type_checkers = set()
    for node in module.nodes:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for_type_checkers.update(node.body)
    imports = []
    for node in module.nodes:
        if node in for_type_checkers:
            continue
        if isinstance(node, ast.Import):
            imports += [Import(alias.name, ()) for alias in node.names if alias.name in modules]
        elif isinstance(node, ast.ImportFrom):
            imports += _imports_from(node, module, modules)
    return imports


def _imports_from(node: ast.ImportFrom, module: Module, modules: Modules) -> list[Import]:
    base = node.module or ""
    if node.level:
        above = module.package.split(".")
        above = above[: len(above) - node.level + 1]
        base = ".".join([*above, base] if base else above)
    if base not in modules:
        return []
    imports = []
    for alias in node.names:
        submodule = f"{base}.{alias.name}"
        if submodule in modules:
            imports.append(Import(submodule, ()))
        else:
            imports.append(Import(base, (alias.name,)))
    return imports


# --- the rules -------------------------------------------------------------------------------------------------------


def long_functions(modules: Modules) -> list[str]:
    violations = []
    for module in modules.values():
        for node in module.nodes:
            if isinstance(node, FUNCTIONS):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > LONGEST:
                    violations.append(f"{module.file}: {node.name}() has more than {LONGEST} lines; split it")
    return violations


def private_imports(modules: Modules) -> list[str]:
    violations = set()
    for module in modules.values():
        for imported in imports_of(module, modules):
            owner = _private_owner(imported)
            if owner and not f"{module.package}.".startswith(f"{owner}."):
                violations.add(f"{module.file}: imports from {imported.module}; take the name from {owner}")
    return sorted(violations)


def _private_owner(imported: Import) -> str | None:
    """The package to which an imported module or name is private."""
    parts = [*imported.module.split("."), *imported.names]
    for index, part in enumerate(parts):
        if part.startswith("_") and not part.startswith("__"):
            return ".".join(parts[:index])
    return None


def import_cycles(modules: Modules) -> list[str]:
    graph = {}
    for module in modules.values():
        graph[module.name] = {i.module for i in imports_of(module, modules)} - {module.name}
    reached = {name: _reachable(name, graph) for name in graph}
    violations = set()
    for name in graph:
        cycle = sorted(other for other in reached[name] if name in reached[other])
        if cycle:
            violations.add(f"import cycle, lazy imports included: {', '.join(cycle)}")
    return sorted(violations)


def _reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        for target in graph[waiting.pop()]:
            if target not in reached:
                reached.add(target)
                waiting.append(target)
    return reached


def acceleration_outside_fast(modules: Modules) -> list[str]:
    violations = []
    for module in modules.values():
        if module.room != "fast" and ACCELERATION.search(module.source):
            violations.append(f"{module.file}: mentions {MENTIONED}, which belong in cots/fast")
    return violations


def layers(modules: Modules) -> list[str]:
    """The library imports no program, a program none above itself, and only accelerate.py imports fast."""
    violations = set()
    for module in modules.values():
        height = _height(module)
        for imported in imports_of(module, modules):
            target = modules[imported.module]
            if _height(target) > height and module.name != "cots":
                violations.add(f"{module.file}: imports {target.name}, a program above it")
            if target.room == "fast" and module.room not in {"fast", "accelerate"}:
                violations.add(f"{module.file}: imports {target.name}; only accelerate.py imports fast")
    return sorted(violations)


def _height(module: Module) -> int:
    """0 for the library, else the place of the program."""
    return 1 + PROGRAMS.index(module.room) if module.room in PROGRAMS else 0


def string_keys(modules: Modules) -> list[str]:
    """Accesses such as manifest["model"] or settings.get("lr"), one line per file."""
    violations = []
    for module in modules.values():
        count = count_string_keys(module)
        if count:
            violations.append(f"{module.file}: reads settings or a manifest by string keys; use the typed objects")
    return violations


def count_string_keys(module: Module) -> int:
    if module.name.startswith(FOREIGN):
        return 0
    count = 0
    for node in module.nodes:
        receiver: ast.expr | None = None
        key: ast.expr | None = None
        if isinstance(node, ast.Subscript):
            receiver, key = node.value, node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            receiver, key = node.func.value, node.args[0] if node.args else None
        if receiver and isinstance(key, ast.Constant) and isinstance(key.value, str):
            count += bool(SETTINGS.search(ast.unparse(receiver)))
    return count


RULES: dict[str, Callable[[Modules], list[str]]] = {
    "long functions": long_functions,
    "private imports": private_imports,
    "import cycles": import_cycles,
    "acceleration outside fast": acceleration_outside_fast,
    "layers": layers,
    "string keys": string_keys,
}


def find_violations(modules: Modules) -> list[str]:
    return [violation for rule in RULES.values() for violation in rule(modules)]


# --- the figures -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Walk:
    """What a call runs: modules of the package without shared helpers, and the longest chain of nested calls."""

    modules: list[str]
    chain: list[str]


def trace(call: Callable[[], Any], package: Path) -> Walk:
    names: set[str] = set()
    longest: list[str] = []

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal longest
        if event != "call" or not frame.f_code.co_filename.startswith(str(package)):
            return
        names.add(Path(frame.f_code.co_filename).relative_to(package).as_posix())
        chain = []
        above: FrameType | None = frame
        while above is not None:
            code = above.f_code
            if code.co_filename.startswith(str(package)) and code.co_name not in NESTED:
                chain.append(f"{Path(code.co_filename).relative_to(package).as_posix()}:{code.co_name}")
            above = above.f_back
        if len(chain) > len(longest):
            longest = chain[::-1]

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # pyright: ignore[reportArgumentType]
    return Walk(sorted(name for name in names if not name.startswith("_")), longest)


def walk_of_a_photo() -> tuple[Walk, Walk]:
    """One photo through a new Classifier and one through the same again, on a CPU."""
    import cots

    package = Path(cots.__file__).parent
    photos = sorted((ROOT / "examples" / "photos").rglob("*.jpg"))
    classifier = cots.Classifier(classes=["cat", "dog", "espresso"], device="cpu")
    cold = trace(lambda: classifier(photos[0]), package)
    warm = trace(lambda: classifier(photos[1]), package)
    return cold, warm


def figures(modules: Modules) -> list[tuple[str, object]]:
    lines = comprehensions = conditionals = fast = 0
    for module in modules.values():
        size = module.source.count("\n")
        lines += size
        fast += size if module.room == "fast" else 0
        for node in module.nodes:
            comprehensions += isinstance(node, COMPREHENSIONS)
            conditionals += isinstance(node, ast.IfExp)
    nested = 1000 * (comprehensions + conditionals) / lines
    return [
        ("files outside fast/ that mention acceleration", len(acceleration_outside_fast(modules))),
        ("private imports across packages", len(private_imports(modules))),
        ("import cycles", len(import_cycles(modules))),
        ("violations of the layers", len(layers(modules))),
        ("string-key accesses to settings and manifests", sum(map(count_string_keys, modules.values()))),
        ("lines in src/cots", lines),
        ("lines in src/cots/fast", fast),
        ("comprehensions + conditional expressions per 1,000 lines", f"{nested:.0f}"),
        (f"functions over {LONGEST} lines", len(long_functions(modules))),
        ("modules over 450 lines", sum(module.source.count("\n") > 450 for module in modules.values())),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", action="store_true", help="print the violations only")
    parser.add_argument("--chain", action="store_true", help="also print the longest chain of calls")
    given = parser.parse_args()
    modules = read_modules()
    if given.rules:
        print("\n".join(find_violations(modules)))
        return
    rows = figures(modules)
    for name, walk in zip(("first photo", "second photo"), walk_of_a_photo(), strict=True):
        rows.append((f"modules of a {name} / deepest chain of calls", f"{len(walk.modules)} / {len(walk.chain)}"))
        if given.chain:
            print(f"{name}: {', '.join(walk.modules)}\n  " + "\n  ".join(walk.chain))
    for name, value in rows:
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
