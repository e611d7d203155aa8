"""Plain PyTorch can load exported weights into the unpartitioned model."""

import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from run_checkpoints import Tied, train_tied
from run_ranks import run_ranks, values
from safetensors.torch import load_file
from torch import Tensor

from graphpipe.errors import CheckpointCorrupt, InvalidInput
from graphpipe.run.checkpoint.folder import newest_valid
from graphpipe.run.checkpoint.safetensors_files import write_tensors
from graphpipe.run.export.export_weights import export_weights


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    """Return the folder of a run of two ranks, and the state of its whole model."""
    run = tmp_path_factory.mktemp("run")
    states = values(run_ranks(train_tied, 2, run / "ranks", str(run / "checkpoints")))
    return run, states[0]


def test_plain_pytorch_loads_the_export(saved: tuple[Path, dict[str, Tensor]], tmp_path: Path) -> None:
    run, trained = saved
    output = tmp_path / "new" / "model.safetensors"
    assert export_weights(run, output).name == "step-00000002"
    model = Tied()
    model.load_state_dict(load_file(output))  # strict: all names must match
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, trained[name]), name
    assert int(trained["right.1.num_batches_tracked"]) == 4
    assert [path.name for path in output.parent.iterdir()] == ["model.safetensors"]


def test_a_checkpoint_holds_every_tensor_once(saved: tuple[Path, dict[str, Tensor]]) -> None:
    found = newest_valid(saved[0] / "checkpoints")
    files = [load_file(path) for path in sorted(found.path.glob("model-*"))]
    names = [name for file in files for name in file]
    assert sorted(names) == sorted(found.manifest.tensors) == sorted(saved[1].keys() - {"left.decode.weight"})
    assert found.manifest.aliases == {"left.decode.weight": "left.encode.weight"}
    assert {"unused.weight", "head.weight"} < set(files[0])
    assert {"right.1.running_mean"} < set(files[1])


def test_any_single_checkpoint_can_be_exported(saved: tuple[Path, dict[str, Tensor]], tmp_path: Path) -> None:
    first = saved[0] / "checkpoints" / "step-00000001"
    assert export_weights(first, tmp_path / "first.safetensors") == first
    assert not torch.equal(load_file(tmp_path / "first.safetensors")["head.weight"], saved[1]["head.weight"])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torchs_own_distributed_checkpoint_reads_the_files(saved: tuple[Path, dict[str, Tensor]]) -> None:
    reader = dcp.HuggingFaceStorageReader(str(newest_valid(saved[0] / "checkpoints").path))
    expected = {name: torch.full_like(each, 9) for name, each in saved[1].items() if name != "left.decode.weight"}
    dcp.load(expected, storage_reader=reader, no_dist=True)
    for name, tensor in expected.items():
        assert torch.equal(tensor, saved[1][name]), name


def test_a_failed_export_names_the_cause(saved: tuple[Path, dict[str, Tensor]], tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no checkpoint"):
        export_weights(tmp_path, tmp_path / "model.safetensors")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"cannot be used: (Not a directory|File exists)"):
        export_weights(saved[0], tmp_path / "file" / "model.safetensors")
    damaged = tmp_path / "step-00000002"
    damaged.mkdir()
    (damaged / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointCorrupt, match=r"manifest\.json: not a graphpipe checkpoint file"):
        export_weights(damaged, tmp_path / "model.safetensors")


def test_weights_are_saved_in_their_dtypes(tmp_path: Path) -> None:
    module = torch.nn.Module()
    for dtype in (torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64):
        module.register_buffer(f"of_{str(dtype)[6:]}", torch.arange(6).view(2, 3).T.to(dtype))
    write_tensors(tmp_path / "model.safetensors", dict(module.named_buffers()))
    found = load_file(tmp_path / "model.safetensors")
    assert {name: each.dtype for name, each in found.items()} == {n: b.dtype for n, b in module.named_buffers()}
    assert all(torch.equal(found[name], each) for name, each in module.named_buffers())
    module.register_buffer("wide", torch.zeros(1, dtype=torch.complex128))
    with pytest.raises(InvalidInput, match=r"a safetensors file cannot hold torch\.complex128"):
        write_tensors(tmp_path / "model.safetensors", dict(module.named_buffers()))


def test_only_what_is_exported_is_read(saved: tuple[Path, dict[str, Tensor]], tmp_path: Path) -> None:
    """The optimizer's tensors are two thirds of a checkpoint of AdamW, and were hashed for an export too."""
    copied = tmp_path / "step-00000002"
    shutil.copytree(saved[0] / "checkpoints" / copied.name, copied)
    change_last_byte(copied / "optimizer-00.safetensors")
    assert export_weights(copied, tmp_path / "model.safetensors") == copied
    change_last_byte(copied / "model-01.safetensors")
    with pytest.raises(CheckpointCorrupt, match=r"model-01\.safetensors: is not what was written"):
        export_weights(copied, tmp_path / "model.safetensors")


def change_last_byte(path: Path) -> None:
    """Flip the bits of the last byte of a file."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 255]))
