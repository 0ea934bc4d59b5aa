"""Whether a photo can show anything: too few pixels, one colour, or noise. The model's score does not always say so."""

import numpy as np
from PIL import Image

FEWEST = 16  # pixels of the short side
_GRID = 32  # the image is averaged to this many pixels per side
_NO_CONTRAST = 2.0  # of 255, in every channel
_UNRELATED = 0.15  # correlation of neighbouring averages


def missing_content(image: Image.Image) -> str | None:
    """Why an RGB image shows nothing that could be recognised; None if it may.

    On the image averaged to 32 x 32: one colour, if the standard deviation of each channel is below 2 of 255; noise, if
    the mean correlation of the brightness of neighbours is below 0.15, which noise of 32 pixels or more stays below,
    also if it is enlarged from 48 or more.
    """
    if min(image.size) < FEWEST:
        return f"The image has only {image.width} x {image.height} pixels; nothing can be recognised in it."
    small = image.resize((_GRID, _GRID), Image.Resampling.BOX, reducing_gap=2.0)
    averages = np.asarray(small, dtype=np.float64).reshape(_GRID, _GRID, -1)
    grey = averages.mean(2) - averages.mean()
    power = float((grey**2).mean())
    neighbours = ((grey[:, 1:] * grey[:, :-1]).mean() + (grey[1:] * grey[:-1]).mean()) / 2
    if averages.std((0, 1)).max() < _NO_CONTRAST:
        return "The image has nearly one colour; nothing can be recognised in it."
    if power > 0 and neighbours < _UNRELATED * power:
        return "The image looks like noise; nothing can be recognised in it."
    return None
