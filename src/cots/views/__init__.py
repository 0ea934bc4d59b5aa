"""From an image to its stack of views, the input of every adapter: view 0 is weak, the others are strong."""

from ._corrupt import CORRUPTIONS, corrupt, parse_corruption
from ._maker import (
    RENDERERS,
    Renderer,
    ViewMaker,
    ViewSource,
    WeakGeometry,
    choose_renderer,
    make_views,
    render_views,
    weak_geometry,
    weak_view,
)
from ._plan import CHAINS, MAX_DEPTH, MixPlan, ViewPlan, ViewSettings, draw_plan, image_seed, sample_seed
from ._read import FORMATS, MAX_PIXELS, LargeImage, check_image, read_image

__all__ = [
    "CHAINS", "CORRUPTIONS", "FORMATS", "MAX_DEPTH", "MAX_PIXELS", "RENDERERS", "LargeImage", "MixPlan", "Renderer",
    "ViewMaker", "ViewPlan", "ViewSettings", "ViewSource", "WeakGeometry", "check_image", "choose_renderer", "corrupt",
    "draw_plan", "image_seed", "make_views", "parse_corruption", "read_image", "render_views", "sample_seed",
    "weak_geometry", "weak_view",
]  # fmt: skip
