"""Checkpoints on disk: damaged files, kills at any time, full disks, and which checkpoints are kept."""

import errno
import itertools
import json
import multiprocessing
import os
import random
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run_checkpoints import fill_the_disk, pipeline_of, save_until_killed
from run_models import fan_batch
from run_ranks import run_ranks, values
from safetensors.torch import load_file, save_file

from graphpipe.errors import CheckpointCorrupt, InvalidInput
from graphpipe.files.json_body import digest, to_body
from graphpipe.run.checkpoint import checkpoints as saving
from graphpipe.run.checkpoint.checkpoints import Checkpoints
from graphpipe.run.checkpoint.folder import list_checkpoints, newest_resumable, newest_valid
from graphpipe.run.checkpoint.manifest import MANIFEST, FileEntry, Manifest
from graphpipe.run.checkpoint.snapshot import Snapshot
from graphpipe.run.checkpoint.verify import verify_files, verify_resumable
from graphpipe.run.device.random_state import RandomState
from graphpipe.run.export.export_weights import export_weights

MODEL = "model-00.safetensors"
OPTIMIZER, TRAINING = "optimizer-00.json", "training.json"
BAD_STATE = "is not the state of a random generator"
KILLS = 10


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the checkpoints of steps 2 and 3."""
    folder = tmp_path_factory.mktemp("made")
    pipeline, _ = pipeline_of("shared", norm=True)
    checkpoints = Checkpoints(pipeline, folder, keep=2)
    for _ in range(3):
        pipeline.step(*fan_batch())
        checkpoints.save()
    checkpoints.wait()
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """Return a copy of the folder with the checkpoints of steps 2 and 3."""
    return Path(shutil.copytree(made, tmp_path / "checkpoints"))


def flip(path: Path, position: int = -1, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def other_dtype(path: Path) -> None:
    save_file({name: each.double() for name, each in load_file(path).items()}, path)


def other_shape(path: Path) -> None:
    save_file({name: each.unsqueeze(0) for name, each in load_file(path).items()}, path)


def test_two_checkpoints_that_were_swapped_are_noticed(made: Path, tmp_path: Path) -> None:
    """A run went on from step 2 as if it were step 3."""
    shutil.copytree(made, tmp_path / "swapped")
    older, newer = (tmp_path / "swapped" / f"step-{step:08}" for step in (2, 3))
    newer.rename(tmp_path / "aside")
    older.rename(newer)
    (tmp_path / "aside").rename(older)
    with pytest.raises(CheckpointCorrupt, match="holds step 2, but its name says step 3"):
        newest_resumable(tmp_path / "swapped")


def test_the_last_two_checkpoints_are_kept(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000002", "step-00000003"]
    files = {path.name for path in (folder / "step-00000003").iterdir()}
    assert files == {MODEL, "optimizer-00.safetensors", "optimizer-00.json", "training.json", "plan.json", MANIFEST}
    assert newest_valid(folder).path.name == "step-00000003"


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        *itertools.product((flip, shorten, Path.unlink), (MODEL, "optimizer-00.json", "training.json", MANIFEST)),
        *((damage, "optimizer-00.safetensors") for damage in (flip, shorten, Path.unlink, other_dtype, other_shape)),
    ],
)
def test_a_damaged_file_is_named_and_the_previous_checkpoint_is_used(
    damage: Callable[[Path], None], file: str, folder: Path
) -> None:
    damage(folder / "step-00000003" / file)
    with pytest.raises(CheckpointCorrupt, match=f"step-00000003/{file}: "):
        verify_files(folder / "step-00000003")
    pipeline, _ = pipeline_of("replicas", norm=True)
    with pytest.warns(UserWarning, match=f"{file}: .* Using the checkpoint before it: .*step-00000002"):
        assert Checkpoints(pipeline, folder).load().step == 2
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000002", "step-00000003.damaged-1"]


def test_every_flipped_bit_is_found(folder: Path) -> None:
    checkpoint, generator = folder / "step-00000003", random.Random(0)
    for path in sorted(checkpoint.iterdir()):
        whole = path.read_bytes()
        for _ in range(60):
            flip(path, generator.randrange(len(whole)), generator.randrange(8))
            with pytest.raises(CheckpointCorrupt):
                verify_files(checkpoint)
            path.write_bytes(whole)
    verify_files(checkpoint)


def test_when_all_checkpoints_are_damaged_the_newest_is_named(folder: Path) -> None:
    for checkpoint in list_checkpoints(folder):
        flip(checkpoint / MODEL)
    with pytest.raises(CheckpointCorrupt, match=r"step-00000003/model-00.safetensors: .*None of the 2 checkpoints"):
        newest_valid(folder)


@pytest.mark.parametrize("change", [other_dtype, other_shape])
def test_a_tensor_that_the_manifest_does_not_describe_is_named(change: Callable[[Path], None], folder: Path) -> None:
    checkpoint = folder / "step-00000003"
    change(checkpoint / MODEL)
    manifest = Manifest.load(checkpoint / MANIFEST)
    files = manifest.files | {MODEL: FileEntry.of(checkpoint / MODEL)}
    replace(manifest, files=files).save(checkpoint / MANIFEST)
    verify_files(checkpoint)
    with pytest.raises(CheckpointCorrupt, match=f"{MODEL}, tensor '.*': is float.*, the manifest says float32"):
        Checkpoints(pipeline_of("shared", norm=True)[0], folder).load()


def test_files_outside_the_folder_are_not_read(folder: Path) -> None:
    checkpoint = folder / "step-00000003"
    manifest = Manifest.load(checkpoint / MANIFEST)
    outside = f"../step-00000002/{MODEL}"
    replace(manifest, files=manifest.files | {outside: FileEntry.of(checkpoint / outside)}).save(checkpoint / MANIFEST)
    with pytest.raises(CheckpointCorrupt, match=r"names '\.\./step-00000002/model-00\.safetensors'"):
        verify_files(checkpoint)


def reseal(checkpoint: Path, file: str, change: Callable[[Any], object]) -> None:
    """Change a JSON file of a checkpoint, and the manifest so that it describes the changed file."""
    body = json.loads((checkpoint / file).read_text())
    change(body["contents"] if file == MANIFEST else body)
    (checkpoint / file).write_text(json.dumps(body))
    manifest = body if file == MANIFEST else json.loads((checkpoint / MANIFEST).read_text())
    if file != MANIFEST:
        manifest["contents"]["files"][file] = to_body(FileEntry.of(checkpoint / file))
    manifest["sha256"] = digest(manifest["contents"])
    (checkpoint / MANIFEST).write_text(json.dumps(manifest))


def first(body: Any) -> Any:
    return body["parameters"][min(body["parameters"])]


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (MANIFEST, lambda body: body["files"].update({"a\0b": body["files"][MODEL]}), r"names 'a\\x00b'"),
        (MANIFEST, lambda body: body["files"].update({"": body["files"][MODEL]}), "names ''"),
        (
            MANIFEST,
            lambda body: body["aliases"].update(other="none"),
            "does not list tensor 'none', which is",
        ),
        (
            MANIFEST,
            lambda body: body["slots"].pop(min(body["slots"])),
            ":exp_avg' is listed either here or in",
        ),
        (MANIFEST, lambda body: body["files"].pop("training.json"), "does not list training.json"),
        (OPTIMIZER, lambda body: first(body).update(group=2), "is in group 2, there are 2"),
        (OPTIMIZER, lambda body: first(body).update(group=-1), "group: Input should be greater"),
        (OPTIMIZER, lambda body: first(body).update(slots=["none"]), "is listed either here or in optimizer-"),
        (OPTIMIZER, lambda body: first(body).update(slots=[]), "is listed either here or in optimizer-"),
        (TRAINING, lambda body: body.update(step=10**40), "step: Input should be less"),
        (TRAINING, lambda body: body["position"].update(batch=-1), "batch: Input should be greater"),
        (TRAINING, lambda body: body["position"]["random"].update(torch=""), BAD_STATE),
        (TRAINING, lambda body: body["position"]["random"].update(torch="00"), BAD_STATE),
        (TRAINING, lambda body: body["position"]["random"]["python"].__setitem__(0, 2**40), BAD_STATE),
        (TRAINING, lambda body: body["position"]["random"]["python"][1].__setitem__(0, -1), BAD_STATE),
        (TRAINING, lambda body: body["position"]["random"]["numpy"].__setitem__(0, "PCG64"), BAD_STATE),
        (TRAINING, lambda body: body["position"]["random"]["numpy"].__setitem__(1, "../../x"), BAD_STATE),
        (TRAINING, lambda body: body["position"]["random"]["numpy"].__setitem__(2, 10**6), "less than or equal to 624"),
    ],
)
def test_a_checkpoint_that_cannot_be_resumed_counts_as_damaged(
    file: str, change: Callable[[Any], object], message: str, folder: Path
) -> None:
    checkpoint = folder / "step-00000003"
    reseal(checkpoint, TRAINING, lambda body: body["position"].update(random=to_body(RandomState.now())))
    verify_resumable(checkpoint)
    reseal(checkpoint, file, change)
    with pytest.warns(UserWarning, match=rf"\.json.*{message}.*Using the checkpoint before"):
        assert newest_resumable(folder).name == "step-00000002"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda body: body["groups"][0].update(lr=None), "None cannot replace"),
        (lambda body: body["groups"][0].update(betas=[]), "zip"),
        (lambda body: body["scheduler"].update(last_epoch=None), "None cannot replace"),
        (lambda body: body["scheduler"].update(base_lrs=[]), "IndexError"),
        (lambda body: body["scheduler"].update(base_lrs=3.5), "3.5 cannot replace"),
    ],
)
def test_an_optimizer_state_that_does_not_fit_names_its_file(
    change: Callable[[Any], object], message: str, folder: Path
) -> None:
    reseal(folder / "step-00000003", OPTIMIZER, change)
    with pytest.raises(CheckpointCorrupt, match=rf"step-00000003/optimizer-\*\.json: does not fit this .*{message}"):
        Checkpoints(pipeline_of("shared", norm=True)[0], folder).load()


def test_options_missing_from_a_checkpoint_keep_their_values(folder: Path) -> None:
    reseal(folder / "step-00000003", OPTIMIZER, lambda body: [group.pop("maximize") for group in body["groups"]])
    pipeline, _ = pipeline_of("shared", norm=True)
    Checkpoints(pipeline, folder).load()
    pipeline.step(*fan_batch())


@pytest.mark.parametrize("file", [MODEL, TRAINING, MANIFEST, ""], ids=["tensors", "JSON", "manifest", "folder"])
def test_links_are_not_followed(file: str, folder: Path, tmp_path: Path) -> None:
    linked, outside = folder / "step-00000003" / file, tmp_path / "outside"
    linked.rename(outside)
    linked.symlink_to(outside)
    with pytest.raises(CheckpointCorrupt, match=f"{linked}: is a link"):
        export_weights(folder / "step-00000003", tmp_path / "model.safetensors")
    with pytest.warns(UserWarning, match=f"{linked}: is a link"):
        assert export_weights(folder, tmp_path / "model.safetensors").name == "step-00000002"
    pipeline, _ = pipeline_of("shared", norm=True)
    with pytest.warns(UserWarning, match=f"{linked}: is a link"):
        assert Checkpoints(pipeline, folder).load().step == 2
    assert outside.exists()


def test_links_to_the_folder_of_checkpoints_or_the_run_are_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(folder)
    (tmp_path / "link").symlink_to(tmp_path / "run")
    assert newest_resumable(tmp_path / "link" / "checkpoints").name == "step-00000003"
    assert export_weights(tmp_path / "link", tmp_path / "model.safetensors").name == "step-00000003"


def test_removing_a_checkpoint_that_is_a_link_keeps_its_target(folder: Path, tmp_path: Path) -> None:
    outside = folder.rename(tmp_path / "outside")
    folder.mkdir()
    (folder / "step-00000001").symlink_to(outside)
    (folder / "step-00000000").symlink_to("nowhere")
    (folder / "step-00000001.part").symlink_to(outside)
    pipeline, _ = pipeline_of("shared", norm=True)
    pipeline.step(*fan_batch())
    checkpoints = Checkpoints(pipeline, folder, keep=1)
    checkpoints.save()
    checkpoints.wait()
    assert [(path.name, path.is_symlink()) for path in folder.iterdir()] == [("step-00000001", False)]
    assert len(list_checkpoints(outside)) == 2


def test_on_a_read_only_disk_a_damaged_checkpoint_is_skipped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    flip(folder / "step-00000003" / MODEL)
    pipeline, _ = pipeline_of("shared", norm=True)
    monkeypatch.setattr(os, "rename", refuse)
    with pytest.warns(UserWarning, match=f"{MODEL}: .* Using the checkpoint before it: .*step-00000002"):
        assert Checkpoints(pipeline, folder).load().step == 2
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000002", "step-00000003"]


def test_loading_does_not_unpickle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("unpickled")

    pipeline, _ = pipeline_of("replicas", norm=True)
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    assert Checkpoints(pipeline, folder).load().step == 3


def test_the_same_step_may_be_saved_twice(folder: Path) -> None:
    pipeline, model = pipeline_of("shared", norm=True)
    checkpoints = Checkpoints(pipeline, folder)
    checkpoints.load()
    with torch.no_grad():
        model.get_parameter("head.score.bias").fill_(5.0)
    checkpoints.save()
    checkpoints.wait()
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000002", "step-00000003"]
    assert load_file(newest_valid(folder).path / MODEL)["head.score.bias"].tolist() == [5.0, 5.0, 5.0]


def test_the_folder_of_another_training_is_refused(folder: Path) -> None:
    pipeline, _ = pipeline_of("shared", norm=True)
    pipeline.step(*fan_batch())
    with pytest.raises(InvalidInput, match="holds a checkpoint of step 3, this one is of step 1"):
        Checkpoints(pipeline, folder).save()
    assert newest_valid(folder).path.name == "step-00000003"


class Stop(Exception):
    """Simulates that the machine stops at this point."""


def operations(monkeypatch: pytest.MonkeyPatch, before: Callable[[], None]) -> None:
    """Call a function before every operation that changes the disk."""

    def wrap(owner: object, name: str) -> None:
        original = getattr(owner, name)

        def wrapped(*args: object, **kwargs: object) -> object:
            before()
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, wrapped)

    for name in ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir"):
        wrap(os, name)
    wrap(Path, "open")


@pytest.mark.parametrize(("again", "background"), [(False, False), (True, True)])
def test_a_stop_before_any_operation_leaves_a_valid_checkpoint(
    again: bool, background: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, _ = pipeline_of("shared", norm=True)
    Checkpoints(pipeline, folder).load()
    if not again:
        pipeline.step(*fan_batch())
    steps: set[str] = set()
    for last in itertools.count():
        copy = Path(shutil.copytree(folder, tmp_path / f"stopped-{last}"))
        calls = itertools.count()

        def stop(calls: Iterator[int] = calls, last: int = last) -> None:
            if next(calls) >= last:  # from here on every operation fails
                raise Stop

        with monkeypatch.context() as patch, suppress(Stop):
            operations(patch, stop)
            checkpoints = Checkpoints(pipeline, copy, background=background)
            checkpoints.save()
            checkpoints.wait()
            steps.add("complete")
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a warning would mean a damaged checkpoint
            steps.add(newest_valid(copy).path.name)
        shutil.rmtree(copy)
        if "complete" in steps:
            break
    assert last > 20
    expected = {"step-00000003", "step-00000003.replaced"} if again else {"step-00000003", "step-00000004"}
    assert steps == {"complete", *expected}


def test_a_kill_at_any_time_does_not_lose_a_complete_checkpoint(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "graphpipe.run"])
    generator = random.Random(0)
    folder, log = tmp_path / "checkpoints", tmp_path / "log"
    interrupted = 0
    for _ in range(5 * KILLS):
        before = log.stat().st_size if log.exists() else 0
        process = context.Process(
            target=save_until_killed, args=(str(folder), str(log), bool(generator.getrandbits(1)))
        )
        process.start()
        while not log.exists() or log.stat().st_size == before:
            assert process.is_alive()
            time.sleep(0.005)
        seconds = float(log.read_text().split()[-1])
        while not any(folder.glob("*.part")):
            assert process.is_alive()
            time.sleep(0.001)
        time.sleep(generator.uniform(0, 0.6 * seconds))  # the first save of a process takes longer than the second
        process.kill()
        process.join()
        interrupted += any(folder.glob("*.part"))
        complete = int(log.read_text().splitlines()[-1].split()[0])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = newest_valid(folder)
        assert complete <= int(found.path.name[5:13]) <= complete + 1
        if interrupted == KILLS:
            return
    pytest.fail(f"{interrupted} of {5 * KILLS} kills hit a save")


def test_a_full_disk_on_one_rank_is_an_error_on_all_and_the_next_save_is_complete(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for message, steps in values(run_ranks(fill_the_disk, 2, tmp_path / "ranks", "shared", str(folder))):
        assert message.startswith(
            f"InvalidInput: {folder}/step-00000002.part/model-01.safetensors: cannot be used: File too"
        )
        assert steps == "3"
    assert [path.name for path in list_checkpoints(folder)] == ["step-00000003", "step-00000001"]
    verify_files(folder / "step-00000003")


def test_without_a_copy_the_checkpoint_is_there_when_save_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    plain = saving.write_rank_files

    def watched(part: Path, rank: int, snapshot: Snapshot) -> None:
        own = {each.data_ptr() for each in model.parameters()}
        written.append(sum(each.data_ptr() in own for each in snapshot.tensors.values()))
        plain(part, rank, snapshot)

    monkeypatch.setattr(saving, "write_rank_files", watched)
    pipeline, model = pipeline_of("replicas")
    pipeline.step(*fan_batch())
    Checkpoints(pipeline, tmp_path).save()
    assert list_checkpoints(tmp_path)[0].name == "step-00000001"
    assert written == [len(list(model.parameters()))]  # the tensors themselves


def test_training_continues_while_a_snapshot_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    write = saving.write_rank_files

    def slowly(*args: object) -> None:
        assert gate.wait(20)
        write(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(saving, "write_rank_files", slowly)
    pipeline, model = pipeline_of("replicas", norm=True)
    checkpoints = Checkpoints(pipeline, tmp_path, background=True)
    pipeline.step(*fan_batch())
    then = {name: each.clone() for name, each in model.state_dict().items()}
    checkpoints.save()
    pipeline.step(*fan_batch())
    assert list_checkpoints(tmp_path) == []
    gate.set()
    checkpoints.save()  # waits for the first save
    assert list_checkpoints(tmp_path)[-1].name == "step-00000001"
    checkpoints.wait()
    assert list_checkpoints(tmp_path)[0].name == "step-00000002"
    shutil.rmtree(tmp_path / "step-00000002")
    checkpoints.load()
    assert pipeline.steps == 1
    for name, each in model.state_dict().items():
        assert torch.equal(each, then[name]), name
