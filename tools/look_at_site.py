"""Looks at the built site as a reader does, in a headless Chromium, and fails on what is wrong.

    pip install selenium          # and Chromium with its driver: apt install chromium-driver
    python tools/look_at_site.py docs/_build/html PICTURES
    python tools/look_at_site.py docs/_build/html PICTURES --only 'index|mish'
    python tools/look_at_site.py docs/_build/html        # links alone, which needs no browser

Of every page: links within the site and images that lead nowhere, pages that a sidebar lists twice,
what would be loaded from the net, errors in the console, and content that sticks out of the window
at three widths. Of some pages also pictures, light and dark, in the folder PICTURES, for a person
to look at. And whether the search puts the answer to each question of questions.html in front.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from html import unescape
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

if TYPE_CHECKING:
    from selenium import webdriver

SIZES = {"wide": (1400, 1000), "middle": (820, 1100), "narrow": (390, 844)}
THEMES = ("light", "dark")
SHOWN = (
    *("index", "start", "start/torch", "ops/index", "ops/generated/mish"),
    *("ops/generated/layer_norm", "gallery/index", "gallery/plot_mish_training", "promises"),
    *("how_it_works", "moments", "results/index", "results/history", "project/stability"),
)
#: Pixels by which borders may stick out; the most of a picture's height; seconds for the search.
SLACK, HIGHEST, PATIENCE = 1, 5000, 20

# The script finds what sticks out of a window that does not scroll, and images that did not load.
FAULTS = """
const article = document.querySelector('.bd-article-container') || document.body;
const wide = article.getBoundingClientRect().right + arguments[0];
const scrolls = e => e !== article && e !== null
  && (getComputedStyle(e).overflowX !== 'visible' || scrolls(e.parentElement));
const right = (e, box) => Math.max(box.right, scrolls(e) ? 0 : box.left + e.scrollWidth);
const out = [...article.querySelectorAll('*')]
  .filter(e => right(e, e.getBoundingClientRect()) > wide && !scrolls(e.parentElement))
  .map(e => `<${e.tagName.toLowerCase()} class="${e.getAttribute('class') || ''}"> sticks out`);
const empty = [...document.images].filter(i => i.complete && !i.naturalWidth)
  .map(i => `${i.getAttribute('src')} is no image`);
const over = document.body.scrollWidth - document.documentElement.clientWidth - arguments[0];
return [...(over > 0 ? [`it is ${over} pixels too wide`] : []), ...out.slice(0, 3), ...empty];
"""


class Links:
    """The links of a page, the places to which others can lead, and what its sidebar lists."""

    def __init__(self, page: Path) -> None:
        text = page.read_text(encoding="utf-8")
        found = re.findall(r'\s(?:(id|name)|href|src)="([^"]+)"', text)
        self.targets = [unescape(value) for is_place, value in found if not is_place]
        self.anchors = {unescape(value) for is_place, value in found if is_place}
        loaded = re.findall(r'(?:<link\s[^>]*href|\ssrc)="([^"]+)"', text)
        self.from_afar = [target for target in loaded if urlsplit(target).netloc]
        sidebar = text.partition('<nav class="bd-docs-nav')[2].partition("</nav>")[0]
        self.listed = re.findall('href="([^"]+)"', sidebar)


def broken(pages: dict[Path, Links]) -> Iterator[str]:
    """Links in the site to files and places that are not there, and what comes from the net."""
    for page, links in pages.items():
        yield from (f"{page}: {target} is loaded from the net" for target in links.from_afar)
        twice = {target for target in links.listed if links.listed.count(target) > 1}
        yield from (f"{page}: {target} is listed twice" for target in twice)
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
    yield from (e["message"] for e in window.get_log("browser") if e["level"] == "SEVERE")


def take(window: webdriver.Chrome, width: int, path: Path) -> None:
    """A picture of the page from its top."""
    height = window.execute_script("return document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, HIGHEST), "scale": 1}
    said = {"clip": clip, "captureBeyondViewport": True}
    shot = window.execute_cdp_cmd("Page.captureScreenshot", said)
    path.write_bytes(base64.b64decode(shot["data"]))


def indexed(root: Path, query: str) -> list[str]:
    """The pages with an index entry of these very words, which no other match outweighs."""
    index = json.loads((root / "searchindex.js").read_text(encoding="utf-8")[16:-1])
    places = index["indexentries"].get(query.lower(), [])
    return [index["docnames"][file] for file, _, is_main in places if is_main]


def searched(window: webdriver.Chrome, root: Path, query: str) -> list[str]:
    """The pages that the search of the site shows first, from files alone."""
    window.get(f"{(root / 'search.html').as_uri()}?q={quote(query)}")
    script = "return [...document.querySelectorAll('#search-results li > a')].map(a => a.pathname)"
    until = time.monotonic() + PATIENCE
    while len(paths := window.execute_script(script)) < 2 and time.monotonic() < until:
        time.sleep(0.2)
    return [Path(unquote(p)).relative_to(root).with_suffix("").as_posix() for p in paths]


def unanswered(root: Path, search: Callable[[str], list[str]]) -> Iterator[str]:
    """Yield questions of questions.html whose own page the search does not put before others."""
    page = root / "questions.html"
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    for asked, answer in re.findall(r'<dt>(.*?)</dt>.*?href="([^"]+?)\.html', text, re.DOTALL):
        for query in asked.split(", "):
            first, *_ = [*(page for page in search(query) if page != "questions"), "nothing"]
            if first != answer:
                yield f"search: {query!r} finds {first}, and not {answer}"


def look(pages: dict[Path, str], root: Path, folder: Path) -> Iterator[str]:
    """Pages, by their names, in a browser; what is wrong with each is said at once."""
    folder.mkdir(parents=True, exist_ok=True)
    window = browser()
    try:
        for number, (page, name) in enumerate(pages.items(), 1):
            found = [f"{name}: {fault}" for fault in seen(window, page, name, folder)]
            print(f"{number}/{len(pages)}", *(found or [name]), sep="  ", flush=True)
            yield from found
        yield from unanswered(root, partial(searched, window, root))
    finally:
        window.quit()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("site", type=Path, help="folder of the built pages")
    parser.add_argument("pictures", type=Path, nargs="?", help="folder for them; or no browser")
    parser.add_argument("--only", default="", metavar="REGEX", help="pages whose name matches")
    given = parser.parse_args()
    root = given.site.resolve()
    files = (page for page in sorted(root.rglob("*.html")) if "_static" not in page.parts)
    pages = {page: Links(page) for page in files}
    wrong = [*broken(pages), *unanswered(root, partial(indexed, root))]
    print(f"{len(pages)} pages, {sum(len(p.targets) for p in pages.values()):,} links", flush=True)
    if given.pictures:
        names = {page: str(page.relative_to(root).with_suffix("")) for page in pages}
        chosen = {page: name for page, name in names.items() if re.search(given.only, name)}
        wrong += look(chosen, root, given.pictures)
        print(f"{len(chosen)} pages seen; pictures are in {given.pictures}")
    print(*(f"wrong: {fault}" for fault in wrong), f"{len(wrong)} faults", sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
