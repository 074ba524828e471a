"""The rules of the house that no linter keeps: links, heavy imports, and what must never appear in the sources."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("node", "protocol", "training", "kernels")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

# what the protocol's decisions may not even import: they open nothing, await nothing and compute no tensors
PURE_MODULES = (
    "spec",
    "quorum",
    "budget",
    "grace",
    "weights",
    "aggregation",
    "admission",
    "commitments",
    "receipts",
    "evidence",
    "signed_results",
    "recollection",
    "leader",
    "spans",
    "standing",
    "changes",
    "amendments",
    "round_machine",
    "values",
    "record",
    "messages",
    "envelope",
    "parsing",
    "identity",
    "chunks",
    "replica",
)
IMPURE = {"torch", "hivemind", "asyncio", "socket", "threading", "subprocess", "time", "random", "secrets"}

# without torch: what a command line, a daemon or a checkpoint reader needs before any tensor exists
LIGHT_TRAINING = ("config", "channel", "checkpoint", "flat")


def source_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Absolute names that a module imports, at any depth of nesting."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_type_checking_block(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imported_at_load(statements: list[ast.stmt]) -> set[str]:
    """Top-level package names that loading the module imports, not those inside functions or for the type checker."""
    names: set[str] = set()
    for node in statements:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_type_checking_block(node):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {name.partition(".")[0] for name in imported_modules(node)}
        for block in ("body", "orelse", "finalbody"):
            names |= imported_at_load(getattr(node, block, []))
        for handler in getattr(node, "handlers", []):
            names |= imported_at_load(handler.body)
    return names


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def modules_after_import(*modules: str) -> set[str]:
    """Top-level modules in a fresh interpreter, outside the repository, after it imported ``modules``."""
    code = f"import sys, {', '.join(modules)}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    finished = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=True)
    return set(finished.stdout.split())


# ---- layout


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_is_a_relative_link_to_its_folder_in_the_root(package: str) -> None:
    link = ROOT / ".pkg" / "atoll" / package
    assert link.is_symlink(), f"{link} is no link: was the repository checked out without symlinks?"
    assert link.readlink() == Path("..", "..", package)
    assert link.resolve() == ROOT / package


def test_the_imported_package_is_this_source_tree() -> None:
    import atoll.protocol

    assert Path(atoll.protocol.__file__ or "").resolve() == ROOT / "protocol" / "__init__.py"


def test_nothing_is_installed_as_a_top_level_package() -> None:
    code = (
        "import importlib.util as u; print([p for p in ('node', 'protocol', 'training', 'kernels') if u.find_spec(p)])"
    )
    finished = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "[]"


# ---- heavy imports


@pytest.mark.parametrize("module", ["atoll", "atoll.kernels", "atoll.training", "atoll.protocol", "atoll.node.cli"])
def test_importing_a_package_or_the_command_line_loads_nothing_heavy(module: str) -> None:
    if module == "atoll.node.cli" and not (ROOT / "node" / "cli.py").exists():
        pytest.skip("no command line yet")
    assert not modules_after_import(module) & {"torch", "hivemind", "grpc", "tokenizers"}


def test_what_needs_no_tensors_does_not_load_torch() -> None:
    present = [name for name in LIGHT_TRAINING if (ROOT / "training" / f"{name}.py").exists()]
    if not present:
        pytest.skip("no training package yet")
    assert not modules_after_import(*(f"atoll.training.{name}" for name in present)) & {"torch", "hivemind"}


def files_of(module: Path) -> list[Path]:
    """Sources of a module, which may be one file or a folder."""
    return [module.with_suffix(".py")] if module.with_suffix(".py").exists() else sorted(module.rglob("*.py"))


@pytest.mark.parametrize("name", PURE_MODULES)
def test_the_protocols_decisions_import_nothing_that_does_something(name: str) -> None:
    files = files_of(ROOT / "protocol" / name)
    assert files, f"protocol.{name} is gone: was it renamed?"
    assert {file.name: found for file in files if (found := imported_at_load(parse(file).body) & IMPURE)} == {}


@pytest.mark.parametrize("path", SOURCES, ids=source_id)
def test_only_the_swarm_imports_hivemind(path: Path) -> None:
    inside = path.is_relative_to(ROOT / "protocol" / "swarm") or path == ROOT / "protocol" / "swarm.py"
    names = {name.partition(".")[0] for name in imported_modules(parse(path))}
    assert inside or "hivemind" not in names


# ---- nothing executable from the network or from disk

FORBIDDEN_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "runpy",
    "code",
}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_ATTRIBUTES = {
    ("torch", "load"): "checkpoints are safetensors",
    ("torch", "save"): "checkpoints are safetensors",
    ("os", "system"): "start processes with an argument list",
    ("numpy", "load"): "may unpickle",
    ("np", "load"): "may unpickle",
    ("yaml", "load"): "may construct objects",
    ("yaml", "unsafe_load"): "constructs objects",
    ("yaml", "full_load"): "constructs objects",
    ("torch", "hub"): "runs code from a repository",
    ("builtins", "eval"): "runs text",
    ("builtins", "exec"): "runs text",
}


def forbidden_uses(tree: ast.AST) -> Iterator[str]:
    """Every construct in a module that could run what a peer or a file says."""
    for name in imported_modules(tree):
        module, _, attribute = name.rpartition(".")
        if name.partition(".")[0] in FORBIDDEN_MODULES or (module, attribute) in FORBIDDEN_ATTRIBUTES:
            yield f"imports {name}"
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN_CALLS:
                yield f"line {node.lineno}: calls {name}()"
            case ast.Attribute(value=ast.Name(id=module), attr=attribute) if (
                module,
                attribute,
            ) in FORBIDDEN_ATTRIBUTES:
                yield f"line {node.lineno}: {module}.{attribute} ({FORBIDDEN_ATTRIBUTES[module, attribute]})"
            case ast.keyword(arg="shell", value=ast.Constant(value=True)):
                yield f"line {node.lineno}: shell=True"
            case ast.keyword(arg="trust_remote_code" | "allow_pickle") | ast.arg(arg="trust_remote_code"):
                yield f"line {node.lineno}: {node.arg}, whatever its value"
            case _:
                pass


@pytest.mark.parametrize("path", SOURCES, ids=source_id)
def test_no_source_can_run_what_it_reads(path: Path) -> None:
    assert list(forbidden_uses(parse(path))) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "def f():\n    import dill",
        "eval(text)",
        "from torch import load",
        "from yaml import unsafe_load as load",
        "yaml.full_load(text)",
        "import builtins\nbuiltins.exec(text)",
        "model(name, trust_remote_code=settings.trust)",
        "def model(name, trust_remote_code=False):\n    return name",
        "torch.load(path)",
        "np.load(path, allow_pickle=True)",
        "subprocess.run(text, shell=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
    ],
)
def test_the_check_sees_what_it_is_there_to_see(code: str) -> None:
    assert list(forbidden_uses(ast.parse(code)))


def test_the_check_leaves_torch_compile_and_methods_named_eval_alone() -> None:
    assert not list(forbidden_uses(ast.parse("torch.compile(model); model.eval(); re.compile('a')")))


def narrows_a_type(node: ast.Assert) -> bool:
    """`assert self._daemon is not None` tells the type checker about our own state; it checks no input."""
    match node.test:
        case ast.Compare(left=ast.Name() | ast.Attribute(), ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return node.msg is None
        case _:
            return False


@pytest.mark.parametrize("path", SOURCES, ids=source_id)
def test_no_source_checks_its_input_with_assert(path: Path) -> None:
    # `python -O` removes asserts; an error that a caller or a peer can cause needs an exception with a message
    asserts = [node for node in ast.walk(parse(path)) if isinstance(node, ast.Assert)]
    assert [node.lineno for node in asserts if not narrows_a_type(node)] == []


# ---- small files, future annotations


@pytest.mark.parametrize("path", SOURCES, ids=source_id)
def test_every_module_postpones_annotations_and_says_what_it_is(path: Path) -> None:
    tree = parse(path)
    if not tree.body:
        return  # an empty __init__.py only marks its folder
    assert ast.get_docstring(tree), "a module begins with what it is"
    declares = any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for node in ast.walk(tree))
    assert "__future__" in imported_at_load(tree.body) or not declares


@pytest.mark.parametrize("path", SOURCES, ids=source_id)
def test_no_function_outgrows_a_screen(path: Path) -> None:
    functions = (node for node in ast.walk(parse(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    long = {node.name: node.end_lineno - node.lineno + 1 for node in functions if node.end_lineno}
    assert {name: lines for name, lines in long.items() if lines > 80} == {}
