"""Tables in pages: what stands between two marks is what the script that the first one names writes."""

from pathlib import Path

README = Path(__file__).with_name("README.md")
END = "<!-- end -->"


def mark(origin: str) -> str:
    """The comment before a table."""
    return f"<!-- from {origin} -->"


def shown(origin: str, page: Path = README) -> str:
    """The table that a page has of a script.

    Raises:
        ValueError: it has no such mark.
    """
    _, begin, rest = page.read_text().partition(mark(origin) + "\n")
    if not begin or END not in rest:
        raise ValueError(f"{page} has no {mark(origin)} ... {END}")
    return rest[: rest.index(END)].strip()


def show(origin: str, text: str, page: Path = README) -> None:
    """Puts the text in place of the table that a page has of a script."""
    old_table, page_text = shown(origin, page), page.read_text()
    begin = page_text.index(mark(origin)) + len(mark(origin)) + 1
    end = page_text.index(END, begin)
    if old_table != text.strip():
        page.write_text(f"{page_text[:begin]}\n{text.strip()}\n\n{page_text[end:]}")
