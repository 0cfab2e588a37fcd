"""Looks at the built site as a reader does, in a headless Chromium, and fails on what is wrong.

    pip install selenium          # and Chromium with its driver: apt install chromium-driver
    python tools/look_at_site.py docs/_build/html PICTURES

Of every page: links and images that lead nowhere, errors in the console, and content that is wider
than the window. Of some pages, narrow and wide, light and dark: a picture each in the folder
PICTURES, for a person to look at.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from urllib.parse import unquote, urlsplit

from selenium import webdriver

SIZES = {"wide": (1400, 1000), "narrow": (400, 800)}
THEMES = ("light", "dark")
SHOWN = ("index", "start", "ops/index", "ops/generated/mish", "gallery/index", "results/index")
# Pixels by which something may stick out: borders of a half.
SLACK = 1


class Links(HTMLParser):
    """What a page leads to, and where it can be led to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
            if name in ("id", "name") and value:
                self.anchors.add(value)


def broken(pages: dict[Path, Links]) -> Iterator[str]:
    """Links within the site to files and to places in them that are not there."""
    for page, links in pages.items():
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
    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.ChromeService(
        shutil.which("chromedriver")
    )  # or Selenium looks for one on the net
    return webdriver.Chrome(options=options, service=driver)


def seen(window: webdriver.Chrome, page: Path, folder: Path, root: Path) -> Iterator[str]:
    """What the browser says of a page at each size; pictures of some."""
    name = str(page.relative_to(root).with_suffix(""))
    for (size, (width, height)), theme in product(SIZES.items(), THEMES):
        if theme != THEMES[0] and name not in SHOWN:
            continue
        # The least width of a window is larger than a telephone's; of its content it is not.
        window.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        window.get(page.as_uri())
        window.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
        for entry in window.get_log("browser"):
            if entry["level"] == "SEVERE":
                yield f"{name}: {entry['message']}"
        if (over := window.execute_script("return document.body.scrollWidth") - width) > SLACK:
            yield f"{name}, {size}: {over} pixels wider than the window"
        if name in SHOWN:
            picture = folder / f"{name.replace('/', '_')}_{size}_{theme}.png"
            window.save_screenshot(str(picture))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("site", type=Path, help="folder of the built pages")
    parser.add_argument("pictures", type=Path, help="folder to write pictures to")
    given = parser.parse_args()
    root = given.site.resolve()
    given.pictures.mkdir(parents=True, exist_ok=True)
    pages = {
        page: Links(page) for page in sorted(root.rglob("*.html")) if "_static" not in page.parts
    }
    wrong = list(broken(pages))
    window = browser()
    try:
        for page in pages:
            wrong += seen(window, page, given.pictures, root)
    finally:
        window.quit()
    print(*wrong, sep="\n")
    print(f"{len(pages)} pages, {len(wrong)} faults; pictures are in {given.pictures}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
