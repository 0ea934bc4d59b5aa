# type: ignore  (Triton's own language, not Python)
"""PIL's resize and the operations of AugMix as Triton kernels, launched by `views`.

Arguments that change from image to image are not specialised, because Triton would compile every new combination.
Compile without fused multiply-add: PIL rounds after each step, and the last bit decides where it truncates.
"""

import triton
import triton.language as tl


@triton.jit
def _filter(boxes_ptr, axis, crop, crops, pixel, size):
    """Triangle filter per output pixel of one axis: low, high, centre, reach, total, start, last, taps.

    Source pixels in [low, high), relative to the box's start, have weight; last is the box's last pixel. boxes
    (3,2,crops): start, length and flip, down and across.
    """
    start = tl.load(boxes_ptr + axis * crops + crop)
    length = tl.load(boxes_ptr + (2 + axis) * crops + crop)
    flip = tl.load(boxes_ptr + (4 + axis) * crops + crop)
    pixel = tl.where(flip > 0, size - 1 - pixel, pixel).to(tl.float64)
    scale = length / size.to(tl.float64)
    reach = tl.maximum(scale, 1.0)
    centre = (pixel + 0.5) * scale
    low = tl.maximum(tl.floor(centre - reach + 0.5), 0.0)
    high = tl.minimum(tl.floor(centre + reach + 0.5), length)
    taps = tl.ceil(2 * reach).to(tl.int32)
    total = tl.zeros_like(centre)
    for tap in range(taps):
        total += _share(low + tap, high, centre, reach)
    return low, high, centre, reach, tl.where(total > 0, total, 1.0), start, length - 1, taps


@triton.jit
def _share(place, high, centre, reach):
    share = 1 - tl.abs((place - centre + 0.5) * (1 / reach))
    return tl.where(place < high, tl.maximum(share, 0.0), 0.0)


@triton.jit
def _weight(place, high, centre, reach, total):
    """The weight of a source pixel in PIL's fixed-point format with 22 fractional bits."""
    return (_share(place, high, centre, reach) / total * 4194304.0 + 0.5).to(tl.int32)


