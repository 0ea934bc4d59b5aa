"""A griffe extension for the API page: examples become code blocks, and names of parameters are bold."""

import re
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            names = [parameter.name for parameter in getattr(obj, "parameters", ())]
            obj.docstring.value = as_markdown(obj.docstring.value, {*names, *obj.members})


def as_markdown(text: str, names: set[str]) -> str:
    """Doctests in fences, and `name:` in bold where it introduces a parameter or an attribute."""

    def bold(found: re.Match[str]) -> str:
        return found[0] if found[2] not in names else f"{found[1]}**{found[2]}**"

    def paragraph(part: str) -> str:
        if part.startswith(">>>"):
            return f"```pycon\n{part}\n```"
        return part if part.startswith("    ") else re.sub(r"(^|[\s(])(\w+)(?=(?:, \w+)*: )", bold, part)

    return "\n\n".join(map(paragraph, text.split("\n\n")))
