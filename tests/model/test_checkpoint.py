import json
import struct

from recipe_core.model.catalog import load_model
from recipe_core.model.checkpoint import checkpoint_bytes


def safetensors(path, tensors):
    """A safetensors file with the given sizes in bytes."""
    header, start = {"__metadata__": {"format": "pt"}}, 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [start, start + size]}
        start += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(start))


def test_headers_are_added_up_and_the_index_comes_first(tmp_path):
    assert checkpoint_bytes(tmp_path) is None
    safetensors(tmp_path / "a.safetensors", {"x": 10, "y": 20})
    safetensors(tmp_path / "b.safetensors", {"z": 5})
    assert checkpoint_bytes(tmp_path) == 35
    index = {"metadata": {"total_size": 123}, "weight_map": {}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert checkpoint_bytes(tmp_path) == 123


def test_damaged_files_say_nothing(tmp_path):
    for content in (b"", b"\xff" * 8, struct.pack("<Q", 4) + b"{{{{"):
        (tmp_path / "a.safetensors").write_bytes(content)
        assert checkpoint_bytes(tmp_path) is None


def test_a_folder_whose_files_hold_something_else_says_so(tmp_path, tiny_config):
    (tmp_path / "config.json").write_text(json.dumps(tiny_config))
    plain = load_model(str(tmp_path))
    assert plain.checkpoint_bytes is None
    safetensors(tmp_path / "model.safetensors", {"all": int(plain.counted_bytes)})
    assert load_model(str(tmp_path)).notes == plain.notes
    safetensors(tmp_path / "model.safetensors", {"all": int(plain.counted_bytes * 1.5)})
    assert "files on disk hold" in load_model(str(tmp_path)).notes[-1]
