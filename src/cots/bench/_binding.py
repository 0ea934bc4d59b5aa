"""Where each file of a run belongs: written into the file, and compared when it is read."""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version

from ._manifest import deciding
from ._schema import Manifest

BLOCK = 64  # samples per file of features, so that runs with different batches and shards can share a cache
_KEY = "binding"
_LATER = ("descriptions", "attributes")  # unset, they are left out, so that files of earlier versions keep their hash
_OF_RECORDS = ("batch_size", "template", "context", *_LATER)  # settings that do not affect view features


@dataclass(frozen=True, kw_only=True)
class Binding:
    """Where a file belongs.

    run: the id of the run; empty for view features, which runs share, and for runs of cots 0.1.0, which had none.
    part: the method of a shard, the adapter of a state, or "features".
    index: the number of the shard or block.
    samples: their number in the file; for a state, 0.
    settings: a hash of the settings that determine the content.
    """

    run: str
    dataset: str
    seed: int
    part: str
    index: int
    samples: int
    settings: str

    def metadata(self) -> dict[str, str]:
        return {_KEY: json.dumps(asdict(self))}

    def check(self, metadata: Mapping[str, str]) -> None:
        """Raise ValueError for the metadata of a file that belongs elsewhere; cots 0.1.0 did not bind its files."""
        if _KEY not in metadata:
            if self.run:
                raise ValueError("it is not from this run")
            return
        written = json.loads(metadata[_KEY])
        for name, expected in asdict(self).items():
            if written[name] != expected:
                raise ValueError(f"it belongs to {name} {written[name]}, not {expected}")


class Bindings:
    """The bindings of the files of a run, from its manifest."""

    def __init__(self, manifest: Manifest) -> None:
        self._run = manifest.id
        self._shard_size = manifest.shard_size
        self._counts = {entry.name: entry.n for entry in manifest.datasets}
        self._settings = deciding(manifest)
        self._hash = functools.cache(self._hash_of)

    def shard(self, dataset: str, method: str, seed: int, index: int) -> Binding:
        return self._binding(self._run, dataset, seed, method, index, self._shard_size, method)

    def state(self, dataset: str, adapter: str, seed: int, index: int) -> Binding:
        return self._binding(self._run, dataset, seed, adapter, index, 0, adapter)

    def features(self, dataset: str, seed: int, index: int) -> Binding:
        return self._binding("", dataset, seed, "features", index, BLOCK)

    def cache_key(self, dataset: str, own_name: str) -> str:
        """Equal keys mean equal features, up to the machine's rounding; the seeds of views depend on the own name."""
        parts = (version("cots"), own_name, self._hash(dataset))
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def _binding(
        self, run: str, dataset: str, seed: int, part: str, index: int, size: int, method: str = ""
    ) -> Binding:
        samples = min(size, self._counts[dataset] - index * size)
        settings = self._hash(dataset, *method.split("+"))
        return Binding(run=run, dataset=dataset, seed=seed, part=part, index=index, samples=samples, settings=settings)

    def _hash_of(self, dataset: str, adapter: str = "", calibrator: str = "") -> str:
        chosen = {**self._settings[()], **self._settings[dataset,]}
        for name in _LATER:
            if chosen.get(f"{name} of {dataset}") is None:
                chosen.pop(f"{name} of {dataset}", None)
        if adapter:
            for kind, name in (("adapter", adapter), ("calibrator", calibrator or "none")):
                chosen |= self._settings.get((dataset, kind, name), {})
                chosen |= self._settings.get(("plug-in", kind, name), {})
        else:
            for name in _OF_RECORDS:
                chosen.pop(name, None)
                chosen.pop(f"{name} of {dataset}", None)
        return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:16]
