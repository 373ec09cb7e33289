"""Where in a completion the answer stands. No regular expressions: every scan is linear."""


def tagged(text: str, tag: str) -> str | None:
    """The stripped text between `<tag>` and `</tag>`, or None unless each occurs exactly once, in this order.

    A completion that gives several answers, or one inside another, has given none.

    >>> tagged("so <answer> 4 </answer>", "answer")
    '4'
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    if text.count(opening) != 1 or text.count(closing) != 1:
        return None
    _, _, rest = text.partition(opening)
    inside, found, _ = rest.partition(closing)
    return inside.strip() if found else None


def code_of(text: str) -> str:
    r"""The last complete fenced block of a Markdown text; the whole text where there is none.

    >>> code_of("Here it is:\n```python\nx = 1\n```\nDone.")
    'x = 1'
    """
    block: list[str] | None = None
    last: list[str] | None = None
    for line in text.splitlines():
        if not line.lstrip().startswith("```"):
            if block is not None:
                block.append(line)
        elif block is None:
            block = []
        else:
            last, block = block, None
    return text if last is None else "\n".join(last)


def check_tag(reward: object, tag: str | None) -> None:
    """Raise unless a tag is a plain word, or None."""
    if tag is not None and not tag.isidentifier():
        raise ValueError(f"{reward}: tag is a word such as 'answer', without brackets")
