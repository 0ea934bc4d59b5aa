"""Photo sets for the demo with the features of a tiny model."""

from __future__ import annotations

from cots import demo

from .models import CLASSES, random_views, tiny_task


def photo_sets() -> list[demo.PhotoSet]:
    task = tiny_task("vit")
    sets = []
    for i, name in enumerate(("birds", "cars")):
        features = random_views(task, samples=24, views=12, seed=i)
        labels = (features[:, 0] @ task.text_features.T).argmax(dim=1).numpy()
        labels[::4] = (labels[::4] + 1) % len(CLASSES)
        sets.append(demo.PhotoSet(name=name, classes=tuple(CLASSES), labels=labels, features=features.half()))
    return sets
