"""Settings of the site, which `make docs` builds. `build_pages.py` writes the pages that are made by the build."""

import os
import sys
import warnings
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS))

import build_pages  # noqa: E402

import diffclust  # noqa: E402

project = "diffclust"
author = "diffclust contributors"
copyright = "diffclust contributors"
version = release = diffclust.__version__

extensions = [
    "myst_parser",
    "sphinx_design",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.linkcode",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
highlight_language = "none"
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

autosummary_generate = True
autodoc_typehints = "none"  # the docstrings say what arguments are; shapes do not fit into annotations
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # those of Lightning and scikit-learn refer to pages of theirs
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
napoleon_use_rtype = False
toc_object_entries_show_parents = "hide"
linkcode_resolve = build_pages.source_address

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r".",
    "ignore_pattern": r"many_ranks|jax_devices",  # they start several processes; the tests run them
    "within_subsection_order": "build_pages.InReadingOrder",
    "doc_module": ("diffclust",),
    "backreferences_dir": "gallery/backreferences",
    "reference_url": {"diffclust": None},
    "remove_config_comments": True,
    "abort_on_example_error": True,
    "matplotlib_animations": False,
    "show_memory": False,
    "plot_gallery": os.environ.get("DIFFCLUST_DOCS_GALLERY", "on") == "on",
    "min_reported_time": 0,
    "show_signature": False,
    "reset_modules": ("matplotlib",),
}
warnings.filterwarnings("ignore", module="lightning")  # its advice on workers would stand in the pages

html_theme = "pydata_sphinx_theme"
html_title = f"diffclust {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["live"]
html_show_sourcelink = False
html_sidebars = {page: [] for page in ("index", "start", "how-it-works", "limits")}  # they have no pages below them
html_theme_options = {
    "logo": {"text": "diffclust"},  # with the version it would run into the search button of a phone
    "github_url": build_pages.REPOSITORY,
    "header_links_before_dropdown": 8,
    "navbar_persistent": ["search-button"],
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "use_edit_page_button": False,
}
if "DIFFCLUST_DOCS_URL" in os.environ:  # where the folders of all versions lie, beside switcher.json
    html_theme_options["switcher"] = {
        "json_url": os.environ["DIFFCLUST_DOCS_URL"].rstrip("/") + "/switcher.json",
        "version_match": os.environ.get("DIFFCLUST_DOCS_VERSION", "dev"),
    }
    html_theme_options["check_switcher"] = False
    html_theme_options["navbar_end"] = ["version-switcher", "theme-switcher", "navbar-icon-links"]

# Before Sphinx looks for documents and for the folder of html_extra_path.
build_pages.write_all(DOCS)


def setup(app):
    """Sphinx calls it with the application."""
    app.connect("source-read", build_pages.rewrite_links)
    app.connect("autodoc-process-docstring", build_pages.escape_bars)
    app.connect("autodoc-skip-member", build_pages.skip_member)
