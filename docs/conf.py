"""The site: `make -C docs html`, with what the extra `docs` installs."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]  # the latter for `benchmarks`

import fastact  # noqa: E402

project = "fastact"
copyright = "the fastact developers"
version = release = fastact.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "behind",
    "formulas",
    "op_pages",
    "promised",
    "top_level",
]
exclude_patterns = [
    "_build",
    "_ext",
    "gallery/*.ipynb",
    "**/GALLERY_HEADER*",
]
nitpicky = True
suppress_warnings = ["config.cache"]

autodoc_typehints = "none"
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
numpydoc_show_class_members = False

sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": "/plot_",
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "remove_config_comments": True,
    "within_subsection_order": "FileNameSortKey",
}

html_math_renderer = "mathml"  # of _ext/formulas.py
html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = "_static/scorer.js"
html_title = "fastact"
html_favicon = "_static/logo.svg"
html_context = {"default_mode": "auto"}  # the theme's script asks for it
html_theme_options = {
    "logo": {
        "text": "fastact",
        "image_light": "_static/logo.svg",
        "image_dark": "_static/logo.svg",
    },
    "show_prev_next": False,
    "header_links_before_dropdown": 9,
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
# Pages without others beside them have nothing to list.
html_sidebars = {name: [] for name in ("index", "promises")}
