"""`cots pretrain-context`: a context that is flat under noise, from class names alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .._errors import InputError
from . import _shared as option
from ._predict import check_classes
from ._shared import Bars

if TYPE_CHECKING:
    from ..prompts import Noise


def pretrain_context(
    classes: option.Classes = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("ctx.safetensors"),
    model: option.Model = None,
    template: option.Template = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of AdamW.")] = 1000,
    weight: Annotated[float | None, typer.Option(help="Weight of the flat term; default: 1 + 15 / classes.")] = None,
    noise: Annotated[
        str, typer.Option(help="On context and other tokens, in units of the token table's RMS; or published.")
    ] = "5,10",
    start: Annotated[Literal["random", "words"], typer.Option(help="Where the context starts.")] = "random",
    seed: Annotated[int, typer.Option(min=0, help="Seed of start and noise.")] = 0,
    device: option.Device = None,
) -> None:
    """Learn a context that is flat under noise (FPP) from class names alone, for cots run --context."""
    check_classes(classes)
    assert classes is not None
    if out.suffix != ".safetensors":
        raise InputError(f"--out {out} must end in .safetensors.")
    values = _noise(noise)
    from .._checked import write_tensors
    from ..backbones import load
    from ..prompts import DEFAULT_TEMPLATE, Task, default_weight, flatness
    from ..prompts import pretrain_context as learn

    backbone, template = load(model or "mini", device=device), template or DEFAULT_TEMPLATE
    with Bars() as bars:
        context = learn(
            backbone, classes, template, steps=steps, weight=weight, noise=values, start=start, seed=seed,
            progress=lambda done: bars.show("steps", done, steps),
        )  # fmt: skip
    before, after = Task(backbone, classes, template), Task(backbone, classes, template, context)
    about = {
        "method": "FPP", "model": backbone.name, "weights": backbone.weights_hash, "classes": before.classes,
        "template": template, "steps": steps, "noise": noise, "start": start, "seed": seed,
        "weight": default_weight(len(before.classes)) if weight is None else weight,
    }  # fmt: skip
    write_tensors(out, {"ctx": context.cpu().contiguous()}, {"pretrained": json.dumps(about)})
    print(f"{len(before.classes)} classes, {steps} steps -> {out}")
    print(
        f"Mean cosine with the texts under noise: {flatness(before, values):.3f} for the words, "
        f"{flatness(after, values):.3f} for the context."
    )


def _noise(text: str) -> Noise:
    """`published`, or two multiples."""
    if text == "published":
        return "published"
    try:
        first, second = map(float, text.split(","))
    except ValueError:
        raise InputError(f"--noise {text!r} must be two numbers such as 5,10, or published.") from None
    return first, second
