"""Additional places of captures: the argument of init(), otherwise DYNPROF_PROF_DIRS."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynprof.errors import UnusablePathError
from dynprof.session.startup import InitOptions, open_session

SECRET = "s3cr3t"  # noqa: S105 - of nothing


def allowed(variable: str, monkeypatch: pytest.MonkeyPatch, root: Path) -> list[str]:
    """Return the places where a session's captures may go, without the config's directory."""
    monkeypatch.setenv("DYNPROF_PROF_DIRS", variable)
    session = open_session(root, InitOptions())
    try:
        return list(session.status().prof_dirs)
    finally:
        session.end("the test is over")


@pytest.mark.parametrize(
    ("variable", "places"),
    [
        ("/a:/b", ["/a", "/b"]),
        ("/a::/b:", ["/a", "/b"]),
        ("s3://bucket/a:s3://bucket/b", ["s3://bucket/a", "s3://bucket/b"]),
        ("/a:hdfs://node:8020/x:/b", ["/a", "/b", "hdfs://node:8020/x"]),
        ("s3://bucket/a:~", [str(Path.home()), "s3://bucket/a"]),
    ],
)
def test_the_variable_is_a_list_whose_urls_stay_whole(
    variable: str, places: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The colon of a URL separates no entries."""
    assert allowed(variable, monkeypatch, tmp_path) == places


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        (
            f"/a:s3://me:{SECRET}@bucket/x",
            "entry 2 of DYNPROF_PROF_DIRS cannot be used: a URL",
        ),
        (f"s3://me:{SECRET}/ab@bucket/x:/a", "entry 1 of DYNPROF_PROF_DIRS cannot be used: a URL"),
        (f"https://me:{SECRET}@host/x", "entry 1 of DYNPROF_PROF_DIRS cannot be used: captures go"),
        (f"me:{SECRET}@bucket", "entry 1 of DYNPROF_PROF_DIRS cannot be used: it is neither"),
        (f"/a:{SECRET}@bucket", "entry 2 of DYNPROF_PROF_DIRS cannot be used: it is neither"),
    ],
)
def test_an_entry_that_cannot_be_used_is_named_and_not_repeated(
    variable: str, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The message has its number: the entry may contain a password."""
    with pytest.raises(ValueError, match=says) as found:
        allowed(variable, monkeypatch, tmp_path)
    assert SECRET not in str(found.value)
    assert not found.value.__cause__


def test_credentials_in_an_argument_are_not_repeated(tmp_path: Path) -> None:
    """The message has the number of the entry."""
    with pytest.raises(ValueError, match="entry 2 of prof_dirs cannot be used: a URL") as found:
        open_session(tmp_path, InitOptions(prof_dirs=["/a", f"s3://me:{SECRET}@bucket/x"]))
    assert SECRET not in str(found.value)


@pytest.mark.parametrize("name", ["", "/profiler_config.json"])
def test_credentials_in_the_place_of_the_directory_are_not_repeated(name: str) -> None:
    """A URL is no directory, and its password is in no message."""
    with pytest.raises(UnusablePathError, match="is no directory of this") as found:
        open_session(Path(f"s3://me:{SECRET}@bucket/x{name}"), InitOptions())
    assert SECRET not in str(found.value)
