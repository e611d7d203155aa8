"""The table of a placement of forwards, input gradients and weight gradients, and what it gains."""

from typing import Any

from graphpipe.report.tables.styled_table import Column, FittingTable
from graphpipe.schedule.gradient_tasks.rounds import Rounds
from graphpipe.simulator.round_seconds import round_seconds
from graphpipe.units import format_bytes, format_seconds

_HEADINGS = ("forwards", "input gradients", "weight gradients")
_MOST = 3
"""Most layers that a cell names."""


def gradients_table(rounds: Rounds) -> FittingTable:
    """Return a row for each device: its tasks, and the seconds and bytes that they take."""
    names = [device.name for device in rounds.work.model.cluster.devices]
    return FittingTable(
        title="gradients apart: the tasks of each device",
        columns=(
            Column(heading="device", right=False),
            *(Column(heading=word, right=False, wraps=True) for word in _HEADINGS),
            Column(heading="busy"),
            Column(heading="memory", spare=1),
        ),
        rows=[
            [
                names[device],
                *(_cell(rounds, device, kind) for kind in "FIW"),
                format_seconds(rounds.seconds(device)),
                format_bytes(rounds.memory_bytes(device)),
            ]
            for device in rounds.orders
        ],
    )


def gradients_line(rounds: Rounds, plan_seconds: float) -> str:
    """Return what the placement gains and gives up, in a sentence.

    Args:
        rounds: the placement.
        plan_seconds: per mini-batch, of the plan's stages.
    """
    period, late = round_seconds(rounds), max(_delays(rounds), default=0)
    busiest = max(rounds.sent_bytes().values(), default=0.0)
    updates = "1 update" if late == 1 else f"{late} updates"
    return (
        f"gradients apart: a mini-batch every {format_seconds(period)}, {plan_seconds / period:.2f} times as fast as "
        f"the stages of the plan; weights are up to {updates} older; the busiest link carries {format_bytes(busiest)} "
        f"per mini-batch (simulated; train.gradients_apart=stash trains so)"
    )


def gradients_body(rounds: Rounds) -> dict[str, Any]:
    """Return the same as JSON."""
    return {
        "period_seconds": round_seconds(rounds),
        "layers": [list(ops) for ops in rounds.work.layers],
        "delay_updates": _delays(rounds),
        "devices": [
            {
                "device": device,
                "tasks": [f"{task.kind}{task.layer}" for task in order],
                "busy_seconds": rounds.seconds(device),
                "memory_bytes": rounds.memory_bytes(device),
            }
            for device, order in rounds.orders.items()
        ],
    }


def _delays(rounds: Rounds) -> list[int]:
    return [rounds.delay(layer) for layer in range(len(rounds.work.layers))]


def _cell(rounds: Rounds, device: int, kind: str) -> str:
    layers = [rounds.work.layers[task.layer][0] for task in rounds.orders[device] if task.kind == kind]
    more = f" and {len(layers) - _MOST} more" if len(layers) > _MOST else ""
    return ", ".join(layers[:_MOST]) + more
