"""The Dockerfile and the environment of conda, checked without either: what they name is there, and is declared."""

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
STEPS = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def steps(word: str) -> list[str]:
    return re.findall(rf"^{word} (.*)$", STEPS, re.MULTILINE)


def test_what_is_copied_is_there_and_enough_to_build() -> None:
    copied = {source for step in steps("COPY") for source in shlex.split(step)[:-1]}
    assert all((ROOT / source).exists() for source in copied)
    read = set(re.findall(r"[\"'](\w+\.\w+)[\"']", (ROOT / "setup.py").read_text(encoding="utf-8")))
    assert {name for name in read if (ROOT / name).is_file()} <= copied
    assert {"pyproject.toml", "setup.py", "graphpipe", "examples"} <= copied


def test_what_it_installs_is_declared_and_not_for_cpus(project: dict[str, Any]) -> None:
    asked = re.findall(r"'\.\[(.*?)\]'", STEPS)
    assert asked
    assert {extra for some in asked for extra in some.split(",")} <= {*project["optional-dependencies"]}
    (constraints,) = re.findall(r"--constraint (\S+)", STEPS)
    assert "+cpu" not in (ROOT / constraints).read_text(encoding="utf-8")
    assert "--index-url" not in STEPS


def test_its_python_is_new_enough_and_it_starts_the_command(project: dict[str, Any]) -> None:
    assert steps("FROM") == ["ubuntu:24.04"]  # with Python 3.12
    assert project["requires-python"] == ">=3.11"
    assert steps("ENTRYPOINT") == ['["graphpipe"]']
    assert "graphpipe" in project["scripts"]


def test_the_environment_of_conda_names_what_there_is(project: dict[str, Any]) -> None:
    described = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    python, pip, from_pip = described["dependencies"]
    assert pip == "pip"
    assert tuple(map(int, python.removeprefix("python=").split("."))) >= (3, 11)
    constraint, own = from_pip["pip"]
    assert (ROOT / constraint.removeprefix("--constraint ")).is_file()
    (extras,) = re.fullmatch(r"\.\[(.*)\]", own).groups()  # type: ignore[union-attr]
    assert {*extras.split(",")} <= {*project["optional-dependencies"]}


DEVCONTAINER = ROOT / ".devcontainer" / "devcontainer.json"
# containers.dev/implementors/json_reference: the properties that this file uses, with their types.
PROPERTIES = {
    "name": str,
    "build": dict,
    "hostRequirements": dict,
    "runArgs": list,
    "overrideCommand": bool,
    "postCreateCommand": str,
    "customizations": dict,
}


def test_the_dev_container_is_built_from_the_dockerfile(project: dict[str, Any]) -> None:
    container = json.loads(DEVCONTAINER.read_text(encoding="utf-8"))
    assert {name: type(value) for name, value in container.items()} == PROPERTIES
    assert (DEVCONTAINER.parent / container["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"
    assert (DEVCONTAINER.parent / container["build"]["context"]).resolve() == ROOT
    assert container["hostRequirements"]["gpu"] in (True, False, "optional")
    words = shlex.split(container["postCreateCommand"])
    assert words[:2] == ["pip", "install"]
    assert (ROOT / words[words.index("--constraint") + 1]).is_file()
    (extra,) = re.findall(r"\.\[(\w+)\]", words[-1])
    assert extra in project["optional-dependencies"]
    # The container stays open: the image's own command would end with the doctor.
    assert container["overrideCommand"]
    (venv,) = re.findall(r"python3 -m venv (\S+)", STEPS)
    assert container["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"] == f"{venv}/bin/python"
