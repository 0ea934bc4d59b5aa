"""STS against a second implementation, and what its equations imply."""

from __future__ import annotations

import pytest
import torch
from support import naive_adapt
from support import naive_toolbox as naive
from support.models import CLASSES, TOLERANCE, mini, random_views, tiny, tiny_task

import cots
from cots.adapters.sts import subspace
from cots.classes import class_list


@pytest.mark.parametrize(
    ("kind", "steps", "lr", "directions", "dtype"),
    [
        ("vit", 1, 5e-3, 0, torch.float64),
        ("vit", 4, 0.2, 3, torch.float64),
        ("siglip", 2, 5e-2, 5, torch.float64),
        ("resnet", 1, 5e-3, 2, torch.float32),
    ],
)
def test_sts_matches_the_naive_reference(kind, steps, lr, directions, dtype):
    task = tiny_task(kind, dtype)
    views = random_views(task, samples=3, views=12)
    adapted = cots.adapt("sts", views, task, steps=steps, lr=lr, rho=0.3, directions=directions)
    text, scale = task.text_features, task.logit_scale
    for b, sample in enumerate(views):
        logits, texts = naive.sts(sample, text, scale, steps, lr, 0.3, directions)
        torch.testing.assert_close(adapted.logits[b], logits, rtol=0, atol=TOLERANCE[dtype])
        torch.testing.assert_close(adapted.tuned_text()[b], texts, rtol=0, atol=TOLERANCE[dtype])


def test_one_step_moves_every_direction_by_the_learning_rate():
    """AdamW's first step is a sign step, so |B gamma| = lr sqrt(R) and the signs of the singular vectors cancel."""
    task = tiny_task("vit", torch.float64)
    views = random_views(task, samples=2, views=12)
    B = subspace(task, 4)
    text = cots.adapt("sts", views, task, directions=4).tuned_text()
    for moved in text:
        # The shift s solves normalise(t + s) = t' for all classes: t' |t + s| - s = t, linear in lengths and s.
        K, D = moved.shape
        system = torch.zeros(K * D, K + D, dtype=moved.dtype)
        for k in range(K):
            system[k * D : (k + 1) * D, k] = moved[k]
            system[k * D : (k + 1) * D, K:] = -torch.eye(D, dtype=moved.dtype)
        shift = torch.linalg.lstsq(system, task.text_features.flatten()[:, None]).solution[K:, 0]
        torch.testing.assert_close(shift.norm(), torch.tensor(0.005 * 4**0.5, dtype=moved.dtype), rtol=1e-4, atol=0)
        torch.testing.assert_close(B @ (B.T @ shift), shift, rtol=0, atol=1e-9)


def test_without_a_step_it_is_zero_shot_and_the_order_of_strong_views_does_not_matter():
    task = tiny_task("vit", torch.float64)
    views = random_views(task, samples=2, views=12)
    still = cots.adapt("sts", views, task, lr=0.0, directions=3)
    torch.testing.assert_close(still.logits, still.zero_shot_logits, rtol=0, atol=1e-12)
    order = [0, *reversed(range(1, 12))]
    shuffled = cots.adapt("sts", views[:, order], task, directions=3).logits
    expected = cots.adapt("sts", views, task, directions=3).logits[:, order]
    torch.testing.assert_close(shuffled, expected, rtol=0, atol=1e-12)


def test_all_directions_are_a_common_shift_of_every_dimension():
    """With R = D a small step of gradient descent in gamma is one in the shift itself: here the gradient of both."""
    classes = [*CLASSES, *(f"thing {letter}" for letter in "abcdefghij")]
    task = cots.Task(tiny("vit", torch.float64), classes)
    views, text, scale = random_views(task, samples=1, views=10), task.text_features, task.logit_scale
    chosen = views[0][naive_adapt.select(scale * views[0] @ text.T, 0.3)]
    shift = torch.zeros(text.shape[1], dtype=text.dtype, requires_grad=True)
    naive_adapt.mean_entropy(scale * chosen @ naive.unit(text + shift).T).backward()
    adapted = cots.adapt("sts", views, task, rho=0.3, directions=text.shape[1], lr=1e-6)
    B = subspace(task, text.shape[1])
    slope = B.T @ shift.grad
    expected = naive.unit(text - 1e-6 * B @ (slope / (slope.abs() + 1e-8)))
    torch.testing.assert_close(adapted.tuned_text()[0], expected, rtol=0, atol=1e-11)


def test_directions_of_the_published_threshold_and_a_warning_for_few_classes():
    names = class_list("imagenet")
    counts = {}
    for classes in (5, 50, 200):
        task = cots.Task(mini(), names[:classes])
        if classes < 20:
            with pytest.warns(UserWarning, match="hardly any: its result is close to zero-shot's. Use it with 20"):
                counts[classes] = subspace(task, 0).shape[1]
        else:
            counts[classes] = subspace(task, 0).shape[1]
    assert counts[5] == 1
    assert 3 <= counts[50] < counts[200] <= 40


def test_more_directions_than_singular_values_are_refused():
    task = tiny_task("vit")
    with pytest.raises(cots.InputError, match=r"directions is 6, but the text features have 5 singular values. Use 5"):
        cots.adapt("sts", random_views(task), task, directions=6)
