"""Looks at the built site as a reader does, in a headless Chromium, and fails on what is wrong.

    pip install selenium          # and Chromium with its driver: apt install chromium-driver
    python tools/look_at_site.py docs/_build/html PICTURES
    python tools/look_at_site.py docs/_build/html PICTURES --only 'index|mish'
    python tools/look_at_site.py docs/_build/html        # links alone, which needs no browser

Of every page: links within the site and images that lead nowhere, what would be loaded from the
net, errors in the console, and content that sticks out of the window, narrow and wide. Of some
pages also pictures, light and dark, in the folder PICTURES, for a person to look at. And once, that
the search finds something without a net.
"""

from __future__ import annotations

import argparse
import base64
import re
import shutil
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from selenium import webdriver

SIZES = {"wide": (1400, 1000), "middle": (820, 1100), "narrow": (390, 844)}
THEMES = ("light", "dark")
SHOWN = (
    *("index", "start", "start/torch", "ops/index", "ops/generated/mish"),
    *("ops/generated/layer_norm", "gallery/index", "gallery/plot_mish_training", "promises"),
    *("how_it_works", "moments", "results/index", "results/history", "project/stability"),
)
#: Pixels by which something may stick out: borders of a half.
SLACK = 1
#: The height of a picture; the rest of a longer page is left out.
HIGHEST = 5000
#: Seconds for an answer of the search.
PATIENCE = 20

# The script finds what sticks out of a window that does not scroll, and images that did not load.
FAULTS = """
const article = document.querySelector('.bd-article-container') || document.body;
const wide = article.getBoundingClientRect().right + arguments[0];
const scrolls = e => e !== article && e !== null
  && (getComputedStyle(e).overflowX !== 'visible' || scrolls(e.parentElement));
const out = [...article.querySelectorAll('*')]
  .filter(e => e.getBoundingClientRect().right > wide && !scrolls(e.parentElement))
  .map(e => `<${e.tagName.toLowerCase()} class="${e.getAttribute('class') || ''}"> sticks out`);
const empty = [...document.images].filter(i => i.complete && !i.naturalWidth)
  .map(i => `${i.getAttribute('src')} is no image`);
const over = document.body.scrollWidth - document.documentElement.clientWidth - arguments[0];
return [...(over > 0 ? [`it is ${over} pixels too wide`] : []), ...out.slice(0, 3), ...empty];
"""


class Links(HTMLParser):
    """The links of a page, and the places to which others can lead."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.from_afar: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
            if name in ("id", "name") and value:
                self.anchors.add(value)
            is_loaded = name == "src" or (tag, name) == ("link", "href")
            if is_loaded and value and urlsplit(value).netloc:
                self.from_afar.append(value)


def broken(pages: dict[Path, Links]) -> Iterator[str]:
    """Links in the site to files and places that are not there, and what comes from the net."""
    for page, links in pages.items():
        yield from (f"{page}: {target} is loaded from the net" for target in links.from_afar)
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if not file.exists():
                yield f"{page}: {target} is not there"
                continue
            place = unquote(parts.fragment)
            if place and file in pages and place not in pages[file].anchors:
                yield f"{page}: {target} names no place of that page"


def browser() -> webdriver.Chrome:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for word in (
        *("headless=new", "no-sandbox", "disable-gpu", "hide-scrollbars", "no-first-run"),
        *("disable-extensions", "disable-background-networking", "disable-dev-shm-usage"),
        "force-prefers-reduced-motion",
    ):
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # Selenium would look for a driver on the net.
    driver = webdriver.ChromeService(shutil.which("chromedriver"))
    return webdriver.Chrome(options=options, service=driver)


def seen(window: webdriver.Chrome, page: Path, name: str, folder: Path) -> Iterator[str]:
    """Yield what the browser says of a page at each size; take pictures of some."""
    window.get(page.as_uri())
    for (size, (width, height)), theme in product(SIZES.items(), THEMES):
        if theme != THEMES[0] and name not in SHOWN:
            continue
        # The least width of a window is larger than a telephone's; of its content it is not.
        window.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        window.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
        if theme == THEMES[0]:
            yield from (f"{size}: {fault}" for fault in window.execute_script(FAULTS, SLACK))
        if name in SHOWN:
            take(window, width, folder / f"{name.replace('/', '_')}_{size}_{theme}.png")
    for entry in window.get_log("browser"):
        if entry["level"] == "SEVERE":
            yield entry["message"]


def take(window: webdriver.Chrome, width: int, path: Path) -> None:
    """A picture of the page from its top."""
    height = window.execute_script("return document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, HIGHEST), "scale": 1}
    shot = window.execute_cdp_cmd(
        "Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True}
    )
    path.write_bytes(base64.b64decode(shot["data"]))


def searched(window: webdriver.Chrome, root: Path, word: str) -> Iterator[str]:
    """Whether the search finds the page of a word, from files alone."""
    window.get(f"{(root / 'search.html').as_uri()}?q={word}")
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        found = window.execute_script(
            "return [...document.querySelectorAll('#search-results li a')].map(a => a.href)"
        )
        if any(word in link for link in found):
            return
        time.sleep(0.2)
    yield f"search.html: it does not find {word}"


def look(pages: dict[Path, str], root: Path, folder: Path) -> Iterator[str]:
    """Pages, by their names, in a browser; what is wrong with each is said at once."""
    folder.mkdir(parents=True, exist_ok=True)
    window = browser()
    try:
        for number, (page, name) in enumerate(pages.items(), 1):
            found = [f"{name}: {fault}" for fault in seen(window, page, name, folder)]
            print(f"{number}/{len(pages)}", *(found or [name]), sep="  ", flush=True)
            yield from found
        yield from searched(window, root, "layer_norm")
    finally:
        window.quit()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("site", type=Path, help="folder of the built pages")
    parser.add_argument(
        "pictures", type=Path, nargs="?", help="folder to write pictures to; without it no browser"
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="pages whose name matches")
    given = parser.parse_args()
    root = given.site.resolve()
    pages = {
        page: Links(page) for page in sorted(root.rglob("*.html")) if "_static" not in page.parts
    }
    wrong = list(broken(pages))
    print(f"{len(pages)} pages, {sum(len(p.targets) for p in pages.values()):,} links", flush=True)
    if given.pictures:
        names = {page: str(page.relative_to(root).with_suffix("")) for page in pages}
        chosen = {page: name for page, name in names.items() if re.search(given.only, name)}
        began = time.monotonic()
        wrong += look(chosen, root, given.pictures)
        took = time.monotonic() - began
        print(f"{len(chosen)} pages seen in {took:.0f} s; pictures are in {given.pictures}")
    print(*(f"wrong: {fault}" for fault in wrong), f"{len(wrong)} faults", sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
