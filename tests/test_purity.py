"""Packages import only those that docs/concepts/architecture.md allows; every file's imports are read."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PURE_PACKAGES = ("delta", "protocol", "swarm", "membership")
PURE_MODULES = {f"p2psync.{name}" for name in (*PURE_PACKAGES, "errors", "setting_checks", "setting_names")}
#: Nothing here opens a file or socket, reads a clock, or starts a thread.
IMPURE = {
    "aiohttp", "asyncio", "concurrent", "fcntl", "http", "io", "mmap", "multiprocessing", "os", "pathlib", "pickle",
    "requests", "secrets", "select", "selectors", "shutil", "signal", "socket", "socketserver", "ssl", "subprocess",
    "tempfile", "threading", "time", "torch", "urllib", "uvloop", "vllm",
}  # fmt: skip
#: Folders beside `p2psync/`, which link there: `trainer/node.py` is `p2psync.trainer.node`.
OUTER = {"trainer", "actor", "topology", "rldemo", "bench"}
#: Cores of the daemons: as pure as those packages.
PURE_CORES = [
    *(f"trainer/ledger/{name}.py" for name in ("core", "config", "records", "admission", "allotment")),
    *(f"trainer/ledger/{name}.py" for name in ("claims", "grants", "items", "throughput", "pool", "results")),
    *(f"trainer/watch/{name}.py" for name in ("watcher", "memory", "notices", "candidates", "locations", "listing")),
    *(f"p2psync/engines/checkpoint/{name}.py" for name in ("file_names", "framework_names")),
    *(f"actor/{name}.py" for name in ("demand", "stream_trailer")),
]  # fmt: skip
ENGINE_LIBRARIES = {"torch", "vllm", "transformers"}


def files(*folders: str) -> list[Path]:
    """All modules in these folders of the repository."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def imports(path: Path, *, at_start_only: bool = False) -> Iterator[str]:
    """Full names of the modules a file imports (of `from a.b import c`: a.b).

    at_start_only: without those that functions import when they run, and those that only a type checker reads.
    """
    tree = ast.parse(path.read_text())
    later = {node for outer in ast.walk(tree) if _runs_later(outer) for node in ast.walk(outer)}
    for node in ast.walk(tree):
        if node in later and at_start_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            yield node.module or ""


def _runs_later(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def uses_only_thread_locals(path: Path) -> bool:
    """Scratch memory of each thread's own is no I/O, and no outcome depends on it."""
    tree = ast.parse(path.read_text())
    froms = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == "threading"]
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "threading"
    }
    return not froms and used <= {"local"}


