"""Devices that host the same stages. They have the same tasks, so one of them stands for all."""

from dataclasses import dataclass

from graphpipe.plans import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """The replicas of a stage, or of several stages that share their devices."""

    name: str
    """The names of the group's stages, and how many devices there are: `s0 × 2`."""
    stages: tuple[int, ...]
    devices: tuple[int, ...]


def device_groups(plan: Plan) -> list[DeviceGroup]:
    """Return the groups of a plan, in the order of their first stages."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for device in plan.used_devices:
        hosted = tuple(number for number, stage in enumerate(plan.stages) if device in stage.devices)
        groups.setdefault(hosted, []).append(device)
    return [
        DeviceGroup(name=_name(plan, hosted, len(devices)), stages=hosted, devices=tuple(devices))
        for hosted, devices in sorted(groups.items())
    ]


def _name(plan: Plan, hosted: tuple[int, ...], count: int) -> str:
    stages = " + ".join(plan.stages[number].name for number in hosted)
    return f"{stages} × {count}" if count > 1 else stages
