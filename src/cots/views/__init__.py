"""From an image to the stack of views that every adapter starts from: view 0 weak, the others strong."""

from ._plan import MixPlan, ViewPlan, draw_plan
from ._read import MAX_PIXELS, image_size, read_image
from ._seeds import image_seed, sample_seed
from ._settings import CLIP_MEAN, CLIP_STD, ViewSettings
from ._views import make_views, render_views

__all__ = [
    "CLIP_MEAN",
    "CLIP_STD",
    "MAX_PIXELS",
    "MixPlan",
    "ViewPlan",
    "ViewSettings",
    "draw_plan",
    "image_seed",
    "image_size",
    "make_views",
    "read_image",
    "render_views",
    "sample_seed",
]
