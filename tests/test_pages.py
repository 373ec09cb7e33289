"""The Python blocks of the pages that say so run as they stand."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import grpolib

DOCS = Path(__file__).parent.parent / "docs"
SOURCES = Path(grpolib.__file__).parents[1]
INHERITED = ["ADAM", "OptimizerFactory", "Pieces", "Recipe", "check_pieces", "rows_to_compile"]
"""What `recipes` passes on for the library's own use."""
PAGES = [
    "deployment.md",
    "faq.md",
    "migration.md",
    "spaces.md",
    "tutorial-environment.md",
    "tutorial-estimator.md",
    "tutorial-policy.md",
]


def blocks_of(page):
    text = (DOCS / page).read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


# The blocks of these continue each other.
CHAINED = [page for page in PAGES if page.startswith(("tutorial", "spaces"))]
BLOCKS = [(page, number, code) for page in PAGES if page not in CHAINED for number, code in enumerate(blocks_of(page))]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_blocks_and_says_that_they_run(page):
    assert blocks_of(page)
    assert "runs as it stands" in " ".join((DOCS / page).read_text().split())


@pytest.mark.parametrize(("page", "number", "code"), BLOCKS, ids=[f"{page}-{number}" for page, number, _ in BLOCKS])
def test_a_block_runs(page, number, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, f"{page}, block {number}", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", CHAINED)
def test_a_tutorial_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for number, code in enumerate(blocks_of(page)):
        exec(compile(code, f"{page}, block {number}", "exec"), namespace)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (DOCS / page).read_text())
    assert all((DOCS / link).exists() for link in links), links


REFERENCE = re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text(), flags=re.MULTILINE)


def public_names():
    """Every name that a module offers, as the reference writes it."""
    for module in ("grpolib", "grpolib.functional", "grpolib.recipes", "grpolib.text", "grpolib.text.rewards"):
        source = (SOURCES / module.replace(".", "/")).with_suffix(".py")
        source = source if source.exists() else source.with_suffix("") / "__init__.py"
        offered = re.findall(
            r"import \w+ as (\w+)|^    (\w+) as \w+,|^def ([a-z]\w+)", source.read_text(), re.MULTILINE
        )
        yield from (f"{module}.{name}" for names in offered for name in names if name)


def test_the_reference_has_every_public_name_once():
    assert len(REFERENCE) == len(set(REFERENCE))
    not_pieces = {"grpolib.functional", "grpolib.recipes"}
    imported_to_be_here = {f"grpolib.recipes.{name}" for name in INHERITED}
    assert set(public_names()) - not_pieces - imported_to_be_here == set(REFERENCE)


@pytest.mark.parametrize("name", REFERENCE)
def test_what_the_reference_shows_has_a_docstring(name):
    module, _, attribute = name.rpartition(".")
    assert inspect.getdoc(getattr(importlib.import_module(module), attribute))


MENTIONED = {
    page.name: found
    for page in sorted(DOCS.glob("*.md"))
    if (found := re.findall(r"(tests/[\w/]+\.py)::(\w+)", page.read_text()))
}


@pytest.mark.parametrize("page", MENTIONED)
def test_every_test_that_a_page_names_exists(page):
    for path, name in MENTIONED[page]:
        assert re.search(rf"^def {name}\(", (DOCS.parent / path).read_text(), re.MULTILINE), f"{path}::{name}"


def test_every_fault_has_one_row_and_a_test():
    rows = re.findall(r"^\| F(\d+) \|.*`tests/.*::test_\w+` \|$", (DOCS / "faults.md").read_text(), re.MULTILINE)
    assert [int(number) for number in rows] == list(range(1, 40))


@pytest.mark.parametrize("page", [*sorted(DOCS.glob("*.md")), *sorted(DOCS.parent.glob("*.md"))], ids=lambda p: p.name)
def test_commands_quote_their_brackets(page):
    # Unquoted, zsh takes the brackets for a pattern.
    commands = re.findall(r"pip install ([^`\n]*\[[^`\n]*)", page.read_text())
    assert all(re.search(r"""["'][^"']*\[""", command) for command in commands), commands


def test_every_page_is_on_the_site():
    pages = set(re.findall(r"(\S+\.md)$", (DOCS.parent / "mkdocs.yml").read_text(), flags=re.MULTILINE))
    assert pages == {path.name for path in DOCS.glob("*.md")} | {"results/*.md"}
