import torch
from support.models import mini

from cots.serve import _tasks
from cots.serve._tasks import TaskCache


def test_bytes_are_measured_again_only_when_a_task_has_computed_more(monkeypatch):
    measured = []
    real = _tasks.task_bytes
    monkeypatch.setattr(_tasks, "task_bytes", lambda *given: measured.append(real(*given)) or measured[-1])
    cache = TaskCache(mini(), limit=2**30)
    task = cache.get(("cat", "dog"), "a photo of a {}.")
    cache.put(task)
    cache.put(task)
    assert len(measured) == 1
    task.constant("mine", lambda: torch.zeros(1000))
    cache.put(task)
    assert cache.bytes == measured[-1] == measured[0] + 4000
    assert cache.get(("cat", "dog"), "a photo of a {}.") is task
