"""What the site needs beyond the pages: links that leave the folder become the names of their files."""

import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)]+\)")
"""`[text](../src/...)`: such a file is in the repository and not on the site."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Keep the text of a link that leads out of the documentation."""
    return OUTSIDE.sub(r"\1", markdown)
