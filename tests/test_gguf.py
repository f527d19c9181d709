"""The reader of GGUF against the one of the package that defines the format, bit for bit."""

import numpy as np
import pytest

from gptbook import gguf as ours

theirs = pytest.importorskip("gguf", reason="the reader is held against the package gguf, which is not installed")

FIELDS = {
    "test.u8": (255, "uint8"), "test.i8": (-3, "int8"), "test.u16": (65535, "uint16"), "test.i16": (-300, "int16"),
    "test.u32": (2**32 - 1, "uint32"), "test.i32": (-(2**31), "int32"), "test.u64": (2**64 - 1, "uint64"),
    "test.i64": (-(2**63), "int64"), "test.f32": (0.5, "float32"), "test.f64": (0.1, "float64"),
    "test.bool": (True, "bool"), "test.text": ("naïve ☃", "string"), "test.words": (["", "a b", "Ġt"], "array"),
    "test.numbers": ([1, -2, 3], "array"),
}  # fmt: skip
KINDS = theirs.GGMLQuantizationType
TENSORS = {"plain": KINDS.F32, "half": KINDS.F16, "four": KINDS.Q4_1, "eight": KINDS.Q8_0}


def write(path, kinds=None, fields=FIELDS, alignment=None):
    """A file of the package's own writer, and its tensors before they were stored."""
    random = np.random.default_rng(0)
    writer = theirs.GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    for key, (value, kind) in fields.items():
        getattr(writer, f"add_{kind}")(key, value)
    tensors = {}
    for name, kind in (kinds or TENSORS).items():
        tensors[name] = (random.normal(size=(3, 5, 64)) * 7).astype(np.float32)
        stored = theirs.quants.quantize(tensors[name], kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.mark.parametrize("alignment", [None, 32, 128])
def test_fields_and_tensors_are_those_that_the_package_reads(tmp_path, alignment):
    written = write(tmp_path / "a.gguf", alignment=alignment)
    file, reference = ours.read(tmp_path / "a.gguf"), theirs.GGUFReader(tmp_path / "a.gguf")
    for key, field in reference.fields.items():
        if not key.startswith("GGUF."):  # those stand before the fields
            assert file.fields[key] == field.contents(), key
    assert {key: file.fields[key] for key in FIELDS} == {key: value for key, (value, _) in FIELDS.items()}
    assert list(file.tensors) == [tensor.name for tensor in reference.tensors] == list(TENSORS)
    for tensor in reference.tensors:
        expected = theirs.quants.dequantize(tensor.data, tensor.tensor_type)
        found = file.tensor(tensor.name).numpy()
        assert found.dtype == np.float32
        assert np.array_equal(found, expected), tensor.name
        assert (
            np.abs(found - written[tensor.name]).max()
            < {"plain": 1e-9, "half": 0.02, "four": 2, "eight": 0.2}[tensor.name]
        )


def test_the_halves_of_a_byte_are_not_neighbours(tmp_path):
    """If this fails, the check above would pass a reader that takes the two codes of a byte for neighbours."""
    write(tmp_path / "a.gguf")
    found = ours.read(tmp_path / "a.gguf").tensor("four").numpy().reshape(-1, 2, 16)
    interleaved = found.transpose(0, 2, 1).reshape(-1, 32)
    assert np.abs(interleaved - found.reshape(-1, 32)).max() > 1


def test_a_type_that_is_not_read_is_named_when_its_tensor_is_wanted(tmp_path):
    write(tmp_path / "a.gguf", {"plain": KINDS.F32, "five": KINDS.Q5_0})
    file = ours.read(tmp_path / "a.gguf")
    assert file.tensor("plain").shape == (3, 5, 64)
    with pytest.raises(ours.GgufError, match=r"a\.gguf: five is stored as type 6, and this reads F32, F16, Q4_1, Q8_0"):
        file.tensor("five")
    with pytest.raises(ours.GgufError, match=r"a\.gguf: six is missing"):
        file.tensor("six")


def test_a_file_cut_short_anywhere_is_named(tmp_path):
    write(tmp_path / "a.gguf")
    whole = (tmp_path / "a.gguf").read_bytes()
    head = ours.read(tmp_path / "a.gguf").tensors["plain"][2]
    for end in [*range(0, head - 32, 7), head - 32]:
        (tmp_path / "b.gguf").write_bytes(whole[:end])
        with pytest.raises(ours.GgufError, match=r"b\.gguf: not a GGUF file of version 2 or 3, or cut short"):
            ours.read(tmp_path / "b.gguf")
    (tmp_path / "b.gguf").write_bytes(whole[:-40])
    file = ours.read(tmp_path / "b.gguf")
    file.tensor("four")
    with pytest.raises(ours.GgufError, match=r"b\.gguf: eight is cut short"):
        file.tensor("eight")


@pytest.mark.parametrize(
    "content", [b"<!doctype html><html>" * 50, b"GGUF" + b"\1\0\0\0" + bytes(100), b"GGUF\3\0\0\0" + b"\xff" * 400]
)
def test_what_is_no_gguf_is_one_line(tmp_path, content):
    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises(ours.GgufError, match="not a GGUF file") as caught:
        ours.read(tmp_path / "a.gguf")
    assert "\n" not in str(caught.value)
    with pytest.raises(ours.GgufError, match="cannot be read"):
        ours.read(tmp_path / "missing.gguf")
