"""Every reader of TOML refuses text that would crash the parser, and names the file."""

from collections.abc import Callable
from pathlib import Path

import pytest

from graphpipe.cluster import Cluster
from graphpipe.errors import InvalidInput
from graphpipe.files.toml import DEEPEST, read_toml
from graphpipe.training.config.from_toml import read_config


@pytest.mark.parametrize("load", [read_toml, read_config, Cluster.load])
@pytest.mark.parametrize(
    "text",
    [
        f"name = {'[' * 5000}{']' * 5000}",
        f"name = {'{a=' * 3000}1{'}' * 3000}",
        f"{'a.' * 5000}b = 1",
        f"name = {'[' * DEEPEST}1{']' * DEEPEST}",
        f"name = {'9' * 5000}",
        f"name = 0x{'f' * 5000}",
        "name = 9223372036854775808",
        'name = "a\\u0000b"',
    ],
    ids=["lists", "tables", "dots", "deep", "digits", "hexadecimal", "65 bits", "NUL"],
)
def test_a_file_that_would_crash_the_parser_is_refused_by_name(
    load: Callable[[Path], object], text: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(InvalidInput) as caught:
        load(tmp_path / "bad.toml")
    assert str(caught.value).startswith(f"{tmp_path}/bad.toml: holds a value that this program does not read: ")
    assert len(str(caught.value)) < 500


def test_values_at_the_limits_are_read(tmp_path: Path) -> None:
    text = f"least = {-(2**63)}\nmost = {2**63 - 1}\ndeep = {'[' * (DEEPEST - 2)}1{']' * (DEEPEST - 2)}\n"
    (tmp_path / "good.toml").write_text(text)
    found, content = read_toml(tmp_path / "good.toml")
    assert found == text
    assert (content["least"], content["most"]) == (-(2**63), 2**63 - 1)


@pytest.mark.parametrize("load", [read_config, Cluster.load])
def test_a_binary_file_and_a_missing_file_are_named(load: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match=r"bad\.toml: not a text file"):
        load(tmp_path / "bad.toml")
    with pytest.raises(InvalidInput, match=r"no\.toml: cannot read: No such file"):
        load(tmp_path / "no.toml")
