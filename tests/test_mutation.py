"""Mutants of `transformer/`: what is changed, and what is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("mutmut", reason="needs the extra `mutation`")

SOURCE = '''\
def double(x: int = 1) -> int:
    """Twice two."""
    if x < 0:
        raise ValueError(f"x is {x - 1}")
    return 2 * x


def check_positive(x: int) -> bool:
    return x > 0


@overload
def triple(x: int = 1) -> int: ...
'''


def test_numbers_and_operators_change_and_refusals_do_not(tmp_path: Path) -> None:
    from claims.studies.mutation import mutants

    (tmp_path / "a.py").write_text(SOURCE)
    found = list(mutants(tmp_path / "a.py"))
    assert {(m.line, m.before, m.after) for m, _ in found} == {
        (1, "1", "2"), (3, "< 0", "<= 0"), (3, "0", "1"), (5, "2 * x", "2 / x"), (5, "2", "3"),
    }
    texts = [text for _, text in found]
    assert len(set(texts)) == len(texts)
    assert all(SOURCE.count("\n") == text.count("\n") for text in texts)


def test_what_cannot_be_mutated_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from claims.studies.mutation import main

    for arguments, said in (
        ([str(tmp_path / "none")], "none is no folder; give one that exists"),
        ([str(tmp_path), "--every", "0"], "--every 0: give 1 for all mutants"),
        ([str(tmp_path), "--files", "blocks.py"], "--files blocks.py: transformer/ has __init"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert said in capsys.readouterr().err
