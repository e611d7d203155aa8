"""Checks which optional extras are installed."""

from collections.abc import Mapping

from graphpipe.doctor.finding import Finding
from graphpipe.versions import PACKAGE, versions

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "report": ("plotly", "matplotlib"),
    "mlflow": ("mlflow",),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "transformers": ("transformers",),
    "trainer": ("transformers", "accelerate"),
    "lightning": ("lightning",),
    "onnxruntime": ("onnxruntime", "onnx", "onnxscript"),
    "openvino": ("openvino",),
}
"""The packages of each extra that a user may want."""


def check_extras() -> list[Finding]:
    """Return the installed packages of each extra. A missing extra is not a problem."""
    return [_check(extra, versions(packages)) for extra, packages in EXTRAS.items()]


def _check(extra: str, versions: Mapping[str, str]) -> Finding:
    packages = {name: version for name, version in versions.items() if name != "python"}
    missing = [name for name, version in packages.items() if version == "not installed"]
    what = ", ".join(f"{name} {version}" for name, version in packages.items())
    remedy = f"If you want it: pip install '{PACKAGE}[{extra}]'." if missing else ""
    return Finding(name=f"extra {extra}", status="fine", what=what, remedy=remedy)
