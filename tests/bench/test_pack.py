"""Packs of runs: what is in them, and that damaged, foreign and hostile archives are refused by name."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile

import numpy as np
import pytest
from support.damage import flip
from support.runs import config, figures, photos
from typer.testing import CliRunner

import cots
from cots import bench
from cots.bench import RefusedArchive, pack_run, unpack_run
from cots.cli import app

SHARD = "shards/photos/seed0/tpt/00001.safetensors"
METHODS = ["tpt", "tpt+cots", "tda+cots(k=2)"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    dataset = photos(tmp_path_factory.mktemp("data") / "photos", each=4, broken=("car/2.png",))
    return bench.run(config(dataset, tmp_path_factory.mktemp("runs") / "x", methods=METHODS, views=3))


@pytest.fixture(scope="module")
def pack(run):
    return pack_run(run.folder, run.folder.parent / "x.cots.tar")


@pytest.fixture(scope="module")
def contents(pack):
    with tarfile.open(pack) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def write(file, contents, *, seal=True, **members):
    """An archive of these files, with true checksums; `members`: TarInfo by name, put before them."""
    contents = {name: data for name, data in contents.items() if name != "SHA256SUMS"}
    lines = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in contents.items()]
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as archive:
        for member in members.values():
            archive.addfile(member, io.BytesIO(bytes(max(member.size, 0))))
        for name, data in {**contents, **({"SHA256SUMS": "".join(lines).encode()} if seal else {})}.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return file


def refused(file, reason):
    """The archive is refused for this reason and leaves nothing behind."""
    before = sorted(file.parent.rglob("*"))
    with pytest.raises(RefusedArchive, match=rf"{file.name} was refused: .*{reason}.*\. Ask for a new copy"):
        unpack_run(file, file.parent / "out")
    assert sorted(file.parent.rglob("*")) == before


def test_a_pack_gives_the_run_back(run, pack, contents, tmp_path):
    again = unpack_run(pack, tmp_path / "again")
    assert figures(again) == figures(run)
    assert again.complete
    assert bench.check_run(again.folder).ok
    assert sorted(contents) == sorted(
        ["DONE", "SHA256SUMS", "manifest.json"]
        + [f"shards/photos/seed0/{method}/0000{index}.safetensors" for method in METHODS for index in (0, 1)]
    )
    assert pack_run(again.folder, tmp_path / "again.cots.tar").read_bytes() == pack.read_bytes()
    with tarfile.open(pack) as archive:
        assert {(m.mtime, m.uid, m.gid, m.uname, m.mode, m.type) for m in archive} == {(0, 0, 0, "", 0o644, b"0")}


def test_nothing_is_overwritten(pack, tmp_path):
    shutil.copy(pack, tmp_path / "mine.cots.tar")
    for make in (lambda at: at.mkdir(), lambda at: at.write_text("x"), lambda at: at.symlink_to("nowhere")):
        make(tmp_path / "mine")
        with pytest.raises(cots.InputError, match=r"mine exists, and cots unpack overwrites nothing"):
            unpack_run(tmp_path / "mine.cots.tar")
        shutil.move(tmp_path / "mine", tmp_path / f"old{len(list(tmp_path.iterdir()))}")
    with pytest.raises(cots.InputError, match=r"exists\. Choose another name"):
        pack_run(unpack_run(tmp_path / "mine.cots.tar").folder, tmp_path / "mine.cots.tar")


def test_only_intact_finished_runs_are_packed(pack, tmp_path):
    folder = unpack_run(pack, tmp_path / "run").folder
    flip(folder / SHARD)
    with pytest.raises(cots.CotsError, match=r"tpt/00001.safetensors is damaged"):
        pack_run(folder, tmp_path / "new.cots.tar")
    (folder / SHARD).unlink()
    with pytest.raises(cots.InputError, match=r"run is unfinished. Re-run its command"):
        pack_run(folder, tmp_path / "new.cots.tar")
    with pytest.raises(cots.InputError, match=r"must be a local file that ends in \.cots\.tar"):
        pack_run(folder, tmp_path / "new.tar")
    assert sorted(tmp_path.iterdir()) == [folder]


def test_every_flipped_bit_is_refused_or_without_effect(run, pack, tmp_path):
    file, rng, whole = tmp_path / "x.cots.tar", np.random.default_rng(0), pack.read_bytes()
    outcomes = []
    for bit in rng.integers(0, 8 * len(whole), 40):
        file.write_bytes(whole)
        flip(file, int(bit))
        try:
            unpacked = unpack_run(file, tmp_path / "out")
        except RefusedArchive:
            outcomes.append("refused")
            continue
        assert figures(unpacked) == figures(run)  # a bit of the padding between members
        shutil.rmtree(tmp_path / "out")
    assert len(outcomes) > 10
    for size in (0, 100, 512, 5000, len(whole) // 2, whole.rindex(b"SHA256SUMS") + 600):
        file.write_bytes(whole[:size])
        refused(file, "")


def test_hostile_members_are_refused_by_name(contents, tmp_path):
    file = tmp_path / "x.cots.tar"

    def member(name, kind=tarfile.REGTYPE, size=0, **changes):
        made = tarfile.TarInfo(name)
        made.type, made.size = kind, size
        made.linkname = changes.pop("linkname", "")
        made.pax_headers = changes
        return made

    for name in ("../evil", "/etc/evil", "shards/../../evil", "..", "C:/evil", "shards\\..\\evil", "//evil"):
        refused(write(file, contents, a=member(name)), "leads out of the folder")
    for name in ("evil.py", "features/photos/x", "shards/a/b/c", "shards/a/b/c/d/e", "shards//b/c/d", "state/x"):
        refused(write(file, contents, a=member(name)), rf"'{name}' is not part of a run")
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        refused(write(file, contents, a=member("manifest.json", kind, linkname="/etc/passwd")), "is a link")
    for kind in (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE):
        refused(write(file, contents, a=member(SHARD, kind)), "is a device")
    for kind in (tarfile.DIRTYPE, tarfile.CONTTYPE, b"Z"):
        refused(write(file, contents, a=member("DONE", kind)), "is not a plain file")
    refused(write(file, contents, a=member("DONE", size=4), b=member("DONE", size=4)), "'DONE' occurs twice")
    for size in ("-1000", "99999999999999"):
        made = member("DONE")
        made.pax_headers = {"size": size}
        refused(write(file, contents, a=made), "")
    sparse = member("DONE", **{"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9" * 15})
    refused(write(file, contents, a=sparse), "")
    write(file, contents)
    data = bytearray(file.read_bytes())
    data[124:135] = b"77777777777"  # the size of the first member, 8 GiB, with the header's checksum made to fit
    data[148:156] = b" " * 8
    data[148:155] = b"%06o\0" % sum(data[:512])
    file.write_bytes(data)
    refused(file, "'manifest.json' claims to be larger than the archive")
    file.write_bytes(b"\x1f\x8b" + bytes(1000))
    refused(file, "not an intact tar archive")


def test_contents_that_do_not_belong_together_are_refused(run, contents, tmp_path):
    file = tmp_path / "x.cots.tar"
    unpack_run(write(file, contents), tmp_path / "fine")  # the tool of this test makes valid archives
    for missing in ("manifest.json", SHARD, "DONE"):
        reason = "it has no manifest.json" if missing == "manifest.json" else "some are missing"
        refused(write(file, {name: data for name, data in contents.items() if name != missing}), reason)
    refused(write(file, contents, seal=False), "it has no SHA256SUMS")
    other = SHARD.replace("seed0", "seed1")
    refused(write(file, {**contents, other: contents[SHARD]}), rf"'{other}' is not part of its run")
    swapped = {**contents, SHARD: contents[SHARD.replace("00001", "00000")]}
    refused(write(file, swapped), rf"{SHARD} is damaged \(it belongs to index 0, not 1")
    foreign = bytearray(contents[SHARD])
    foreign[-1] ^= 1
    refused(write(file, {**contents, SHARD: bytes(foreign)}), rf"{SHARD} is damaged \(its checksum")
    manifest = contents["manifest.json"].replace(run.manifest.id.encode(), b"0" * 16)
    refused(write(file, {**contents, "manifest.json": manifest}), r"manifest.json is damaged \(its checksum")
    shifted = contents["manifest.json"].partition(b'"cots_checksum"')
    plain = shifted[0] + shifted[2][shifted[2].index(b",") + 1 :]
    refused(write(file, {**contents, "manifest.json": plain.replace(run.manifest.id.encode(), b"0" * 16)}),
            "shards/photos/seed0/.* is damaged .it belongs to run")  # fmt: skip
    many = plain.replace(b'"n": 12', b'"n": 999999999').replace(b'"shard_size": 8', b'"shard_size": 1000')
    refused(write(file, {**contents, "manifest.json": many}), r"3,000,000 shards of records, of which some are missing")


def test_the_commands_say_what_comes_next(run, tmp_path):
    file = tmp_path / "x.cots.tar"
    told = CliRunner().invoke(app, ["pack", str(run.folder), "-o", str(file)])
    assert (told.exit_code, told.output.partition(" (")[0]) == (0, str(file))
    told = CliRunner().invoke(app, ["unpack", str(file)])
    assert told.output == f"{tmp_path / 'x'}\nnext: cots report {tmp_path / 'x'}\n"
