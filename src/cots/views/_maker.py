"""From an image to its views: read, draw a plan, prepare on the host, render with PIL or on a GPU."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from PIL import Image
from torch import Tensor

from .._errors import InputError, one_of
from .._kernels import available
from ._gpu import Prepared, gpu_renderer, prepare
from ._pil import render_views
from ._plan import ViewSettings, draw_plan
from ._read import read_image

Item = TypeVar("Item")
Result = TypeVar("Result")

RENDERERS = ("auto", "pil", "gpu")

# Larger photos take more memory than their views, in transfer and on the device, so PIL renders them.
_MAX_SENT_PIXELS = 2**24
# More threads mostly wait for the interpreter's lock.
_THREADS = 4
_AHEAD = 2  # finished items per thread that may wait for the consumer


def choose_renderer(name: str, device: torch.device) -> str:
    """ "pil" or "gpu"; "auto" means "gpu" on a GPU that runs the kernels."""
    one_of("renderer", name, RENDERERS)
    # The driver of a cluster chooses for the GPUs of its workers, without using one itself.
    gpu = device.type == "cuda" and (not torch.cuda.is_initialized() or available(device))
    if name == "gpu" and not gpu:
        raise InputError(
            f"renderer='gpu' needs Triton and an NVIDIA GPU of compute capability 8.0 or higher, not {str(device)!r}. "
            "Use 'pil' or 'auto'."
        )
    return ("gpu" if gpu else "pil") if name == "auto" else name


@dataclass(frozen=True)
class ViewMaker:
    """Makes views in two steps: `prepare` one image on the host, `render` a batch on the device.

    renderer: "pil" (host), "gpu" (Triton kernels on `device`) or "auto" (the GPU if it runs the kernels); both give the
    same pixels. threads: for drawing the views of one image with PIL. A ViewMaker can be pickled, and `prepare` can run
    in any thread or process.

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

    def prepare(self, image: Image.Image, seed: int) -> Prepared | Tensor:
        """The host step for an RGB image from `read_image`: its views (V,3,H,W), or the input of the GPU renderer."""
        plan = draw_plan((image.height, image.width), self.settings, seed)
        if self.renderer == "pil":
            return render_views(image, plan, self.settings, self.threads)
        # Worker processes have no CUDA context and must not create one, not even for pinned memory.
        pin = self.device.type == "cuda" and torch.cuda.is_initialized()
        if image.width * image.height > _MAX_SENT_PIXELS:
            views = render_views(image, plan, self.settings)
            return views.pin_memory() if pin else views
        return prepare(image, plan, self.settings, pin=pin)

    def render(self, prepared: Sequence[Prepared | Tensor]) -> Tensor:
        """The device step: the views (B,V,3,H,W) of prepared images. It does not wait for the device."""
        if self.renderer == "pil":
            views = [item for item in prepared if isinstance(item, Tensor)]
            return views[0][None] if len(views) == 1 else torch.stack(views)  # the former copies nothing
        sent = [item for item in prepared if isinstance(item, Prepared)]
        rendered = gpu_renderer(self.settings, self.device).render(sent)
        if len(sent) == len(prepared):
            return rendered
        rest = iter(rendered)
        return torch.stack(
            [item.to(self.device, non_blocking=True) if isinstance(item, Tensor) else next(rest) for item in prepared]
        )


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
