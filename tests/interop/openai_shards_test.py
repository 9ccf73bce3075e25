"""One vector in numbered NumPy files: any cut is read, any damage is named."""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpt1_jax.errors import InputError
from gpt1_jax.interop.openai_shards import find_shards, read_shards, write_shards

VALUES = np.random.default_rng(0).normal(size=100).astype(np.float32)
quick = settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])


def put(folder: Path, arrays: list[np.ndarray]) -> Path:
    """A folder with one file for each array, and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for i, array in enumerate(arrays):
        np.save(folder / f"params_{i}.npy", array)
    return folder


def read(folder: Path) -> np.ndarray:
    return read_shards(find_shards(folder))


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return put(tmp_path / "whole", np.array_split(VALUES, 10))


@quick
@given(cuts=st.lists(st.integers(0, 100), max_size=12))
def test_any_cut_gives_the_same_vector(tmp_path, cuts):
    """More than ten files too: their order is that of the numbers, not of the names; some may be empty."""
    np.testing.assert_array_equal(read(put(tmp_path / "cut", np.split(VALUES, sorted(cuts)))), VALUES)


@settings(quick, max_examples=20)
@given(words=st.lists(st.integers(0, 2**32 - 1), max_size=60))
def test_every_bit_is_written_and_read(tmp_path, words):
    """Negative zeros, subnormal numbers and the bits of a NaN too."""
    values = np.array(words, np.uint32).view(np.float32)
    write_shards(put(tmp_path / "written", []), values)
    np.testing.assert_array_equal(bits(read(tmp_path / "written")), bits(values))


def test_files_are_those_that_array_split_and_save_give(tmp_path, folder):
    write_shards(put(tmp_path / "written", []), VALUES)
    assert sorted(path.name for path in (tmp_path / "written").iterdir()) == [f"params_{i}.npy" for i in range(10)]
    for path in folder.iterdir():
        assert (tmp_path / "written" / path.name).read_bytes() == path.read_bytes()


def test_only_headers_are_read_at_first(folder):
    assert [shard.n for shard in find_shards(folder)] == [10] * 10
    assert [shard.path.name for shard in find_shards(folder)] == [f"params_{i}.npy" for i in range(10)]


def test_format_version_2_is_read(folder):
    with open(folder / "params_3.npy", "wb") as file:
        np.lib.format.write_array(file, VALUES[30:40], version=(2, 0))
    np.testing.assert_array_equal(read(folder), VALUES)


def test_the_shorter_header_of_an_older_numpy_is_read(folder):
    """Up to NumPy 1.13 headers were padded to 16 bytes instead of 64."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (10,), }".ljust(69) + b"\n"
    old = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    assert len(old) % 16 == 0
    (folder / "params_3.npy").write_bytes(old + VALUES[30:40].tobytes())
    np.testing.assert_array_equal(read(folder), VALUES)


# --- Other types ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [">f4", "<f8", ">f8", "longdouble"])
def test_wider_and_swapped_floats_are_converted_with_a_warning(folder, caplog, dtype):
    np.save(folder / "params_4.npy", VALUES[40:50].astype(dtype))
    values = read(folder)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, VALUES)
    assert f"params_4.npy: {np.dtype(dtype)} values, converted to float32 without loss" in caplog.text


@given(st.lists(st.floats(width=16), min_size=1))
@quick
def test_half_precision_is_exact(tmp_path, values):
    values = np.array(values, np.float16)
    np.testing.assert_array_equal(read(put(tmp_path / "half", [values])), values.astype(np.float32))


@pytest.mark.parametrize("value", [0.1, 1e300, -1e-300, 16777217.0])
def test_a_double_that_is_no_float32_is_refused(folder, value, caplog):
    values = VALUES[40:50].astype(np.float64)
    values[7] = value
    np.save(folder / "params_4.npy", values)
    with pytest.raises(InputError) as error:
        read(folder)
    assert f"{folder}/params_4.npy: float64 value {value} is not a float32; convert" in str(error.value)
    assert not caplog.records


