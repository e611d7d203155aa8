"""The examples for Kubernetes and TorchX, checked against the parts of their schemas that they use."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import ValidationError, validate

from graphpipe.cli.main import make_parser

ROOT = Path(__file__).parent.parent


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    """An object that may have these properties only, as the API server's strict validation demands."""
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


def listed(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": item}


TEXT, COUNT = {"type": "string"}, {"type": "integer", "minimum": 1}
TEXTS = {"type": "array", "items": TEXT}
NAMES = {"type": "object", "additionalProperties": TEXT}
NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
QUANTITY = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?([KMGTPE]i|[mkMGTPE])?$"}
AMOUNTS = {"type": "object", "additionalProperties": QUANTITY}
META = closed(["name"], name=NAME, namespace=NAME, labels=NAMES)
# Kubernetes, core/v1: Container, Volume.
CONTAINER = closed(
    ["name", "image"],
    name=NAME,
    image=TEXT,
    command=TEXTS,
    args=TEXTS,
    env=listed(closed(["name"], name=TEXT, value=TEXT)),
    resources=closed([], limits=AMOUNTS, requests=AMOUNTS),
    securityContext=closed([], capabilities=closed([], add=TEXTS, drop=TEXTS)),
    volumeMounts=listed(closed(["name", "mountPath"], name=NAME, mountPath=TEXT, readOnly={"type": "boolean"})),
)
VOLUME = closed(
    ["name"],
    name=NAME,
    emptyDir=closed([], medium={"enum": ["", "Memory"]}, sizeLimit=QUANTITY),
    persistentVolumeClaim=closed(["claimName"], claimName=NAME, readOnly={"type": "boolean"}),
)
POD = closed(["containers"], containers=listed(CONTAINER), volumes=listed(VOLUME))
# kubeflow/trainer, pkg/apis/trainer/v1alpha1: trainingruntime_types.go and trainjob_types.go. `torch` took
# `numProcPerNode` in the first releases and takes nothing now, so the example leaves it to the TrainJob.
JOB = closed(
    ["name", "template"],
    name=NAME,
    template=closed(
        ["spec"], metadata=closed([], labels=NAMES), spec=closed(["template"], template=closed(["spec"], spec=POD))
    ),
)
RUNTIME = closed(
    ["template"],
    mlPolicy=closed([], numNodes=COUNT, torch=closed([])),
    template=closed(["spec"], spec=closed(["replicatedJobs"], replicatedJobs=listed(JOB))),
)
TRAIN_JOB = closed(
    ["runtimeRef"],
    runtimeRef=closed(["name"], name=TEXT, apiGroup=TEXT, kind={"enum": ["TrainingRuntime", "ClusterTrainingRuntime"]}),
    trainer=closed(
        [],
        image=TEXT,
        command=TEXTS,
        args=TEXTS,
        env=listed(closed(["name"], name=TEXT, value=TEXT)),
        numNodes=COUNT,
        numProcPerNode=COUNT,
        resourcesPerNode=closed([], limits=AMOUNTS, requests=AMOUNTS),
    ),
    suspend={"type": "boolean"},
    activeDeadlineSeconds=COUNT,
)
SPECS = {"TrainingRuntime": RUNTIME, "TrainJob": TRAIN_JOB}


def check(document: dict[str, Any]) -> None:
    version = {"const": "trainer.kubeflow.org/v1alpha1"}
    whole = closed(
        ["apiVersion", "kind", "metadata", "spec"],
        apiVersion=version,
        kind={"enum": [*SPECS]},
        metadata=META,
        spec=SPECS.get(document.get("kind", ""), False),
    )
    validate(document, whole)


@pytest.fixture
def documents() -> dict[str, Any]:
    """The documents of the example, by kind."""
    text = (ROOT / "examples" / "kubernetes" / "train.yaml").read_text(encoding="utf-8")
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def test_the_kubernetes_example_is_a_runtime_and_its_job(documents: dict[str, Any]) -> None:
    assert {*documents} == {*SPECS}
    for document in documents.values():
        check(document)
    runtime, job = documents["TrainingRuntime"], documents["TrainJob"]["spec"]
    assert job["runtimeRef"] == {
        "apiGroup": "trainer.kubeflow.org",
        "kind": runtime["kind"],
        "name": runtime["metadata"]["name"],
    }
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    # The trainer replaces image and command of the container `node` in the job with this label.
    assert replicated["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    pod = replicated["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["name"] == "node"
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_the_kubernetes_example_starts_a_training_with_a_rank_for_each_gpu(documents: dict[str, Any]) -> None:
    trainer = documents["TrainJob"]["spec"]["trainer"]
    assert trainer["command"] == ["torchrun"]
    assert trainer["args"][:2] == ["-m", "graphpipe"]
    args, rest = make_parser().parse_known_args(trainer["args"][2:])
    assert (args.config, rest) == ("/work/train.toml", [])
    resources, (container,) = trainer["resourcesPerNode"], containers(documents)
    ranks = int(resources["limits"]["nvidia.com/gpu"])
    assert trainer["numProcPerNode"] == ranks
    threads = {each["name"]: each["value"] for each in container["env"]}["OMP_NUM_THREADS"]
    assert int(threads) * ranks == int(resources["requests"]["cpu"])
    runs = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}["runs"]
    assert f"run.directory={runs}" in trainer["args"]


def containers(documents: dict[str, Any]) -> Any:
    (replicated,) = documents["TrainingRuntime"]["spec"]["template"]["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]["template"]["spec"]["containers"]


@pytest.mark.parametrize("wrong", ["numNode", "numProcPerNode", "resources"])
def test_the_check_finds_wrong_fields(documents: dict[str, Any], wrong: str) -> None:
    documents["TrainJob"]["spec"]["trainer"][wrong] = "8"
    with pytest.raises(ValidationError):
        check(documents["TrainJob"])


# torchx.components.dist.ddp (torchx 0.7), and the options of `torchx run` before the name of a component.
DDP_OPTIONS = {"--script", "-m", "--image", "--name", "-h", "--cpu", "--gpu", "--memMB", "-j", "--env", "--metadata"}
DDP_OPTIONS |= {"--max_retries", "--rdzv_port", "--rdzv_backend", "--rdzv_conf", "--mounts", "--debug", "--tee"}


def test_the_torchx_example_starts_a_training_with_a_rank_for_each_gpu(tmp_path: Path) -> None:
    (tmp_path / "torchx").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "torchx").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "NODES": "2", "SCHEDULER": "slurm", "CORES": "32"}
    command = ["bash", str(ROOT / "examples" / "torchx" / "train.sh"), "train.toml", "train.steps=5"]
    words = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert words[:4] == ["run", "--scheduler", "slurm", "dist.ddp"]
    middle = words.index("--")
    options = dict(zip(words[4:middle:2], words[5:middle:2], strict=True))
    assert {*options} <= DDP_OPTIONS
    assert options["-m"] == "graphpipe"
    assert options["-j"] == "2x8"
    assert (options["--gpu"], options["--env"]) == ("8", "OMP_NUM_THREADS=4")
    args, rest = make_parser().parse_known_args(words[middle + 1 :])
    assert (args.config, args.overrides, rest) == ("train.toml", ["train.steps=5"], [])
