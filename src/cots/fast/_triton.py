# type: ignore  (Triton's own language, not Python)
"""GPU kernels in Triton, in float32 arithmetic; `cots.fast.kernels` launches them."""

import triton
import triton.language as tl


@triton.jit
def _norm(x, column, there, weight_ptr, bias_ptr, width, eps):
    """The layer norm of one row; columns outside `there` are padding."""
    mean = tl.sum(x, axis=0) / width
    centred = tl.where(there, x - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / width + eps)
    weight = tl.load(weight_ptr + column, mask=there, other=0.0)
    bias = tl.load(bias_ptr + column, mask=there, other=0.0)
    return centred * scale * weight + bias


@triton.jit
def add_norm(x_ptr, delta_ptr, weight_ptr, bias_ptr, out_ptr, width, eps, HAS_DELTA: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, BLOCK)
    there = column < width
    x = tl.load(x_ptr + row + column, mask=there, other=0.0).to(tl.float32)
    if HAS_DELTA:
        x += tl.load(delta_ptr + row + column, mask=there, other=0.0).to(tl.float32)
        if x_ptr.dtype.element_ty == tl.float16:
            x = tl.minimum(tl.maximum(x, -65504.0), 65504.0)
        tl.store(x_ptr + row + column, x.to(x_ptr.dtype.element_ty), mask=there)
    out = _norm(x, column, there, weight_ptr, bias_ptr, width, eps)
    tl.store(out_ptr + row + column, out.to(out_ptr.dtype.element_ty), mask=there)


