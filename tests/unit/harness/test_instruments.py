"""``python -m tests.harness``: each instrument has commands that exist, and what it needs is made once."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import __main__ as instruments
from tests.harness import needs


@pytest.fixture
def nothing_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No server, jar or environment is built: their folders are empty ones, an existing file in each."""

    def folder(*_: object) -> Path:
        return tmp_path

    for name in ("server", "jars", "classes", "engines"):
        monkeypatch.setattr(needs, name, folder)
    monkeypatch.setattr(needs, "java", lambda: None)
    for name in ("iceberg_runtime", "spark"):
        monkeypatch.setattr(needs, name, folder)


@pytest.mark.usefixtures("nothing_made")
@pytest.mark.parametrize("name", instruments.INSTRUMENTS)
def test_an_instrument_runs_modules_and_tests_that_exist(name: str) -> None:
    assert instruments.INSTRUMENTS[name].__doc__
    commands = list(instruments.INSTRUMENTS[name]([]))
    assert commands
    for command in commands:
        assert command.arguments[0] == "-m"
        found = importlib.util.find_spec(command.arguments[1])
        assert found is not None, command
        if found.submodule_search_locations is not None:
            assert importlib.util.find_spec(f"{command.arguments[1]}.__main__") is not None, command
        tests = [argument for argument in command.arguments if argument.startswith("tests/")]
        assert [path for path in tests if not (needs.ROOT / path).exists()] == []


def test_the_instruments_of_each_night_exist() -> None:
    assert set(instruments._NIGHTLY) <= instruments.INSTRUMENTS.keys()


@pytest.mark.usefixtures("nothing_made")
def test_readers_are_chosen_by_name() -> None:
    (command,) = instruments.readers(["duckdb", "--seeds", "7", "2"])
    assert "duckdb" in command.arguments
    assert "polars" not in command.arguments
    assert [*command.arguments][-5:-2] == ["--seeds", "7", "2"]
    (command,) = instruments.readers(["--short"])
    assert [*command.arguments][3:6] == ["pyiceberg", "duckdb", "polars"]
    assert "--short" not in command.arguments


def test_what_is_needed_is_made_once_for_the_same_inputs(tmp_path: Path) -> None:
    folder, calls = tmp_path / "made", list[int]()

    def make() -> None:
        calls.append(len(list(folder.iterdir())))
        (folder / "result").touch()

    for inputs in ([b"1"], [b"1"], [b"2"]):
        assert needs.made(folder, inputs, make) == folder
    assert calls == [0, 0]  # Each time in an empty folder.


def test_what_failed_is_made_again(tmp_path: Path) -> None:
    def outcomes() -> Iterator[bool]:
        yield from (False, True)

    succeeded = outcomes()

    def make() -> None:
        if not next(succeeded):
            raise needs.MissingProgramError("mvn is not installed")

    with pytest.raises(needs.MissingProgramError):
        needs.made(tmp_path / "made", [b"1"], make)
    needs.made(tmp_path / "made", [b"1"], make)
    assert next(succeeded, None) is None


def test_a_program_is_kept_for_each_version_and_built_again_if_it_is_damaged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built: list[Path] = []

    def build(folder: Path) -> None:
        (folder / "minio").write_bytes(b"program")
        built.append(folder)

    program = needs.kept("minio", "github.com/minio/minio@1", build)
    assert needs.kept("minio", "github.com/minio/minio@1", build) == program
    assert len(built) == 1
    assert needs.kept("minio", "github.com/minio/minio@2", build) != program
    assert len(built) == 2
    program.write_bytes(b"prog")
    assert needs.kept("minio", "github.com/minio/minio@1", build).read_bytes() == b"program"
    (program.parent / "sha256").unlink()
    needs.kept("minio", "github.com/minio/minio@1", build)
    assert len(built) == 4
    assert sorted(path.name for path in program.parent.iterdir()) == ["minio", "sha256"]


def test_a_build_that_fails_keeps_no_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def broken(folder: Path) -> None:
        (folder / "minio").write_bytes(b"half")
        raise needs.MissingProgramError("Go is not installed")

    with pytest.raises(needs.MissingProgramError):
        needs.kept("minio", "1", broken)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_an_unknown_instrument_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert instruments.main(["tortur"]) == 2
    printed = capsys.readouterr()
    assert "torture-gateway" in printed.out
    assert "There is no instrument tortur." in printed.err
    assert instruments.main([]) == 0


def test_a_program_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert instruments.main(["s3a"]) == 1
    assert "Java 17 or newer; /nowhere/bin/java does not run. Install it" in capsys.readouterr().err
