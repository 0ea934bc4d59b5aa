# type: ignore  (Triton's own language, not Python)
"""Both solvers of Eq. (5) as Triton kernels; calibrators/_solver.py has the equations.

The exact solver is four kernels, in float64: `roots`, `losses_on_grid`, `zeros_of_slope`, `losses`. Their constants are
exact in float32, in which Triton may hold them.
"""

import triton
import triton.language as tl


@triton.jit
def adam(
    beyond_ptr, runner_up_ptr, top_ptr, miss_ptr, tau_ptr, views, classes, steps, lr, start,
    VIEWS: tl.constexpr, CLASSES: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """All Adam steps on the log temperature of one sample, in float32."""
    sample = tl.program_id(0).to(tl.int64)
    v = tl.arange(0, VIEWS)
    real = v < views
    runner_up = tl.load(runner_up_ptr + sample * views + v, mask=real, other=0.0)
    target_top = tl.load(top_ptr + sample * views + v, mask=real, other=0.0)
    target_miss = tl.load(miss_ptr + sample * views + v, mask=real, other=0.0)
    row = beyond_ptr + (sample * views + v)[:, None] * classes
    k = tl.arange(0, CLASSES)
    if WHOLE:  # one tile has all classes and stays in registers
        d = tl.load(row + k[None, :], mask=real[:, None] & (k[None, :] < classes), other=3.0e38)
    theta = start
    first, second, power1, power2 = 0.0, 0.0, 1.0, 1.0
    for _ in range(steps):
        tau = tl.exp(theta)
        if WHOLE:
            weight = tl.exp(-d / tau)
            total = tl.sum(weight, axis=1)
            weighted = tl.sum(weight * d, axis=1)
        else:
            total = tl.zeros((VIEWS,), tl.float32)
            weighted = tl.zeros((VIEWS,), tl.float32)
            for begin in range(0, classes, CLASSES):
                there = real[:, None] & (begin + k[None, :] < classes)
                part = tl.load(row + begin + k[None, :], mask=there, other=3.0e38)
                share = tl.exp(-part / tau)
                total += tl.sum(share, axis=1)
                weighted += tl.sum(share * part, axis=1)
        total = tl.where(real, total, 1.0)
        gap = runner_up + weighted / total
        odds = total * tl.exp(-runner_up / tau)
        top = 1.0 / (1.0 + odds)
        miss = odds * top
        residual = tl.where(target_top > 0.5, target_miss - miss, top - target_top)
        slopes = tl.where(real, -2.0 * residual * top * miss * (gap / tau), 0.0)
        slope = tl.sum(slopes, axis=0) / views
        power1 *= 0.9
        power2 *= 0.999
        first = first * 0.9 + slope * 0.1
        second = second * 0.999 + slope * slope * 0.001
        scale = tl.sqrt(second) / tl.sqrt(1.0 - power2) + 1e-8
        theta -= first / scale * (lr / (1.0 - power1))
        theta = tl.minimum(tl.maximum(theta, -30.0), 30.0)
    tl.store(tau_ptr + sample, tl.exp(theta))


@triton.jit
def _top(z_ptr, classes, k, CLASSES: tl.constexpr):
    """The largest logit of a view, its place, and the gap of the runner-up."""
    best = tl.sum(tl.zeros_like(k).to(tl.float64), axis=0) - float("inf")
    place = classes
    for begin in range(0, classes, CLASSES):
        z = tl.load(z_ptr + begin + k, mask=begin + k < classes, other=-float("inf")).to(tl.float64)
        highest = tl.max(z, axis=0)
        place = tl.where(highest > best, begin + tl.argmax(z, axis=0), place)
        best = tl.maximum(best, highest)
    runner_up = best * 0.0 + 1.0e300
    for begin in range(0, classes, CLASSES):
        z = tl.load(z_ptr + begin + k, mask=begin + k < classes, other=-float("inf")).to(tl.float64)
        gap = tl.where(begin + k == place, 1.0e300, best - z)
        runner_up = tl.minimum(runner_up, tl.min(gap, axis=0))
    return best, place, runner_up


@triton.jit
def _confidence(tau, z_ptr, best, place, runner_up, classes, k, CLASSES: tl.constexpr):
    """p and 1 - p of one view at tau."""
    total = best * 0.0
    for begin in range(0, classes, CLASSES):
        there = (begin + k < classes) & (begin + k != place)
        z = tl.load(z_ptr + begin + k, mask=there, other=0.0).to(tl.float64)
        total += tl.sum(tl.where(there, tl.exp(-(best - z - runner_up) / tau), 0.0), axis=0)
    odds = total * tl.exp(-runner_up / tau)
    top = 1.0 / (1.0 + odds)
    return top, odds * top


@triton.jit
def roots(
    adapted_ptr, zero_shot_ptr, beyond_ptr, curve_ptr, tau_ptr, views, classes, candidates,
    BITS: tl.constexpr, CLASSES: tl.constexpr,
):  # fmt: skip
    """Of one view: the gaps beyond the runner-up (classes,), and runner-up, c, 1 - c and root (4,); tau at the root."""
    view = tl.program_id(0).to(tl.int64)
    z_ptr = adapted_ptr + view * classes
    target_ptr = zero_shot_ptr + view * classes
    k = tl.arange(0, CLASSES)
    best, place, runner_up = _top(target_ptr, classes, k, CLASSES)
    target_top, target_miss = _confidence(best * 0.0 + 1.0, target_ptr, best, place, runner_up, classes, k, CLASSES)
    best, place, runner_up = _top(z_ptr, classes, k, CLASSES)
    for begin in range(0, classes, CLASSES):
        there = begin + k < classes
        z = tl.load(z_ptr + begin + k, mask=there, other=0.0).to(tl.float64)
        beyond = tl.where(begin + k == place, 1.0e300, best - z - runner_up)
        tl.store(beyond_ptr + view * classes + begin + k, beyond, mask=there)

    zero = best * 0.0
    top, miss = _confidence(zero + 1.0, z_ptr, best, place, runner_up, classes, k, CLASSES)
    residual = _residual(top, miss, target_top, target_miss)
    sign = tl.where(residual > 0.0, zero + 1.0, tl.where(residual < 0.0, zero - 1.0, zero))
    low, high = zero, 12.0 * sign
    top, miss = _confidence(tl.exp(high), z_ptr, best, place, runner_up, classes, k, CLASSES)
    limit = tl.maximum(_residual(top, miss, target_top, target_miss) * sign, 0.0)
    for _ in range(BITS):
        middle = low + (high - low) * 0.5
        top, miss = _confidence(tl.exp(middle), z_ptr, best, place, runner_up, classes, k, CLASSES)
        reached = _residual(top, miss, target_top, target_miss) * sign <= limit
        low = tl.where(reached, low, middle)
        high = tl.where(reached, middle, high)
    curve_ptr += view * 4
    tl.store(curve_ptr, runner_up)
    tl.store(curve_ptr + 1, target_top)
    tl.store(curve_ptr + 2, target_miss)
    tl.store(curve_ptr + 3, high)
    own = view // views * candidates + candidates - views + view % views
    tl.store(tau_ptr + own, tl.exp(high).to(tau_ptr.dtype.element_ty))


@triton.jit
def _residual(top, miss, target_top, target_miss):
    return tl.where(target_top > 0.5, target_miss - miss, top - target_top)


@triton.jit
def _at(tau, sample, beyond_ptr, curve_ptr, views, classes, VIEWS: tl.constexpr, CLASSES: tl.constexpr):
    """Sums over the views of a sample at one tau: the loss, and half its slope."""
    v = tl.arange(0, VIEWS)
    real = v < views
    curve_ptr += (sample * views + v) * 4
    runner_up = tl.load(curve_ptr, mask=real, other=0.0)
    target_top = tl.load(curve_ptr + 1, mask=real, other=0.0)
    target_miss = tl.load(curve_ptr + 2, mask=real, other=0.0)
    row = beyond_ptr + (sample * views + v)[:, None] * classes
    k = tl.arange(0, CLASSES)
    total = tl.zeros_like(runner_up)
    weighted = tl.zeros_like(runner_up)
    for begin in range(0, classes, CLASSES):
        there = real[:, None] & (begin + k[None, :] < classes)
        d = tl.load(row + begin + k[None, :], mask=there, other=1.0e300)
        weight = tl.exp(-d / tau)
        total += tl.sum(weight, axis=1)
        weighted += tl.sum(weight * d, axis=1)
    total = tl.where(real, total, 1.0)
    odds = total * tl.exp(-runner_up / tau)
    top = 1.0 / (1.0 + odds)
    miss = odds * top
    residual = tl.where(real, _residual(top, miss, target_top, target_miss), 0.0)
    change = -top * miss * ((runner_up + weighted / total) / tau)
    return tl.sum(residual * residual, axis=0), tl.sum(residual * change, axis=0)


@triton.jit
def _first_and_last(sample, curve_ptr, views, VIEWS: tl.constexpr):
    """Indices of the grid's points just below the lowest root and just above the highest."""
    v = tl.arange(0, VIEWS)
    real = v < views
    theta = tl.load(curve_ptr + (sample * views + v) * 4 + 3, mask=real, other=0.0)
    lowest = tl.min(tl.where(real, theta, 12.0), axis=0)
    highest = tl.max(tl.where(real, theta, -12.0), axis=0)
    return tl.floor(lowest * 10.0) - 1.0, tl.ceil(highest * 10.0) + 1.0


@triton.jit
def _point(index):
    return tl.minimum(tl.maximum(index / 10.0, -12.0), 12.0)


@triton.jit
def losses_on_grid(
    beyond_ptr, curve_ptr, loss_ptr, views, classes, CELLS: tl.constexpr, VIEWS: tl.constexpr, CLASSES: tl.constexpr
):
    """loss (sample, CELLS) at the points of the grid, inf after its last one."""
    sample = tl.program_id(0).to(tl.int64)
    first, last = _first_and_last(sample, curve_ptr, views, VIEWS)
    index = first + tl.program_id(1)
    loss = first * 0.0 + float("inf")
    if index <= last:
        loss, _ = _at(tl.exp(_point(index)), sample, beyond_ptr, curve_ptr, views, classes, VIEWS, CLASSES)
    tl.store(loss_ptr + sample * CELLS + tl.program_id(1), loss)


@triton.jit
def _lowest(loss, theta):
    """The place of the lowest loss, and of equal ones of that nearest to theta = 0."""
    distance = tl.where(loss == tl.min(loss, axis=0), tl.abs(theta), float("inf"))
    return tl.argmin(distance, axis=0)


@triton.jit
def zeros_of_slope(
    beyond_ptr, curve_ptr, loss_ptr, tau_ptr, views, classes, candidates,
    BITS: tl.constexpr, CELLS: tl.constexpr, VIEWS: tl.constexpr, CLASSES: tl.constexpr,
):  # fmt: skip
    """tau of the best point of the grid for rank 0, and at a zero of the slope near its local minimum of that rank."""
    sample = tl.program_id(0).to(tl.int64)
    rank = tl.program_id(1)
    first, _ = _first_and_last(sample, curve_ptr, views, VIEWS)
    cell = tl.arange(0, CELLS)
    theta = _point(first + cell)
    loss_ptr += sample * CELLS + cell
    here = tl.load(loss_ptr)
    before = tl.load(loss_ptr - 1, mask=cell > 0, other=float("inf"))
    after = tl.load(loss_ptr + 1, mask=cell + 1 < CELLS, other=float("inf"))
    valley = (here < before) & (here <= after)
    loss = tl.where((rank == 0) | valley, here, float("inf"))
    for _ in range(1, rank):  # without the lower ones
        loss = tl.where(cell == _lowest(loss, theta), float("inf"), loss)
    start = tl.sum(tl.where(cell == _lowest(loss, theta), theta, 0.0), axis=0)
    left, right = start, start
    if rank > 0:
        left = tl.maximum((start * 10.0 - 1.0) / 10.0, -12.0)
        right = tl.minimum((start * 10.0 + 1.0) / 10.0, 12.0)
        for _ in range(BITS):
            middle = left + (right - left) * 0.5
            _, slope = _at(tl.exp(middle), sample, beyond_ptr, curve_ptr, views, classes, VIEWS, CLASSES)
            left = tl.where(slope > 0.0, left, middle)
            right = tl.where(slope > 0.0, middle, right)
    tau = tl.exp((left + right) / 2.0).to(tau_ptr.dtype.element_ty)
    tl.store(tau_ptr + sample * candidates + 2 + rank, tau, mask=tl.min(loss, axis=0) < float("inf"))


@triton.jit
def losses(
    beyond_ptr, curve_ptr, tau_ptr, loss_ptr, views, classes, candidates, VIEWS: tl.constexpr, CLASSES: tl.constexpr
):
    """loss (sample, candidates) at tau."""
    sample = tl.program_id(0).to(tl.int64)
    place = sample * candidates + tl.program_id(1)
    tau = tl.load(tau_ptr + place).to(tl.float64)
    loss, _ = _at(tau, sample, beyond_ptr, curve_ptr, views, classes, VIEWS, CLASSES)
    tl.store(loss_ptr + place, loss)
