"""Reports: figures and pages from finished results."""

from ._demo_page import demo_page
from ._reliability import reliability_svg

__all__ = ["demo_page", "reliability_svg"]
