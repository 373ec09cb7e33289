"""Modules import downwards: the order of the layers, kept by reading the imports."""

import ast
import sys
from pathlib import Path

import pytest

import grpolib

ROOT = Path(grpolib.__file__).parent

LAYERS = {
    "functional": 1,
    "batch": 2,
    "minibatch": 2,
    "policies": 3,
    "sampling": 3,
    "text": 3,
    "estimators": 4,
    "losses": 4,
    "kl_losses": 4,
    "reference": 4,
    "critic": 4,
    "algorithms": 5,
    "archive": 5,
    "callbacks": 5,
    "checkpoint": 5,
    "evaluation": 5,
    "interrupts": 5,
    "loggers": 5,
    "metrics": 5,
    "ranks": 5,
    "recipe": 5,
    "recipes": 5,
    "resume": 5,
    "sharding": 3,
    "schedules": 5,
    "stopping": 5,
    "text_recipes": 5,
    "trainer": 5,
    "fitting": 5,
    "trees": 2,
    "updates": 5,
    "writers": 5,
    "cli": 6,
    "__main__": 6,
    "": 7,  # grpolib/__init__.py: every public name
}


def sources():
    """The text of each module by its name below grpolib: "" is grpolib itself, "policies" a package's __init__."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return found


def layer(module):
    return LAYERS[module.split(".")[0]]


def runtime_nodes(tree):
    """Every node except what only a type checker sees."""
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending += node.orelse
            continue
        yield node
        pending += ast.iter_child_nodes(node)


def imported_names(source):
    """Absolute names of what a module imports while it runs: modules, or things in modules."""
    for node in runtime_nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(source, modules):
    """The library's own modules among them."""
    for name in imported_names(source):
        first, _, rest = name.partition(".")
        if first != "grpolib":
            continue
        while rest and rest not in modules:
            rest = rest.rpartition(".")[0]
        yield rest


def upward_imports(modules):
    return [
        f"grpolib.{module} (layer {layer(module)}) imports grpolib.{other} (layer {layer(other)})"
        for module, source in modules.items()
        for other in own_imports(source, modules)
        if layer(other) > layer(module)
    ]


def test_every_module_has_a_layer():
    unknown = {name.split(".")[0] for name in sources()} - LAYERS.keys()
    assert not unknown, f"give {unknown} a place among the layers"


def test_modules_import_downwards():
    assert upward_imports(sources()) == []


def test_the_rule_sees_every_way_to_import_upwards():
    plain = {"": "", "batch": "", "losses": "", "trainer": "", "policies": "", "policies.spaces": ""}
    for line in [
        "import grpolib",
        "import grpolib.trainer",
        "from grpolib import trainer",
        "from grpolib.trainer import Trainer",
        "from grpolib.policies.spaces import check",
        "def late():\n    from grpolib.losses import K1",
    ]:
        assert len(upward_imports({**plain, "batch": line})) == 1, line
    for line in [
        "import torch",
        "from grpolib import batch",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from grpolib.trainer import Trainer",
    ]:
        assert upward_imports({**plain, "batch": line}) == [], line


def test_no_module_imports_itself_in_a_circle():
    modules = sources()
    below = {name: set(own_imports(source, modules)) - {name} for name, source in modules.items()}
    finished = set()

    def visit(module, path):
        assert module not in path, " -> ".join([*path, module])
        if module not in finished:
            for other in sorted(below[module]):
                visit(other, [*path, module])
            finished.add(module)

    for module in modules:
        visit(module, [])


def test_the_equations_need_torch_alone():
    allowed = {"torch", "jaxtyping", *sys.stdlib_module_names}
    for module, source in sources().items():
        if module.split(".")[0] == "functional":
            others = {name.split(".")[0] for name in imported_names(source)} - allowed - {"grpolib"}
            assert not others, f"grpolib.{module} imports {others}"


@pytest.mark.parametrize("extra", ["matplotlib", "pandas", "scipy", "sklearn", "tensorboard", "gym", "Box2D", "tyro"])
def test_the_core_needs_no_extra(extra):
    core = {name: source for name, source in sources().items() if name.split(".")[0] != "cli"}
    users = [name for name, source in core.items() if extra in {n.split(".")[0] for n in imported_names(source)}]
    assert users == []


def test_annotations_are_values():
    # jaxtyping reads them; as strings, shapes would not be checked.
    for module, source in sources().items():
        assert "__future__.annotations" not in set(imported_names(source)), module


def test_errors_of_users_are_no_assertions():
    # `python -O` drops them.
    for module, source in sources().items():
        found = [node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]
        assert not found, f"grpolib.{module}, lines {found}"


def test_every_module_says_what_it_is():
    for module, source in sources().items():
        assert ast.get_docstring(ast.parse(source)), module