@triton.jit(do_not_specialize=["begin", "crops", "strong"])
def resize_first(
    data_ptr, starts_ptr, widths_ptr, middle_ptr, boxes_ptr, axes_ptr, lines_ptr, before_ptr, begin, crops, strong,
    height_out, width_out, LINES: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Crops from `begin` on, each resized along axes[crop] (0 down, 1 across): middle (3, lines[crop], SIDE) of each.

    Crop c is of image c // strong, (height, widths, 3), whose pixels begin at `starts` in data. Lines are perpendicular
    to the resized axis; before[c] is the number of lines of all crops before c.
    """
    crop = begin + tl.program_id(1)
    count = tl.load(lines_ptr + crop).to(tl.int32)
    if tl.program_id(0) * LINES >= count:
        return
    axis = tl.load(axes_ptr + crop).to(tl.int32)
    width = tl.load(widths_ptr + crop // strong)
    x = tl.arange(0, SIDE)
    size = tl.where(axis == 1, width_out, height_out)
    low, high, centre, reach, total, start, last, taps = _filter(boxes_ptr, axis, crop, crops, x, size)
    line = tl.program_id(0) * LINES + tl.arange(0, LINES)
    first = tl.load(boxes_ptr + (1 - axis) * crops + crop).to(tl.int64)
    along = tl.where(axis == 1, 1, width) * 3
    step = tl.where(axis == 1, width, 1) * 3
    there = (line < count)[:, None] & (x < size)[None, :]
    source = data_ptr + tl.load(starts_ptr + crop // strong) + ((first + line) * step)[:, None]
    red = tl.full((LINES, SIDE), 1 << 21, tl.int32)
    green = tl.full((LINES, SIDE), 1 << 21, tl.int32)
    blue = tl.full((LINES, SIDE), 1 << 21, tl.int32)
    for tap in range(taps):
        place = low + tap
        weight = _weight(place, high, centre, reach, total)[None, :]
        at = source + ((tl.minimum(place, last) + start).to(tl.int64) * along)[None, :]
        red += tl.load(at, mask=there, other=0).to(tl.int32) * weight
        green += tl.load(at + 1, mask=there, other=0).to(tl.int32) * weight
        blue += tl.load(at + 2, mask=there, other=0).to(tl.int32) * weight
    plane = count.to(tl.int64) * SIDE
    lines_before = tl.load(before_ptr + crop) - tl.load(before_ptr + begin)
    out = middle_ptr + lines_before * 3 * SIDE + (line.to(tl.int64) * SIDE)[:, None] + x[None, :]
    tl.store(out, (red >> 22).to(tl.uint8), mask=there)
    tl.store(out + plane, (green >> 22).to(tl.uint8), mask=there)
    tl.store(out + 2 * plane, (blue >> 22).to(tl.uint8), mask=there)


@triton.jit(do_not_specialize=["begin", "crops", "strong"])
def resize_second(
    middle_ptr, levels_ptr, out_ptr, boxes_ptr, axes_ptr, lines_ptr, before_ptr, begin, crops, strong,
    height_out, width_out, ROWS: tl.constexpr, SIDE: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """The other axis: out (crops, 3, height, width) as bytes or, if SCALED, as their entries in `levels` (3,256).

    Then, out is (images, 1 + strong, 3, height, width), with the crops of each image after its weak view.
    """
    crop = begin + tl.program_id(1)
    axis = 1 - tl.load(axes_ptr + crop).to(tl.int32)
    size = tl.where(axis == 0, height_out, width_out)
    if tl.program_id(0) * ROWS >= size:
        return
    y = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    x = tl.arange(0, SIDE)
    low, high, centre, reach, total, _start, last, taps = _filter(boxes_ptr, axis, crop, crops, y, size)
    there = (y < size)[:, None] & (x < tl.where(axis == 0, width_out, height_out))[None, :]
    plane = tl.load(lines_ptr + crop) * SIDE
    lines_before = tl.load(before_ptr + crop) - tl.load(before_ptr + begin)
    source = middle_ptr + lines_before * 3 * SIDE + x[None, :]
    red = tl.full((ROWS, SIDE), 1 << 21, tl.int32)
    green = tl.full((ROWS, SIDE), 1 << 21, tl.int32)
    blue = tl.full((ROWS, SIDE), 1 << 21, tl.int32)
    for tap in range(taps):
        place = low + tap
        weight = _weight(place, high, centre, reach, total)[:, None]
        at = source + (tl.minimum(place, last).to(tl.int64) * SIDE)[:, None]
        red += tl.load(at, mask=there, other=0).to(tl.int32) * weight
        green += tl.load(at + plane, mask=there, other=0).to(tl.int32) * weight
        blue += tl.load(at + 2 * plane, mask=there, other=0).to(tl.int32) * weight
    red, green, blue = red >> 22, green >> 22, blue >> 22
    plane = height_out * width_out
    at = y[:, None] * tl.where(axis == 0, width_out, 1) + x[None, :] * tl.where(axis == 0, 1, width_out)
    if SCALED:
        out = out_ptr + (crop + crop // strong + 1).to(tl.int64) * 3 * plane + at
        tl.store(out, tl.load(levels_ptr + red, mask=there, other=0.0), mask=there)
        tl.store(out + plane, tl.load(levels_ptr + 256 + green, mask=there, other=0.0), mask=there)
        tl.store(out + 2 * plane, tl.load(levels_ptr + 512 + blue, mask=there, other=0.0), mask=there)
    else:
        out = out_ptr + crop.to(tl.int64) * 3 * plane + at
        tl.store(out, red.to(tl.uint8), mask=there)
        tl.store(out + plane, green.to(tl.uint8), mask=there)
        tl.store(out + 2 * plane, blue.to(tl.uint8), mask=there)


@triton.jit
def _rounded(total):
    """The byte for a sum of weighted bytes; the weights of the bicubic filter can be negative."""
    return tl.minimum(tl.maximum(total >> 22, 0), 255)


@triton.jit(do_not_specialize=["views"])
def resize_weak(
    data_ptr, tables_ptr, weak_ptr, levels_ptr, out_ptr, views, height_out, width_out,
    ROWS: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Weak views by the tables of `weak.WeakTables`: out (images, views, 3, height, width) [:, 0], through `levels`.

    tables is `data` as int32. weak (images,7): the fields of `views.Weak`, in their order. The first pass is computed
    anew for each tap of the second.
    """
    image = tl.program_id(1)
    weak_ptr += image * 7
    axis = tl.load(weak_ptr + 2).to(tl.int32)
    size = tl.where(axis == 1, width_out, height_out)
    count = tl.where(axis == 1, height_out, width_out)
    if tl.program_id(0) * ROWS >= count:
        return
    first_ptr = tables_ptr + tl.load(weak_ptr + 3 + 2 * axis)
    first_taps = tl.load(weak_ptr + 4 + 2 * axis).to(tl.int32)
    second_ptr = tables_ptr + tl.load(weak_ptr + 5 - 2 * axis)
    second_taps = tl.load(weak_ptr + 6 - 2 * axis).to(tl.int32)
    x = tl.arange(0, SIDE)
    line = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    on_x, on_line = x < size, line < count
    there = on_line[:, None] & on_x[None, :]
    width = tl.load(weak_ptr + 1)
    along = tl.where(axis == 1, 1, width) * 3
    step = tl.where(axis == 1, width, 1) * 3
    source = data_ptr + tl.load(weak_ptr) + (tl.load(second_ptr + line, mask=on_line, other=0) * step)[:, None]
    source += (tl.load(first_ptr + x, mask=on_x, other=0) * along)[None, :]
    base = tl.load(first_ptr + size + x, mask=on_x, other=0)[None, :] + tl.zeros((ROWS, SIDE), tl.int32)
    red = tl.load(second_ptr + count + line, mask=on_line, other=0)[:, None] + tl.zeros((ROWS, SIDE), tl.int32)
    green, blue = red, red
    for second in range(second_taps):
        second_weight = tl.load(second_ptr + (2 + second) * count + line, mask=on_line, other=0)[:, None]
        at = source + second * step
        one, two, three = base, base, base
        for first in range(first_taps):
            weight = tl.load(first_ptr + (2 + first) * size + x, mask=on_x, other=0)[None, :]
            one += tl.load(at, mask=there, other=0).to(tl.int32) * weight
            two += tl.load(at + 1, mask=there, other=0).to(tl.int32) * weight
            three += tl.load(at + 2, mask=there, other=0).to(tl.int32) * weight
            at += along
        red += _rounded(one) * second_weight
        green += _rounded(two) * second_weight
        blue += _rounded(three) * second_weight
    plane = height_out * width_out
    out = out_ptr + image.to(tl.int64) * views * 3 * plane
    out += line[:, None] * tl.where(axis == 1, width_out, 1) + x[None, :] * tl.where(axis == 1, 1, width_out)
    tl.store(out, tl.load(levels_ptr + _rounded(red), mask=there, other=0.0), mask=there)
    tl.store(out + plane, tl.load(levels_ptr + 256 + _rounded(green), mask=there, other=0.0), mask=there)
    tl.store(out + 2 * plane, tl.load(levels_ptr + 512 + _rounded(blue), mask=there, other=0.0), mask=there)


@triton.jit
def move(
    source_ptr, chains_ptr, from_ptr, to_ptr, maps_ptr, height, width, HAS_FROM: tl.constexpr, BLOCK: tl.constexpr
):
    """chains[to[i]] = source[from[i] or i], (3, height, width), sampled at maps[i] (2,3), black outside."""
    i = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    size = height * width
    there = place < size
    column = (place % width).to(tl.float64) + 0.5
    row = (place // width).to(tl.float64) + 0.5
    maps_ptr += i * 6
    x = tl.load(maps_ptr) * column + tl.load(maps_ptr + 1) * row + tl.load(maps_ptr + 2)
    y = tl.load(maps_ptr + 3) * column + tl.load(maps_ptr + 4) * row + tl.load(maps_ptr + 5)
    inside = there & (x >= 0) & (x < width) & (y >= 0) & (y < height)
    x -= 0.5
    y -= 0.5
    left, top = tl.floor(x), tl.floor(y)
    dx, dy = x - left, y - top
    x0 = tl.minimum(tl.maximum(left, 0.0), width - 1.0).to(tl.int32)
    x1 = tl.minimum(tl.maximum(left + 1.0, 0.0), width - 1.0).to(tl.int32)
    y0 = tl.minimum(tl.maximum(top, 0.0), height - 1.0).to(tl.int32) * width
    y1 = tl.minimum(tl.maximum(top + 1.0, 0.0), height - 1.0).to(tl.int32) * width
    origin = tl.load(from_ptr + i).to(tl.int64) if HAS_FROM else i.to(tl.int64)
    source = source_ptr + origin * 3 * size
    out = chains_ptr + tl.load(to_ptr + i).to(tl.int64) * 3 * size + place
    for _ in tl.static_range(3):
        a = tl.load(source + y0 + x0, mask=inside, other=0).to(tl.float64)
        b = tl.load(source + y0 + x1, mask=inside, other=0).to(tl.float64)
        c = tl.load(source + y1 + x0, mask=inside, other=0).to(tl.float64)
        d = tl.load(source + y1 + x1, mask=inside, other=0).to(tl.float64)
        upper = a + (b - a) * dx
        lower = c + (d - c) * dx
        # Outside the image, the distances are unbounded.
        value = tl.where(inside, upper + (lower - upper) * dy, 0.0)
        tl.store(out, value.to(tl.int32).to(tl.uint8), mask=there)
        source += size
        out += size


@triton.jit(do_not_specialize=["stretched"])
def tone_tables(source_ptr, from_ptr, tables_ptr, stretched, size, BLOCK: tl.constexpr):
    """tables (n,3,256) from the pixels of source[from[i]]: autocontrast for i < stretched, else equalize."""
    i = tl.program_id(0)
    channel = tl.program_id(1)
    source = source_ptr + (tl.load(from_ptr + i).to(tl.int64) * 3 + channel) * size
    level = tl.arange(0, 256)
    counts = tl.zeros((256,), tl.int32)
    for begin in range(0, size, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        counts += tl.histogram(tl.load(source + place, mask=place < size, other=0).to(tl.int32), 256)
    # Pixels past the end of the last block were counted as black.
    counts -= tl.where(level == 0, (size + BLOCK - 1) // BLOCK * BLOCK - size, 0)
    darkest = tl.min(tl.where(counts > 0, level, 255), axis=0)
    brightest = tl.max(tl.where(counts > 0, level, 0), axis=0)
    if i < stretched:
        scale = 255.0 / tl.maximum(brightest - darkest, 1).to(tl.float64)
        value = level.to(tl.float64) * scale + -darkest.to(tl.float64) * scale
        value = tl.minimum(tl.maximum(value, 0.0), 255.0).to(tl.int32)
        table = tl.where(brightest > darkest, value, level)
    else:
        last = tl.sum(tl.where(level == brightest, counts, 0), axis=0)
        step = (size - last) // 255
        value = (step // 2 + tl.cumsum(counts, axis=0) - counts) // tl.maximum(step, 1)
        table = tl.where(step > 0, tl.minimum(value, 255), level)
    tl.store(tables_ptr + (i * 3 + channel) * 256 + level, table.to(tl.uint8))


@triton.jit(do_not_specialize=["made"])
def tone(source_ptr, chains_ptr, from_ptr, to_ptr, made_ptr, given_ptr, made, size, BLOCK: tl.constexpr):
    """chains[to[i]] = source[from[i]] through its table: made (made,3,256), then given (n - made,256)."""
    i = tl.program_id(1)
    channel = tl.program_id(2)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = place < size
    source = source_ptr + (tl.load(from_ptr + i).to(tl.int64) * 3 + channel) * size
    out = chains_ptr + (tl.load(to_ptr + i).to(tl.int64) * 3 + channel) * size
    level = tl.load(source + place, mask=there, other=0).to(tl.int32)
    if i < made:
        value = tl.load(made_ptr + (i * 3 + channel) * 256 + level)
    else:
        value = tl.load(given_ptr + (i - made) * 256 + level)
    tl.store(out + place, value, mask=there)


@triton.jit(do_not_specialize=["strong"])
def mix(
    views_ptr, chains_ptr, weights_ptr, mean_ptr, std_ptr, out_ptr, size, strong, white,
    CHAINS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Normalised mixtures of views and their chains into out (images, 1 + strong, 3, size), after each weak view."""
    view = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(2)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = place < size
    weights_ptr += view * (1 + CHAINS)
    value = tl.load(views_ptr + (view * 3 + channel) * size + place, mask=there, other=0).to(tl.float32)
    value *= tl.load(weights_ptr)
    for chain in tl.static_range(CHAINS):
        at = chains_ptr + ((view * CHAINS + chain) * 3 + channel) * size + place
        value += tl.load(at, mask=there, other=0).to(tl.float32) * tl.load(weights_ptr + 1 + chain)
    # IEEE rounding, unlike Triton's plain float32 division.
    value = tl.div_rn(value, tl.zeros_like(value) + white) - tl.load(mean_ptr + channel)
    value = tl.div_rn(value, tl.zeros_like(value) + tl.load(std_ptr + channel))
    slot = view + view // strong + 1
    tl.store(out_ptr + (slot * 3 + channel) * size + place, value, mask=there)