def name(path: Path) -> str:
    """Returns the name of a file in failures."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", files(*(f"p2psync/{package}" for package in PURE_PACKAGES)), ids=name)
def test_a_pure_package_imports_neither_io_nor_clocks_nor_other_packages(path: Path) -> None:
    for module in imports(path):
        if module == "threading":
            assert uses_only_thread_locals(path), f"{name(path)} starts or waits for threads"
            continue
        assert module.split(".")[0] not in IMPURE, f"{name(path)} imports {module}: it belongs into a shell"
        if module.startswith("p2psync"):
            assert package_of(module) in PURE_MODULES, f"{name(path)} imports {module}, of an outer room"


@pytest.mark.parametrize("path", files(*(f"p2psync/{package}" for package in PURE_PACKAGES)), ids=name)
def test_a_pure_package_uses_only_the_randomness_that_it_is_given(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.module != "random" or {alias.name for alias in node.names} == {"Random"}
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random":
            assert node.attr == "Random", f"{name(path)} uses random.{node.attr}: take a random.Random as an argument"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("open", "print", "input", "exec", "eval"), f"{name(path)} calls {node.func.id}"


@pytest.mark.parametrize("path", [ROOT / path for path in PURE_CORES], ids=name)
def test_a_pure_core_imports_neither_io_nor_clocks_nor_shells(path: Path) -> None:
    cores = {module_of(ROOT / core) for core in PURE_CORES}
    for module in imports(path):
        assert module.split(".")[0] not in IMPURE, f"{name(path)} imports {module}: it belongs into a shell"
        if module.startswith("p2psync"):
            assert module in cores or package_of(module) in PURE_MODULES, f"{name(path)} imports {module}"


@pytest.mark.parametrize("path", files("p2psync"), ids=name)
def test_arrows_point_inward(path: Path) -> None:
    if path == ROOT / "p2psync" / "__init__.py":
        return  # the public face names everything; a test of its own holds that it imports nothing
    in_cli = path.is_relative_to(ROOT / "p2psync" / "cli")
    for module in imports(path, at_start_only=in_cli):
        outer = module.split(".")[1:2]
        assert not OUTER & set(outer), f"{name(path)} imports {module}: only p2psync/cli may, in functions"


@pytest.mark.parametrize("path", files("p2psync", *OUTER, "tests", "examples"), ids=name)
def test_every_import_goes_through_the_one_installed_package(path: Path) -> None:
    # Whoever imported `trainer` would get a user's own trainer.py, or a second copy of every class.
    for module in imports(path):
        assert module.split(".")[0] not in OUTER, f"{name(path)} imports {module}: import p2psync.{module}"


@pytest.mark.parametrize("path", files("p2psync", "topology"), ids=name)
def test_torch_and_vllm_are_imported_only_where_weights_live(path: Path) -> None:
    if path.is_relative_to(ROOT / "p2psync" / "engines"):
        return
    # A command is the outermost ring: it may look for torch when it runs, not when it is loaded.
    in_cli = path.is_relative_to(ROOT / "p2psync" / "cli")
    for module in imports(path, at_start_only=in_cli):
        assert module.split(".")[0] not in ENGINE_LIBRARIES, f"{name(path)} imports {module}"


@pytest.mark.parametrize("path", files("p2psync", "trainer", "actor", "topology"), ids=name)
def test_nothing_is_pickled(path: Path) -> None:
    assert not {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"} & set(imports(path))


def loaded_after(statement: str, *modules: str) -> list[str]:
    """Returns which of these modules a fresh interpreter has loaded after a statement."""
    code = f"import sys\n{statement}\nprint(*(m for m in {modules!r} if m in sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return run.stdout.split()


def module_of(path: Path) -> str:
    """A file's module name."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return f"p2psync.{module}" if module.split(".")[0] in OUTER else module


def package_of(module: str) -> str:
    """`p2psync.delta` of `p2psync.delta.fast.codec.coder`."""
    return ".".join(module.split(".")[:2])


def test_importing_the_pure_packages_loads_no_event_loop() -> None:
    # Modules that the libraries of the pure packages load by themselves are allowed.
    libraries = "import blake3, cryptography.hazmat.primitives.asymmetric.ed25519, msgspec, numba, numpy, zstandard"
    suspects = ("asyncio", "ssl", "aiohttp", "uvloop", "torch", "vllm", "multiprocessing.pool", "http.client")
    modules = [module_of(path) for path in files(*(f"p2psync/{package}" for package in PURE_PACKAGES))]
    before = set(loaded_after(libraries, *suspects))
    after = set(loaded_after(f"{libraries}\nimport {', '.join(modules)}", *suspects))
    assert after <= before


def test_a_relay_runs_without_torch_and_without_the_codec() -> None:
    assert loaded_after("from p2psync.actor.node import make_relay", "torch", "numba") == []


def test_the_command_line_starts_with_little_and_compiles_nothing() -> None:
    heavy = ("torch", "vllm", "transformers", "numba", "numpy", "scipy", "matplotlib", "aiohttp")
    assert loaded_after("import p2psync.cli.app", *heavy) == []


def test_wrong_options_of_a_race_are_refused_before_torch_is_loaded() -> None:
    wrong = """
import sys
from p2psync.cli.main import main
sys.argv = ["p2psync", "bench", "rl", "--ways", "telepathy"]
try:
    main()
except SystemExit as ended:
    assert ended.code == 2
"""
    assert loaded_after(wrong, "p2psync.cli.bench_rl", "torch") == ["p2psync.cli.bench_rl"]
