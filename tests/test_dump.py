"""``MDFUSE_DUMP``: numbered files of each stage, and one error where they cannot be written."""

import os
from pathlib import Path

import pytest

from thunder_mdfuse.dump import Dump
from thunder_mdfuse.errors import MdfuseError


def test_stages_are_numbered_files_of_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MDFUSE_DUMP", str(tmp_path / "new" / "folder"))
    dump = Dump("mdFusion0")
    dump.write("region", "a")
    dump.write("kernel0", "b", "cu")
    dump.write("region", "c")
    (folder,) = (tmp_path / "new" / "folder").iterdir()
    assert folder.name.startswith("mdFusion0_")
    texts = {p.name: p.read_text() for p in folder.iterdir()}
    assert texts == {"00_region.txt": "c", "01_kernel0.cu": "b"}
    assert dump.texts == {"region": "c", "kernel0": "b"}


def test_without_a_folder_only_the_texts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_DUMP", "")
    dump = Dump("mdFusion0")
    dump.write("region", "a")
    assert dump.texts == {"region": "a"}


@pytest.mark.parametrize("where", ["a file", "below a file", "null device"])
def test_an_impossible_folder_is_our_error(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    asked = {"a file": file, "below a file": file / "below", "null device": Path(os.devnull)}[where]
    monkeypatch.setenv("MDFUSE_DUMP", str(asked))
    dump = Dump("mdFusion0")
    for _ in range(2):
        with pytest.raises(MdfuseError) as caught:
            dump.write("region", "a")
        message = str(caught.value)
        assert f"MDFUSE_DUMP={str(asked)!r}" in message
        assert "needs a folder that you may write to" in message
        assert "unset the variable" in message
    monkeypatch.setenv("MDFUSE_DUMP", str(tmp_path))
    dump.write("region", "a")
    assert list(tmp_path.glob("*/00_region.txt"))
