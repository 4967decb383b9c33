"""A report as one HTML file with tables, figures and settings, which opens in a browser without a server."""

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from fljax.files import write_atomically

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; height: auto; }
figure { margin: 1.5rem 0; } figcaption { color: #555; font-size: .9rem; }
pre { background: #f5f5f5; padding: 1rem; overflow-x: auto; font-size: .85rem; }
@media (max-width: 40rem) {
  body { margin: 1rem auto; } h1 { font-size: 1.3rem; }
  table { font-size: .85rem; } th, td { padding: .3rem .45rem; }
}
"""
_CAPTIONS = {
    "learning_curves": "Learning curves: means over the seeds; with up to five methods, bands from least to largest.",
    "clients": "The last test of every client in every seed, one point each; the bar spans the quartiles, the line is "
    "the median.",
}


def page(
    title: str,
    tables: Mapping[str, tuple[Sequence[str], Sequence[Sequence[str]], Sequence[str]]],
    figures: Mapping[str, Path],
    settings: str = "",
) -> str:
    """The report's HTML, which needs no other files.

    Args:
        title: the title at the top.
        tables: heading -> (header, rows, lines under the table), all text.
        figures: caption -> PNG file, which is embedded.
        settings: the text of a config.toml.
    """
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for heading, (header, rows, notes) in tables.items():
        parts += [f"<h2>{html.escape(heading)}</h2>", _table(header, rows)]
        parts += [f"<p>{html.escape(note)}</p>" for note in notes]
    if figures:
        parts.append("<h2>Figures</h2>")
    parts += [_figure(caption, path) for caption, path in figures.items()]
    if settings:
        parts.append(f"<h2>Settings</h2>\n<pre>{html.escape(settings)}</pre>")
    body = "\n".join(parts)
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    return (
        f'<!doctype html>\n<html lang="en">\n<head>{head}<title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def save_page(path: Path, text: str) -> None:
    """Writes the page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())


def figures_of(folder: Path) -> dict[str, Path]:
    """Caption -> picture of each PNG in a folder, learning curves first."""
    paths = sorted(folder.glob("*.png"), key=lambda path: (not path.stem.startswith("learning_curves"), path.stem))
    return {_CAPTIONS.get(path.stem, path.stem.replace("_", " ")): path for path in paths}


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    lines = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def _figure(caption: str, path: Path) -> str:
    data, text = base64.b64encode(path.read_bytes()).decode(), html.escape(caption)
    return f'<figure><img alt="{text}" src="data:image/png;base64,{data}"><figcaption>{text}</figcaption></figure>'
