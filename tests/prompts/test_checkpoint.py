"""CoOp checkpoints as Dassl writes them, and hostile ones: tensors are read, nothing is executed."""

from __future__ import annotations

import os
import pickle
import sys
import types
import zipfile

import numpy as np
import pytest
import torch
from support.compiler import without_compiler

import cots
from cots.prompts._tokens import read_context

CTX = torch.arange(64.0).reshape(4, 16)


class Scheduler:
    """Holds an optimiser and another scheduler, as Dassl's warm-up does."""

    def __init__(self, optimiser):
        self.optimizer = optimiser
        self.successor = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 50)


@without_compiler()
def dassl(ctx) -> dict:
    """A checkpoint with everything that Dassl puts into one."""
    weight = torch.nn.Parameter(ctx.clone())
    optimiser = torch.optim.SGD([weight], lr=0.002, momentum=0.9)
    weight.sum().backward()
    optimiser.step()
    return {
        "state_dict": {"ctx": ctx, "token_prefix": torch.zeros(5, 1, 16)},
        "epoch": 50,
        "optimizer": optimiser.state_dict(),
        "scheduler": vars(Scheduler(optimiser)),
        "val_result": np.float64(71.5),
        "history": np.arange(3.0),
        "names": {"a", "b"},
    }


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_checkpoint_of_dassl(tmp_path, monkeypatch, zipped):
    """The classes that it names need not even be installed here."""
    module = types.ModuleType("dassl_of_another_machine")
    module.Scheduler = type("Scheduler", (Scheduler,), {"__module__": module.__name__})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    content = dassl(CTX)
    content["scheduler"] = module.Scheduler(torch.optim.SGD([torch.nn.Parameter(CTX.clone())], lr=0.1))
    file = tmp_path / "model.pth.tar-50"
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    monkeypatch.delitem(sys.modules, module.__name__)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(file, weights_only=True)
    assert torch.equal(read_context(file), CTX)


class Evil:
    """Calls `function` with `given` when it is unpickled."""

    def __init__(self, function, *given):
        self.call = function, given

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_nothing_of_a_malicious_file_is_executed(tmp_path, capsys, zipped):
    mark = tmp_path / "executed"
    attacks = [
        Evil(os.mkdir, str(mark)),
        Evil(eval, f"__import__('os').mkdir({str(mark)!r})"),
        Evil(exec, f"open({str(mark)!r}, 'w')"),
        Evil(print, "executed"),
        Evil(os.system, f"touch {mark}"),
        Evil(torch.hub.load, "somebody/something"),
    ]
    file = tmp_path / "evil.pth"
    torch.save({"state_dict": {"ctx": CTX}, "more": attacks}, file, _use_new_zipfile_serialization=zipped)
    assert torch.equal(read_context(file), CTX)
    torch.save({"state_dict": attacks[0]}, file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(cots.InputError, match="has no tensor 'ctx'"):
        read_context(file)
    assert not mark.exists()
    assert "executed" not in capsys.readouterr().out


def test_a_file_cannot_change_torch(tmp_path):
    before = torch._utils._rebuild_tensor_v2.__defaults__
    # A hand-written pickle: the function by name, then BUILD with a state that would set an attribute of it.
    change = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nN}X\x0c\0\0\0__defaults__)s\x86b."
    file = tmp_path / "change.pth"
    torch.save({"ctx": CTX}, file)
    with zipfile.ZipFile(file) as old:
        parts = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as new:
        for name, data in parts.items():
            new.writestr(name, change if name.endswith("data.pkl") else data)
    with pytest.raises(cots.InputError, match="has no tensor 'ctx'"):
        read_context(file)
    assert torch._utils._rebuild_tensor_v2.__defaults__ == before


@pytest.mark.parametrize("name", ["broken.safetensors", "broken.pth", "text.pth.tar-50", "hello.pth", "empty.pth"])
def test_errors_are_readable(tmp_path, name):
    file = tmp_path / name
    file.write_bytes({"b": b"PK123", "t": b"<html>not found</html>", "h": b"hello", "e": b""}[name[0]])
    with pytest.raises(
        cots.InputError, match=r"cannot be read as a checkpoint \(.*[a-z]{3}.*\)\. Pass CoOp's"
    ) as caught:
        read_context(file)
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)
