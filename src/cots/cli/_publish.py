"""`cots pack` and `cots unpack`: runs to hand on."""

from pathlib import Path
from typing import Annotated

import typer


def pack(
    folder: Annotated[str, typer.Argument(help="Run folder, or its URL.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The archive to write; ends in .cots.tar.")],
) -> None:
    """Pack a finished run into one file. Manifest, records and checksums; no photos or features."""
    from ..bench import pack_run

    file = pack_run(folder, out)
    print(f"{file} ({file.stat().st_size / 1e6:.1f} MB)")


def unpack(
    file: Annotated[Path, typer.Argument(help="Archive of cots pack.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="New folder; default: FILE without its ending.")
    ] = None,
) -> None:
    """Unpack a run into a new folder, once every file is verified."""
    from ..bench import unpack_run

    run = unpack_run(file, out)
    print(f"{run.folder}\nnext: cots report {run.folder}")
