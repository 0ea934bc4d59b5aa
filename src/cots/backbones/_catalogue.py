"""Names of models: the forms that `cots.load` accepts, and the rows of `cots ls models`."""

import csv
from collections.abc import Iterator
from importlib.resources import files

EMBEDDED = "mini"
KINDS = ("random", "local-dir", "hf-hub")
SPEC_HELP = (
    "Use mini, ARCH/TAG (such as ViT-B-16/openai), ARCH//path/to/weights, ORG/NAME on the hub, local-dir:/folder "
    "or random:ARCH."
)
_FORMS = ("ORG/NAME on the Hugging Face Hub", "local-dir:DIR", "ARCH//FILE", "random:ARCH")


def known_models(everything: bool = False) -> Iterator[tuple[str, str, str, str]]:
    """(name, parameters, data, licence) of each model; with `everything`, of every tag of open_clip."""
    _, *lines = (files("cots") / "embedded" / "models.csv").read_text(encoding="utf-8").splitlines()
    rows = {row[0]: row for row in csv.reader(lines, delimiter=";", skipinitialspace=True)}
    for name, millions, data, licence in rows.values():
        yield name, f"{millions} M", data, licence
    if everything:
        import open_clip

        for arch, tag in open_clip.list_pretrained():
            if (name := f"{arch}/{tag}") not in rows:
                yield name, "unknown", "unknown", "unknown"
    for form in _FORMS:
        yield form, "", "", ""


def similar_models(text: str, most: int = 4) -> list[str]:
    """Names of models that contain `text`, whatever its case, dashes and slashes: ViT-B-16/openai for vitb16."""
    found = []
    for name, *_ in known_models():
        if "/" in name and name not in _FORMS and text.strip() and _letters(text) in _letters(name):
            found.append(name)
    return found[:most]


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))