@triton.jit
def embed_norm(tokens_ptr, table_ptr, weight_ptr, bias_ptr, out_ptr, width, count, eps, BLOCK: tl.constexpr):
    """The layer norm of tokens (rows, width) + table (count, width), the table repeating every `count` rows."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    there = column < width
    x = tl.load(tokens_ptr + row * width + column, mask=there, other=0.0).to(tl.float32)
    x += tl.load(table_ptr + row % count * width + column, mask=there, other=0.0)
    out = _norm(x, column, there, weight_ptr, bias_ptr, width, eps)
    tl.store(out_ptr + row * width + column, out.to(out_ptr.dtype.element_ty), mask=there)


@triton.jit
def activate(u_ptr, size, QUICK: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < size
    u = tl.load(u_ptr + place, mask=there, other=0.0).to(tl.float32)
    share = tl.sigmoid(1.702 * u) if QUICK else 0.5 + 0.5 * tl.erf(u * 0.7071067811865476)
    tl.store(u_ptr + place, (u * share).to(u_ptr.dtype.element_ty), mask=there)


@triton.jit
def prefix_attention(
    q_ptr, k_ptr, v_ptr, out_ptr, row_ptr, first_ptr,
    rows, prefix, heads, q_sample, q_row, kv_sample, kv_row, scale,
    HEAD: tl.constexpr, ROWS: tl.constexpr, PREFIX: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Row r is token row[r]; it attends to the prefix and the tokens first[r]..row[r], none after itself."""
    sample = (tl.program_id(1) // heads).to(tl.int64)
    head = tl.program_id(1) % heads
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = r < rows
    row = tl.load(row_ptr + r, mask=there, other=0)
    first = tl.load(first_ptr + r, mask=there, other=0)
    h = head * HEAD + tl.arange(0, HEAD)
    q = tl.load(q_ptr + sample * q_sample + r[:, None] * q_row + h[None, :], mask=there[:, None], other=0.0)
    k_ptr += sample * kv_sample
    v_ptr += sample * kv_sample

    j = tl.arange(0, PREFIX)
    k = tl.load(k_ptr + j[None, :] * kv_row + h[:, None], mask=j[None, :] < prefix, other=0.0)
    score = tl.dot(q, k) * scale
    score = tl.where((j[None, :] < prefix) & (j[None, :] <= row[:, None]), score, float("-inf"))
    top = tl.max(score, axis=1)
    weight = tl.exp(score - top[:, None])
    total = tl.sum(weight, axis=1)
    v = tl.load(v_ptr + j[:, None] * kv_row + h[None, :], mask=j[:, None] < prefix, other=0.0)
    out = tl.dot(weight.to(v.dtype), v)

    # Rows are ascending, so the keys of a block of rows lie between the start of its first row and its last row.
    low = tl.min(tl.where(there, first, 2147483647), axis=0)
    high = tl.max(tl.where(there, row, 0), axis=0) + 1
    for start in range(low, high, KEYS):
        i = start + tl.arange(0, KEYS)
        own_k = tl.load(k_ptr + i[None, :] * kv_row + h[:, None], mask=i[None, :] < high, other=0.0)
        near = tl.dot(q, own_k) * scale
        seen = (i[None, :] >= first[:, None]) & (i[None, :] <= row[:, None])
        near = tl.where(seen, near, float("-inf"))
        higher = tl.maximum(top, tl.max(near, axis=1))
        shrink = tl.exp(top - higher)
        share = tl.exp(near - higher[:, None])
        total = total * shrink + tl.sum(share, axis=1)
        own_v = tl.load(v_ptr + i[:, None] * kv_row + h[None, :], mask=i[:, None] < high, other=0.0)
        out = out * shrink[:, None] + tl.dot(share.to(own_v.dtype), own_v)
        top = higher
    place = (sample * rows + r)[:, None] * (heads * HEAD) + h[None, :]
    tl.store(out_ptr + place, (out / total[:, None]).to(out_ptr.dtype.element_ty), mask=there[:, None])


@triton.jit
def norm_gradient(
    dy_ptr, onto_ptr, n_ptr, s_ptr, weight_ptr, gradients, width, HAS_ONTO: tl.constexpr, BLOCK: tl.constexpr
):
    """dx = s (dn - mean dn - n mean(n dn)) with dn = w dy, added to `onto` in place, or in place of dy."""
    row = tl.program_id(0).to(tl.int64)
    token = row // gradients
    column = tl.arange(0, BLOCK)
    there = column < width
    dn = tl.load(dy_ptr + row * width + column, mask=there, other=0.0).to(tl.float32)
    dn *= tl.load(weight_ptr + column, mask=there, other=0.0)
    n = tl.load(n_ptr + token * width + column, mask=there, other=0.0).to(tl.float32)
    along = tl.sum(dn * n, axis=0) / width
    dx = (dn - tl.sum(dn, axis=0) / width - n * along) * tl.load(s_ptr + token)
    out_ptr = dy_ptr
    if HAS_ONTO:
        out_ptr = onto_ptr
        dx += tl.load(onto_ptr + row * width + column, mask=there, other=0.0).to(tl.float32)
    dx = tl.minimum(tl.maximum(dx, -65504.0), 65504.0)
    tl.store(out_ptr + row * width + column, dx.to(out_ptr.dtype.element_ty), mask=there)


@triton.jit
def attention_gradient(
    dout_ptr, qkv_ptr, out_ptr, prefix_ptr, token_ptr, first_ptr, gradients, prefix, heads, scale,
    HEAD: tl.constexpr, ROWS: tl.constexpr, PREFIX: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Gradients through the attention of one tile of whole texts, for `AT_ONCE` gradients; see AttentionGradients.

    token: of each row of the tile, -1 for padding. Gradients of the prefix's keys and values are sums over tiles:
    `prefix_ptr` (tiles, gradients, 2, heads, prefix, HEAD) has the part of each tile.
    """
    tile, head = tl.program_id(0), tl.program_id(1)
    width = heads * HEAD
    token = tl.load(token_ptr + tile * ROWS + tl.arange(0, ROWS))
    there = token >= 0
    first = tl.load(first_ptr + token, mask=there, other=-1)
    h = head * HEAD + tl.arange(0, HEAD)
    own = token.to(tl.int64)[:, None] * (3 * width) + h[None, :]
    q = tl.load(qkv_ptr + own, mask=there[:, None], other=0.0)
    k = tl.load(qkv_ptr + own + width, mask=there[:, None], other=0.0)
    v = tl.load(qkv_ptr + own + 2 * width, mask=there[:, None], other=0.0)
    j = tl.arange(0, PREFIX)
    shared = j[:, None] * (3 * width) + h[None, :]
    prefix_k = tl.load(qkv_ptr + shared + width, mask=j[:, None] < prefix, other=0.0)
    prefix_v = tl.load(qkv_ptr + shared + 2 * width, mask=j[:, None] < prefix, other=0.0)

    # Padding attends to itself, so that every row has a weight; its gradients are zero.
    seen = (first[:, None] == first[None, :]) & (token[None, :] <= token[:, None]) & (token[None, :] >= prefix)
    seen |= (token < 0)[:, None] & (token < 0)[None, :]
    before = (j[None, :] < prefix) & (j[None, :] <= token[:, None])
    near = tl.where(seen, tl.dot(q, tl.trans(k)) * scale, float("-inf"))
    far = tl.where(before, tl.dot(q, tl.trans(prefix_k)) * scale, float("-inf"))
    top = tl.maximum(tl.max(near, axis=1), tl.max(far, axis=1))
    near = tl.exp(near - top[:, None])
    far = tl.exp(far - top[:, None])
    total = tl.sum(near, axis=1) + tl.sum(far, axis=1)
    A_o = near / total[:, None]
    A_p = far / total[:, None]
    low = q.dtype

    for i in range(AT_ONCE):
        g = tl.program_id(2) * AT_ONCE + i
        real = tl.where(g < gradients, token, -1)
        at = (token.to(tl.int64) * gradients + g)[:, None]
        dO = tl.load(dout_ptr + at * width + h[None, :], mask=real[:, None] >= 0, other=0.0)
        dA_o = tl.dot(dO, tl.trans(v))
        dA_p = tl.dot(dO, tl.trans(prefix_v))
        mean = tl.sum(A_o * dA_o, axis=1) + tl.sum(A_p * dA_p, axis=1)
        dS_o = (A_o * (dA_o - mean[:, None])).to(low)
        dS_p = (A_p * (dA_p - mean[:, None])).to(low)
        out = out_ptr + at * (3 * width) + h[None, :]
        dq = (tl.dot(dS_o, k) + tl.dot(dS_p, prefix_k)) * scale
        tl.store(out, dq.to(low), mask=real[:, None] >= 0)
        alone = (real[:, None] >= prefix) & (real[:, None] >= 0)
        tl.store(out + width, (tl.dot(tl.trans(dS_o), q) * scale).to(low), mask=alone)
        tl.store(out + 2 * width, tl.dot(tl.trans(A_o.to(low)), dO).to(low), mask=alone)
        part = (tile.to(tl.int64) * gradients + g) * 2 * heads + head
        place = prefix_ptr + (part * prefix + j[:, None]) * HEAD + tl.arange(0, HEAD)[None, :]
        there_p = tl.where(g < gradients, j, prefix)[:, None] < prefix
        tl.store(place, tl.dot(tl.trans(dS_p), q) * scale, mask=there_p)
        tl.store(place + heads * prefix * HEAD, tl.dot(tl.trans(A_p.to(low)), dO), mask=there_p)
