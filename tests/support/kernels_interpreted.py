"""Run by test_kernels.py under TRITON_INTERPRET=1: compares each kernel with plain torch and prints its name."""

import numpy as np
import torch
from torch.nn import functional as F

from cots import _kernels
from cots.calibrators._objective import Objective, make_loss
from cots.calibrators._solver import Fit, adam
from cots.prompts._packed import Packed

torch.manual_seed(0)

for delta in (None, torch.randn(3, 5, 48).half()):
    x, weight, bias = torch.randn(3, 5, 48), torch.randn(48), torch.randn(48)
    total = x.clone() if delta is None else x + delta
    out = _kernels.add_norm(x, delta, weight, bias, 1e-5, torch.float32)
    torch.testing.assert_close(x, total, rtol=0, atol=0)
    torch.testing.assert_close(out, F.layer_norm(total, (48,), weight, bias, 1e-5), rtol=1e-5, atol=1e-5)
x, delta, weight, bias = torch.randn(3, 5, 48).half(), torch.randn(3, 5, 48).half(), torch.randn(48), torch.randn(48)
x[0, 0, :2], delta[0, 0, :2] = torch.tensor([60_000.0, -60_000.0]), torch.tensor([30_000.0, -30_000.0])
total = (x.double() + delta.double()).clamp(-65504, 65504)
out = _kernels.add_norm(x, delta, weight, bias, 1e-5, torch.float32)
torch.testing.assert_close(x.double(), total, rtol=1e-3, atol=0)
expected = F.layer_norm(total, (48,), weight.double(), bias.double(), 1e-5)
torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)
print("add_norm")

tokens, table = torch.randn(3, 5, 48).bfloat16(), torch.randn(5, 48)
out = _kernels.embed_norm(tokens, table, weight, bias, 1e-5, torch.float32)
expected = F.layer_norm(tokens + table, (48,), weight, bias, 1e-5)
torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
print("embed_norm")

u = torch.randn(10_000)
torch.testing.assert_close(_kernels.activate(u.clone(), quick=False), F.gelu(u), rtol=1e-5, atol=1e-6)
torch.testing.assert_close(_kernels.activate(u.clone(), quick=True), u * torch.sigmoid(1.702 * u), rtol=1e-5, atol=1e-6)
print("activate")

for prefix, lengths in ((5, [3, 1, 7, 2, 20, 4, 30, 2, 11, 1, 1, 9, 40]), (1, [2]), (17, [70, 1])):
    packed = Packed(prefix, torch.tensor(lengths))
    q, k, v = torch.randn(2, prefix + sum(lengths), 3, 2, 16).half().unbind(2)
    got = _kernels.prefix_attention(q, k, v, packed._row_N, packed._first_N, prefix)
    expected = packed.attend(q.double(), k.double(), v.double(), False)
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=2e-3)
    ends = q[:, packed.ends]
    got = _kernels.prefix_attention(ends, k, v, packed._row_K, packed._first_K, prefix)
    torch.testing.assert_close(
        got.double(), packed.attend(ends.double(), k.double(), v.double(), True), rtol=0, atol=2e-3
    )
# More samples than one grid holds, here of four heads' programs: three samples by two heads take two launches.
_kernels._GRID, whole = 4, _kernels._GRID
packed = Packed(5, torch.tensor([3, 1]))
q, k, v = torch.randn(3, 9, 3, 2, 16).half().unbind(2)
got = _kernels.prefix_attention(q, k, v, packed._row_N, packed._first_N, 5)
torch.testing.assert_close(got.double(), packed.attend(q.double(), k.double(), v.double(), False), rtol=0, atol=2e-3)
_kernels._GRID = whole
print("attention")

# More views than a tile holds beside 512 classes, and settings that are NumPy numbers.
for views, classes, t0, steps in ((6, 50, 1.0, 50), (1, 2, 0.5, 50), (2100, 20, 1.0, np.int64(2))):
    zero_shot = 5 * torch.randn(2, views, classes)
    adapted = 1.7 * zero_shot + 0.3 * torch.randn(2, views, classes)
    adapted[0] *= 30
    fit = Fit(t0=t0, steps=steps, lr=np.float32(0.1))
    objective = Objective(adapted, zero_shot, make_loss("l2", 0.1))
    curve, target = objective.curve, objective.target
    start = torch.tensor(t0).log().item()
    tau = _kernels.adam(curve.beyond, curve.runner_up, target.top, target.miss, steps=steps, lr=fit.lr, start=start)
    torch.testing.assert_close(tau, adam(objective, fit), rtol=1e-4, atol=0)
print("adam")
