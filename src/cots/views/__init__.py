"""From an image to the stack of views that every adapter starts from: view 0 weak, the others strong."""

from ._ahead import in_threads
from ._device import RENDERERS, Renderer, choose_renderer, render_views_on
from ._maker import ViewMaker
from ._plan import MixPlan, ViewPlan, draw_plan
from ._prepare import MAX_SENT_PIXELS, Prepared, prepare
from ._read import MAX_PIXELS, image_size, read_image
from ._seeds import image_seed, sample_seed
from ._settings import CLIP_MEAN, CLIP_STD, ViewSettings
from ._views import make_views, render_views

__all__ = [
    "CLIP_MEAN",
    "CLIP_STD",
    "MAX_PIXELS",
    "MAX_SENT_PIXELS",
    "RENDERERS",
    "MixPlan",
    "Prepared",
    "Renderer",
    "ViewMaker",
    "ViewPlan",
    "ViewSettings",
    "choose_renderer",
    "draw_plan",
    "image_seed",
    "image_size",
    "in_threads",
    "make_views",
    "prepare",
    "read_image",
    "render_views",
    "render_views_on",
    "sample_seed",
]
