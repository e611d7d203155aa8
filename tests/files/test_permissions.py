"""New files have the permissions that the umask leaves, however they are written."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from stat import S_IMODE

import pytest
import torch
from torch import nn

from graphpipe.files.permissions import with_usual_permissions
from graphpipe.files.text_file import write_text
from graphpipe.model.capture.capture import capture_nodes
from graphpipe.model.capture_file.capture_file import save_capture
from graphpipe.run.checkpoint.safetensors_files import write_tensors


@contextmanager
def umask(mask: int) -> Generator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def test_files_are_as_private_as_the_user_wants(tmp_path: Path) -> None:
    """Under a umask of 077 plans, checkpoints and weights were readable by everyone."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    captured = capture_nodes(model, torch.zeros(2, 2))
    for mask in (0o077, 0o022, 0o007):
        with umask(mask):
            folder = tmp_path / f"{mask:o}"
            for _ in range(2):  # a new file, and one in place of an old one
                write_text(folder / "plan.json", "{}")
                write_tensors(folder / "model.safetensors", model.state_dict())
                assert save_capture(captured, folder / "capture.json")
        modes = {path.name: S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        names = ("plan.json", "model.safetensors", "capture.json", "capture.safetensors")
        assert modes == dict.fromkeys(names, 0o666 & ~mask)


def test_a_file_that_could_not_be_written_is_not_left_empty(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), with_usual_permissions(tmp_path / "part"):
        raise ZeroDivisionError
    assert not any(tmp_path.iterdir())
