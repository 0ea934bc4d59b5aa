"""Photo sets for the demo with the features of a tiny model."""

from __future__ import annotations

from cots import demo

from .models import CLASSES, random_views, tiny_task


def photo_sets() -> list[demo.PhotoSet]:
    """One set of known and one of unknown classes, 24 photos each."""
    task = tiny_task("vit")
    sets = []
    for i, name in enumerate(("birds", "cars")):
        features = random_views(task, samples=24, views=12, seed=i)
        labels = (features[:, 0] @ task.text_features.T).argmax(dim=1).numpy()
        labels[::4] = (labels[::4] + 1) % len(CLASSES)
        about = {"name": name, "classes": tuple(CLASSES), "known": name == "birds"}
        sets.append(demo.PhotoSet(**about, labels=labels, features=features.half()))
    return sets
