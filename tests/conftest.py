import pytest
import torch

# Small tensors: more threads only wait for each other, and results must not depend on how many there are.
torch.set_num_threads(1)

# Files whose tests take longest: begun first, so that no core waits for one of them at the end.
LONG = (
    "test_ray", "test_server", "test_page", "test_parts", "test_examples", "test_job", "test_kernels",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))
