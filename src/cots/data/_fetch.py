"""Files of a dataset on the Hugging Face Hub, downloaded once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from .._errors import InputError
from .._hub import hub_host, hub_reachable

_CONVERTED = "refs/convert/parquet"  # where the hub keeps datasets of other formats as Parquet


class Source(NamedTuple):
    """The data files of a dataset: their names, the local path of each, and where they are from."""

    names: list[str]
    path: Callable[[str], Path]
    where: str


def hub_source(name: str) -> Source:
    """The Parquet files of a dataset on the hub; offline, those that were downloaded before."""
    with _naming_remedies(name):
        if not hub_reachable():
            folder = Path(snapshot_download(name, repo_type="dataset", local_files_only=True))
            names = [file.relative_to(folder).as_posix() for file in sorted(folder.rglob("*.parquet"))]
            return Source(names, lambda file: folder / file, str(folder))
        names, revision = _list(name, None), None
        if not names:
            names, revision = _list(name, _CONVERTED), _CONVERTED

    def download(file: str) -> Path:
        with _naming_remedies(name):
            return Path(hf_hub_download(name, file, repo_type="dataset", revision=revision))

    return Source(names, download, f"hf:{name}")


def _list(name: str, revision: str | None) -> list[str]:
    files = HfApi().list_repo_files(name, repo_type="dataset", revision=revision)
    return sorted(file for file in files if file.endswith(".parquet"))


@contextmanager
def _naming_remedies(name: str) -> Iterator[None]:
    try:
        yield
    except LocalEntryNotFoundError:
        raise InputError(
            f"The dataset {name} is no folder here, was not downloaded before, and {hub_host()} cannot be reached. On "
            f"a machine with a connection, run hf download {name} --repo-type dataset --local-dir FOLDER, then pass "
            "hf:FOLDER."
        ) from None
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"The dataset {name} could not be downloaded ({reason}). Check its name.") from error
