"""The environment as the package sees it."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from thunder_mdfuse import knobs
from thunder_mdfuse.errors import MdfuseError


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No MDFUSE_ variable from outside, and no memory of what was warned about."""
    for name in list(knobs.child_environment()):
        if name.startswith("MDFUSE_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(knobs, "_warned", set())
    monkeypatch.setattr(knobs, "_scanned", 0)


@pytest.mark.parametrize("name", knobs.KNOBS)
def test_a_default_is_valid_and_the_knob_is_described(name: str) -> None:
    knob = knobs.KNOBS[name]
    assert knob.name == name
    assert name.startswith("MDFUSE_") and name.isupper()
    assert knobs.value(name) == knob.parse(knob.default)
    assert len(knob.help) > 15


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("MDFUSE_BACKEND", "emulate", "emulate"),
        ("MDFUSE_DUMP", "/some/folder", "/some/folder"),
        ("MDFUSE_FUEL", "3", 3),
        ("MDFUSE_FUEL", "-1", -1),
        ("MDFUSE_COMM_TIMEOUT", "0.5", 0.5),
        ("MDFUSE_EAGER_ROUNDING", "1", True),
        ("MDFUSE_DISK_CACHE", "0", False),
        ("MDFUSE_EMULATOR_ORDERS", "7", 7),
    ],
)
def test_a_value_is_read_when_it_is_asked_for(
    name: str, text: str, found: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = knobs.value(name)
    monkeypatch.setenv(name, text)
    assert knobs.value(name) == found
    assert type(knobs.value(name)) is type(found)
    monkeypatch.delenv(name)
    assert knobs.value(name) == before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MDFUSE_BACKEND", "gpu"),
        ("MDFUSE_FUEL", "many"),
        ("MDFUSE_FUEL", "-2"),
        ("MDFUSE_EMULATOR_ORDERS", "0"),
        ("MDFUSE_COMM_TIMEOUT", "nan"),
        ("MDFUSE_COMM_TIMEOUT", "inf"),
        ("MDFUSE_COMM_TIMEOUT", "0"),
        ("MDFUSE_COMM_TIMEOUT", "-3"),
        ("MDFUSE_COMM_TIMEOUT", "soon"),
        ("MDFUSE_EAGER_ROUNDING", "yes"),
        ("MDFUSE_DISK_CACHE", ""),
        ("MDFUSE_VERIFY", "true"),
    ],
)
def test_a_bad_value_is_an_error_that_names_knob_text_and_what_it_takes(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(MdfuseError) as caught:
        knobs.value(name)
    knob = knobs.KNOBS[name]
    assert str(caught.value) == (
        f"{name}={text!r} is not valid: it takes {knob.takes}. Set it to that, or unset it for the "
        f"default, {knob.default!r}."
    )
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_a_bad_value_is_found_before_anything_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever knob is read first: that is the import of the executor, which reads the fuel."""
    monkeypatch.setenv("MDFUSE_COMM_TIMEOUT", "-1")
    for _ in range(2):
        with pytest.raises(MdfuseError, match=r"MDFUSE_COMM_TIMEOUT='-1' is not valid"):
            knobs.integer("MDFUSE_FUEL")
    monkeypatch.setenv("MDFUSE_COMM_TIMEOUT", "1")
    assert knobs.integer("MDFUSE_FUEL") == -1


def test_typed_readers_agree_with_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_FUEL", "5")
    assert knobs.integer("MDFUSE_FUEL") == 5
    assert knobs.flag("MDFUSE_DISK_CACHE") is True
    assert knobs.text("MDFUSE_BACKEND") == "auto"
    assert knobs.seconds("MDFUSE_COMM_TIMEOUT") == 30.0


def test_a_name_that_is_no_knob_is_our_mistake() -> None:
    with pytest.raises(KeyError):
        knobs.value("MDFUSE_NO_SUCH_KNOB")


def test_an_unknown_variable_warns_once_and_lists_the_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MDFUSE_BAKCEND", "emulate")
    told = "MDFUSE_BAKCEND; did you mean MDFUSE_BACKEND[?] Known are MDFUSE_BACKEND, .*VERIFY"
    with pytest.warns(UserWarning, match=told) as caught:
        knobs.flag("MDFUSE_VERIFY")
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        knobs.flag("MDFUSE_VERIFY")


def test_an_unknown_variable_that_is_like_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_QQQQQQQQQQQQQQQQ", "1")
    with pytest.warns(UserWarning, match="variable MDFUSE_Q+; known are MDFUSE_BACKEND, "):
        knobs.flag("MDFUSE_VERIFY")


def test_the_warning_stands_where_the_user_imports(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text("import torch\n\nfrom thunder_mdfuse import mdfuse_executor\n")
    found = subprocess.run(
        [sys.executable, script],
        env=knobs.child_environment(MDFUSE_FUELL="1", PYTHONPATH=":".join(filter(None, sys.path))),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert f"{script}:3: UserWarning: unknown environment variable MDFUSE_FUELL" in found.stderr


def test_other_variables_do_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSEX", "1")
    monkeypatch.setenv("OTHER_MDFUSE_THING", "1")
    assert knobs.flag("MDFUSE_VERIFY") is False


def test_the_cache_root_follows_the_xdg_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert knobs.cache_root() == Path("/caches/thunder_mdfuse")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/someone")
    assert knobs.cache_root() == Path("/home/someone/.cache/thunder_mdfuse")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert knobs.cache_root() == Path("/home/someone/.cache/thunder_mdfuse")


def test_launchers_are_seen_through_their_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in knobs.launcher_environment():
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    monkeypatch.setenv("PMIX_NAMESPACE", "job.1")
    monkeypatch.setenv("SLURM_JOB_ID", "9")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("RANKING", "no launcher's")
    assert knobs.launcher_environment() == {
        "OMPI_COMM_WORLD_RANK": "3",
        "PMIX_NAMESPACE": "job.1",
        "SLURM_JOB_ID": "9",
        "RANK": "1",
        "LOCAL_RANK": "0",
    }


def test_a_childs_environment_is_a_changed_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_FUEL", "1")
    child = knobs.child_environment(MDFUSE_FUEL="2", EXTRA="x")
    assert (child["MDFUSE_FUEL"], child["EXTRA"]) == ("2", "x")
    assert knobs.integer("MDFUSE_FUEL") == 1
    assert "EXTRA" not in knobs.child_environment()
