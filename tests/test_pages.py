"""The Python blocks of the pages that say so run as they stand."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
PAGES = ["deployment.md", "faq.md", "migration.md"]


def blocks_of(page):
    text = (DOCS / page).read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


BLOCKS = [(page, number, code) for page in PAGES for number, code in enumerate(blocks_of(page))]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_blocks_and_says_that_they_run(page):
    assert blocks_of(page)
    assert "runs as it stands" in " ".join((DOCS / page).read_text().split())


@pytest.mark.parametrize(("page", "number", "code"), BLOCKS, ids=[f"{page}-{number}" for page, number, _ in BLOCKS])
def test_a_block_runs(page, number, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, f"{page}, block {number}", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (DOCS / page).read_text())
    assert all((DOCS / link).exists() for link in links), links
