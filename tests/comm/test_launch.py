"""Ranks started without a launcher: output, exit codes, and nobody left behind."""

import sys
import time

import pytest

from thunder_mdfuse.comm.launch import TIMED_OUT, run_as_ranks, run_command_as_ranks, under_launcher
from thunder_mdfuse.errors import CommError

SHOW = (
    "import os; r = os.environ['RANK']; n = os.environ['WORLD_SIZE']; "
    "print(f'I am {r} of {n} ' + os.environ['LOCAL_RANK'] + f'\\nend {r}', flush=True)"
)


def run(code: str, ranks: int = 3, timeout: float = 30.0) -> int:
    return run_command_as_ranks([sys.executable, "-c", code], ranks, timeout)


def test_output_of_rank_0_is_as_it_is_and_others_are_prefixed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(SHOW) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"I am 0 of 3 0", "[rank 1] I am 1 of 3 1", "[rank 2] end 2"} <= set(lines)


def test_output_that_ends_in_no_newline_and_is_no_ascii(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("print('\\u2588' * 50000, end='')", ranks=1) == 0
    assert capsys.readouterr().out == "\u2588" * 50000


@pytest.mark.parametrize(("ending", "code"), [("os._exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)])
def test_one_failure_ends_all(ending: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    start = time.monotonic()
    program = f"import os, time\nif os.environ['RANK'] == '1': {ending}\ntime.sleep(60)"
    assert run(program) == code
    assert time.monotonic() - start < 20
    assert "rank 1 failed" in capsys.readouterr().err


def test_timeout_names_who_still_ran(capsys: pytest.CaptureFixture[str]) -> None:
    # A rank that ignores the polite signal is ended all the same.
    program = (
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.environ['RANK'] != '0': time.sleep(60)"
    )
    assert run(program, ranks=2, timeout=1.0) == TIMED_OUT
    assert "rank(s) 1 still ran after 1 s" in capsys.readouterr().err


def test_modules(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_as_ranks("platform", [], 2, 30.0) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_no_ranks_are_refused() -> None:
    with pytest.raises(CommError, match="at least one rank"):
        run(SHOW, ranks=0)


def test_under_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    assert not under_launcher()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert under_launcher()
