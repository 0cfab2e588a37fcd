"""Pages of the files that lie beside docs/ in the source tree, from their one text.

Links in them lead on as they do there. A file that is not there has no page.
"""

import re
from pathlib import Path
from typing import Any

from op_pages import replace
from sphinx.application import Sphinx

_PAGES = ("CONTRIBUTING.md", "MAINTAINING.md", "CHANGELOG.md", "SECURITY.md")
_CITATION = "CITATION.cff"


def write(app: Sphinx) -> None:
    docs = Path(app.srcdir)
    folder = docs / "project" / "generated"
    folder.mkdir(parents=True, exist_ok=True)
    root = docs.parent
    for name in _PAGES:
        if (file := root / name).exists():
            text = _led_on(file.read_text(encoding="utf-8"), root)
            replace(folder / f"{file.stem.lower()}.md", text)
    if (file := root / _CITATION).exists():
        replace(folder / "citation.md", _citation(file.read_text(encoding="utf-8")))


def _led_on(text: str, root: Path) -> str:
    """Links to files of the tree from three folders further in, to a folder by its page."""

    def led(link: re.Match[str]) -> str:
        label, target, place = link[1], link[2], link[3] or ""
        if target in _PAGES:
            return f"[{label}]({target.lower()}{place})"
        if (root / target / "index.md").exists():
            target = f"{target}/index.md"
        if not (root / target).exists():
            return link[0]
        if target.endswith(".md") and not target.startswith("docs/"):
            return label  # the site has no page of it
        return f"[{label}](../../../{target}{place})"

    return re.sub(r"\[([^\]]+)\]\(([^)#:\s]+)(#[^)\s]*)?\)", led, text)


def _citation(text: str) -> str:
    return (
        "# Citing fastact\n\nThe file `CITATION.cff` of the source tree, which reference managers "
        f"and GitHub read:\n\n```yaml\n{text.strip()}\n```\n"
    )


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}
