"""From an image to its views: read it, draw a plan, and render it, with PIL or with what an accelerator has."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from PIL import Image
from torch import Tensor

from .._errors import InputError, check_one_of
from ..accelerate import accelerator
from ._plan import ViewPlan, ViewSettings, draw_plan
from ._read import read_image
from ._render import render_views

Item = TypeVar("Item")
Result = TypeVar("Result")

RENDERERS = ("auto", "pil", "gpu")
# More threads mostly wait for the interpreter's lock.
_THREADS = 4
_AHEAD = 2  # finished items per thread that may wait for the consumer


class Renderer(Protocol):
    """What draws views in two steps: one image on the host, a batch on the device."""

    def prepare(self, image: Image.Image, plan: ViewPlan) -> Any:
        """The host step, which may run in any thread or process; the result can be pickled."""

    def render(self, prepared: Sequence[Any]) -> Tensor:
        """The views (B,V,3,H,W) of prepared images, without waiting for the device."""


def choose_renderer(name: str, device: torch.device) -> str:
    """ "pil" or "gpu"; "auto" means "gpu" on a GPU that can render."""
    check_one_of("renderer", name, RENDERERS)
    if name == "pil":
        return "pil"
    if accelerator().renderer(ViewSettings(), device) is not None:
        return "gpu"
    if name == "auto":
        return "pil"
    raise InputError(
        f"renderer='gpu' needs an NVIDIA GPU of compute capability 8.0 or higher, not {str(device)!r}. Use 'pil' or "
        "'auto'."
    )


@dataclass(frozen=True)
class ViewMaker:
    """Makes views in two steps: `prepare` one image on the host, `render` a batch on the device.

    Both renderers give the same pixels. A ViewMaker can be pickled, and `prepare` can run in any thread or process.

    - settings: how many views, and how they are made
    - device: where the views are used
    - renderer: "pil" (on the host), "gpu" (on `device`) or "auto" (the GPU if it can)
    - threads: for drawing the views of one image with PIL

    >>> maker = ViewMaker(ViewSettings(n=3, size=32), torch.device("cpu"))
    >>> maker.renderer
    'pil'
    >>> maker.render([maker.prepare(Image.new("RGB", (40, 30)), seed) for seed in (0, 1)]).shape
    torch.Size([2, 3, 3, 32, 32])
    """

    settings: ViewSettings
    device: torch.device
    renderer: str = "auto"
    threads: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "renderer", choose_renderer(self.renderer, self.device))

    def prepare(self, image: Image.Image, seed: int) -> Any:
        """The host step for an RGB image from `read_image`, with views drawn from `seed`."""
        plan = draw_plan((image.height, image.width), self.settings, seed)
        if self.renderer == "gpu":
            return self._gpu.prepare(image, plan)
        return render_views(image, plan, self.settings, self.threads)

    def render(self, prepared: Sequence[Any]) -> Tensor:
        """The device step: the views (B,V,3,H,W) of prepared images. It does not wait for the device."""
        if self.renderer == "gpu":
            return self._gpu.render(prepared)
        if len(prepared) == 1:
            return prepared[0][None]  # copies nothing
        return torch.stack(list(prepared))

    @property
    def _gpu(self) -> Renderer:
        renderer = accelerator().renderer(self.settings, self.device)
        assert renderer is not None
        return renderer


def make_views(image: Any, settings: ViewSettings, seed: int) -> Tensor:
    """The views of one image (anything `read_image` takes) as a normalised float32 tensor (n,3,H,W).

    View 0 is the weak view, exactly open_clip's inference transform; views 1..n-1 are random crops and flips of the
    original image, with AugMix if `settings.augmix` is set. View i depends only on the image, `seed` and i.

    >>> make_views(Image.new("RGB", (500, 375)), ViewSettings(n=4), seed=0).shape
    torch.Size([4, 3, 224, 224])
    """
    pixels = read_image(image)
    return render_views(pixels, draw_plan((pixels.height, pixels.width), settings, seed), settings)


def in_threads(work: Callable[[Item], Result], items: Iterable[Item], threads: int | None = None) -> Generator[Result]:
    """`work(item)` for every item, in order, computed ahead in threads; an item's error is raised at its position."""
    count = threads or min(_THREADS, os.cpu_count() or 1)
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(count, thread_name_prefix="cots-views") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > _AHEAD * count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            # If the consumer stops early, drop the work that has not started.
            for future in waiting:
                future.cancel()
