"""The documentation: hand-written pages, and one page per system made from its docstrings, study and evidence."""

import importlib.metadata
import sys
from pathlib import Path

HERE = Path(__file__).parent
TEMPLATES = HERE.parent / "src/gnomon/study/templates"
sys.path.insert(0, str(HERE / "_ext"))

project = "gnomon"
author = "the gnomon authors"
release = importlib.metadata.version("gnomon")
extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "mathml", "systems"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_typehints = "none"  # numpydoc's parameter sections say more than the signature does
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
numpydoc_show_class_members = False
python_maximum_signature_line_length = 80

smartquotes = False  # names and options are shown as they are written

html_math_renderer = "mathml"
html_theme = "furo"
html_title = "gnomon"
html_logo = html_favicon = str(TEMPLATES / "gnomon.svg")
html_static_path = ["_static", str(TEMPLATES / "parts.css")]
html_css_files = ["parts.css", "gnomon.css"]
html_copy_source = False
html_show_copyright = False