def test_infinities_and_nan_pass_for_the_caller_to_judge(tmp_path):
    values = np.array([np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(read(put(tmp_path / "odd", [values])), values.astype(np.float32))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(10),
        np.ones(10, bool),
        np.ones(10, np.complex64),
        np.array(["a"]),
        np.ones((2, 5), np.float32),
        np.float32(1),
        np.zeros(10, "V2"),  # bfloat16, as NumPy saves it
        np.zeros(10, [("a", "<f4")]),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_what_is_no_vector_of_floats_is_refused(folder, array):
    np.save(folder / "params_4.npy", array)
    with pytest.raises(InputError, match=r"params_4\.npy: is an array of type .* expected a float32 vector"):
        find_shards(folder)


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_python_objects_are_never_unpickled(folder, tmp_path):
    np.save(folder / "params_4.npy", np.array([Trap(tmp_path / "ran")], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"params_4\.npy: holds Python objects, .* a pickle can run any code; get"):
        find_shards(folder)
    (folder / "params_4.npy").write_bytes(pickle.dumps(Trap(tmp_path / "ran")))
    with pytest.raises(InputError, match=r"params_4\.npy: is not a NumPy file .* or a pickle, get the array itself"):
        find_shards(folder)
    assert not (tmp_path / "ran").exists()


# --- Damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("i", [0, 3, 8])
def test_a_missing_number_is_named(folder, i):
    (folder / f"params_{i}.npy").unlink()
    with pytest.raises(InputError, match=rf"params_{i}\.npy: is missing; found 9 such files, .* download it again"):
        find_shards(folder)


def test_no_file_at_all(tmp_path):
    with pytest.raises(InputError, match=r"params_0\.npy: is missing; found 0 such files"):
        find_shards(tmp_path)


@pytest.mark.parametrize("name", ["params_x.npy", "params_01.npy", "params_-1.npy", "params_1 (1).npy", "params_.npy"])
def test_a_name_without_a_number_is_refused(folder, name):
    shutil.copy(folder / "params_1.npy", folder / name)
    with pytest.raises(InputError) as error:
        find_shards(folder)
    assert str(error.value).startswith(f"{folder / name}: is not a name like params_0.npy")


def test_a_huge_number_is_a_gap(folder):
    (folder / "params_9.npy").rename(folder / f"params_{10**30}.npy")
    with pytest.raises(InputError, match=r"params_9\.npy: is missing; found 10 such files"):
        find_shards(folder)


@pytest.mark.parametrize("cut", [1, 4, 39, 40, 41, 100, 127, 160, 168])
def test_a_file_that_is_cut_short(folder, cut):
    path = folder / "params_4.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with pytest.raises(InputError) as error:
        find_shards(folder)
    assert str(error.value).startswith(f"{path}: ")
    if cut <= 40:
        assert f"has {40 - cut} bytes of values, its header says 40 (10 x float32); the file is cut short" in str(
            error.value
        )
    else:
        assert "is not a NumPy file of version 1 or 2" in str(error.value)


def test_bytes_after_the_values(folder):
    with open(folder / "params_4.npy", "ab") as file:
        file.write(b"\0\0\0\0")
    with pytest.raises(InputError, match=r"params_4\.npy: has 44 bytes of values, its header says 40 .* is damaged"):
        find_shards(folder)


@pytest.mark.parametrize(
    "content", [b"", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", b"<!DOCTYPE html>"]
)
def test_another_file_in_its_place(folder, content):
    (folder / "params_4.npy").write_bytes(content)
    with pytest.raises(InputError, match=r"params_4\.npy: is not a NumPy file") as error:
        find_shards(folder)
    assert repr(content[:16]) in str(error.value)


def test_a_folder_in_its_place(folder):
    (folder / "params_4.npy").unlink()
    (folder / "params_4.npy").mkdir()
    with pytest.raises(InputError, match=r"params_4\.npy: cannot be read \(Is a directory\)"):
        find_shards(folder)


@quick
@given(place=st.integers(0, 127), byte=st.integers(0, 255))
def test_any_byte_of_a_header_may_change(tmp_path, place, byte):
    """Then the vector is the same, or of another type with the same number of values, or refused; nothing else."""
    folder = put(tmp_path / "header", [VALUES])
    content = bytearray((folder / "params_0.npy").read_bytes())
    content[place] = byte
    (folder / "params_0.npy").write_bytes(content)
    try:
        outcome = len(read(folder))
    except InputError as error:
        outcome = str(error)
    assert outcome == len(VALUES) or outcome.startswith(f"{folder}/params_0.npy: ")
