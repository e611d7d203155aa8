"""Sailor's files, written small: two stages of two groups, with times that are added by hand."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from graphpipe.cli.main import main
from graphpipe.errors import InvalidInput
from graphpipe.importers.read_sailor import read_sailor
from graphpipe.importers.sailor_files import SailorCurve, SailorFiles
from graphpipe.simulator import step_seconds

MEGA = 1e6
GROUP = [[["G", 2, "z"]], 2]
RUN = {
    "pipeline_list": [{"layers_per_stage": [[0, 1], [2]], "tmp_per_stage": [[GROUP], [GROUP]]}],
    "mbs": 2,
    "gbs": 4,
    "real": 30.0,
}
EMPTY = {"layers_per_stage": [[0], []], "tmp_per_stage": [[GROUP], []]}
HALF = {"layers_per_stage": [[0]], "tmp_per_stage": [[[[["G", 1, "z"]], 2]]]}
LAYER = {"params_bytes": 8.0, "act_output_bytes": MEGA, "act_mem_bytes": 4.0, "params_floats": 2}
# Two samples: 1 s forward and 2 s backward of each layer. Updates take 0.5 s per layer.
PROFILE = {"G": {"2": {"2": {str(layer): [1.0, 2.0, 0.5] for layer in range(3)}}}}
# A message of 2 MB takes 0.25 s at 8 MB/s.
LINKS = {kind: {"G": {"1": [[0.0, 0.0, 8e-3], 8e6]}} for kind in ("inter", "intra")}


def write(folder: Path, **changes: Any) -> Path:
    (folder / "runs").mkdir(exist_ok=True)
    bodies = {
        "profile.json": PROFILE,
        "model.json": {"layers": {"2": {str(layer): LAYER for layer in range(3)}}},
        "links.json": LINKS,
        "runs/two.json": RUN,
    }
    for name, body in {**bodies, **changes}.items():
        (folder / name).write_text(json.dumps(body))
    return folder


def test_a_step_is_the_sum_of_what_was_profiled(tmp_path: Path) -> None:
    plan = read_sailor(write(tmp_path), "two")
    assert [(stage.ops, stage.devices, stage.micro_batch) for stage in plan.stages] == [
        (("layer0", "layer1"), (0,), 2),
        (("layer2",), (1,), 2),
    ]
    # Stage 0 waits for stage 1: F F B B with 2 and 4 s, the last backward after the third message.
    #   s0  F0 0-2, send to 2.25, F1 2.25-4.25, send to 4.5
    #   s1  F0 2.25-3.25, B0 3.25-5.25, F1 5.5-6.5 ...
    seconds = step_seconds(plan)
    work = 2 * (2 + 4)  # of stage 0
    assert work < seconds < work + 1 + 2 + 6 * 0.25 + 1.5
    assert plan.costs.optimizer_seconds_per_parameter_byte * 24 == pytest.approx(1.5)
    assert SailorFiles.load(tmp_path).run("two").real == 30.0


def test_curves_follow_the_size_up_to_their_largest_rate() -> None:
    curve = SailorCurve(square=-1.0, linear=4.0, constant=2.0, largest=5e9)
    assert curve.bytes_per_second(MEGA) == 2e9
    assert curve.bytes_per_second(1.0) == 2e9
    assert curve.bytes_per_second(2 * MEGA) == 5e9
    # Beyond its highest point, at 4 MB, a parabola would fall below zero.
    wide = SailorCurve(square=-1.0, linear=4.0, constant=2.0, largest=1e12)
    assert wide.bytes_per_second(2.0**20 * MEGA) == 6e9


def test_replicas_of_unequal_gpus_wait_for_the_slower_one(tmp_path: Path) -> None:
    run = copy.deepcopy(RUN)
    run["pipeline_list"][0]["tmp_per_stage"][0] = [GROUP, [[["H", 2, "z"]], 2]]
    slow = {**PROFILE, "H": {"2": {"2": {str(layer): [3.0, 6.0, 0.5] for layer in range(3)}}}}
    links = {kind: {**by_gpu, "H": by_gpu["G"]} for kind, by_gpu in LINKS.items()}
    folder = write(tmp_path, **{"runs/two.json": run, "profile.json": slow, "links.json": links})
    plan = read_sailor(folder, "two")
    assert [kind.name for kind in plan.cluster.device_types] == ["G-tp2", "H-tp2"]
    assert plan.stages[0].micro_batch == 4
    assert step_seconds(plan) > 2 * (3.0 + 6.0)  # one micro-batch of 2 samples per replica, on the slower GPU


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"runs/two.json": RUN | {"mbs": 3}},
            r"profile\.json: lacks G with 3 samples at tensor-parallel degree 2",
        ),
        ({"runs/two.json": RUN | {"gbs": 5}}, "5 samples do not divide into micro-batches of 2 on 1 replicas"),
        ({"runs/two.json": RUN | {"pipeline_list": []}}, "has 0 pipelines, and only plans of one can be read"),
        ({"model.json": {"layers": {"2": {"0": LAYER}}}}, "lacks layer 1 at tensor-parallel degree 2"),
        ({"links.json": {"intra": {}, "inter": {}}}, "has no curve 'intra' for G"),
        (
            {"profile.json": {"G": {"2": {"2": {"0": [1.0, 2.0, 0.5]}}}}},
            r"profile\.json: lacks layer 1 of G with 2 samples",
        ),
        ({"runs/two.json": RUN | {"pipeline_list": [EMPTY]}}, "stage 1: has 0 layers and 0 replicas"),
        ({"profile.json": []}, r"profile\.json: is not a JSON object"),
        (
            {
                "runs/two.json": RUN
                | {"pipeline_list": [{"layers_per_stage": [[0]], "tmp_per_stage": [[[[["G", 1, "z"]], 2]]]}]}
            },
            "is a replica of 1 G with tensor-parallel degree 2",
        ),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_sailor(write(tmp_path, **changes), "two")


def test_the_command_writes_plans_that_others_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path)
    assert main(["import", str(folder), "--format", "sailor", "-o", str(tmp_path / "out")]) == 0
    assert main(["simulate", str(tmp_path / "out" / "two" / "plan.json")]) == 0
    assert "2 stages" in capsys.readouterr().out
    assert main(["import", str(folder), "--format", "sailor", "--plan", "tow", "-o", str(tmp_path)]) == 2
    assert "no run is named 'tow'" in capsys.readouterr().err
