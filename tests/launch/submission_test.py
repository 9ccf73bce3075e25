"""The program that zips a GLUE submission."""

import zipfile

import pytest
from programs import launch


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run" / "submission"
    folder.mkdir(parents=True)
    rows = "".join(f"{i}\t{i % 2}\n" for i in range(146))
    (folder / "WNLI.tsv").write_bytes(f"index\tprediction\n{rows}".encode())
    return tmp_path / "run"


def test_what_is_in_the_zip_and_what_is_not(run, tmp_path):
    result = launch("submission", f"--runs={run}", f"--target={tmp_path}/glue.zip")
    assert result.returncode == 0, result.stderr
    lines = [line.split(maxsplit=2) for line in result.stdout.splitlines()]
    assert lines[0] == ["CoLA.tsv", "1063", "MISSING"]
    assert lines[9] == ["WNLI.tsv", "146", f"{run}/submission/WNLI.tsv"]
    assert f"1 of 11 files are in {tmp_path}/glue.zip" in result.stdout
    assert "CoLA.tsv, SST-2.tsv" in result.stderr

    filled = launch(
        "submission", f"--runs={run}/submission/WNLI.tsv", f"--target={tmp_path}/glue.zip", "--fill_missing"
    )
    assert filled.returncode == 0, filled.stderr
    assert "MISSING" not in filled.stdout
    with zipfile.ZipFile(tmp_path / "glue.zip") as archive:
        assert len(archive.namelist()) == 11


def test_bad_input_ends_with_one_message(tmp_path):
    for arguments, message in [
        ([f"--runs={tmp_path}/nothing", "--target=a.zip"], "error: "),
        (["--target=a.zip"], "error: missing: --runs"),
    ]:
        result = launch("submission", *arguments)
        assert result.returncode == 2
        assert result.stderr.startswith(message)
        assert "Traceback" not in result.stderr
