"""The worst line of a profile, and the remedy that comes with it."""

from graphpipe.costs import CostTable, Curve, OpCost
from graphpipe.profiler.fitting.fit_quality import fit_quality


def table(errors: dict[str, float | None]) -> CostTable:
    rows = [
        OpCost(
            op=op,
            device_type="cpu",
            forward=Curve(lines=((0.0, 1.0),)),
            input_gradient=Curve(lines=((0.0, 2.0),)),
            weight_gradient=Curve(lines=((0.0, 1.0 if op == "a" else 13.0),)),
            source="profiled",
            error=error,
        )
        for op, error in errors.items()
    ]
    return CostTable(rows=tuple(rows), graph_fingerprint="", state_bytes_per_parameter_byte=4.0)


def test_a_small_error_needs_no_remedy() -> None:
    quality = fit_quality(table({"a": 0.05, "b": 0.2}), (1, 2, 8))
    assert quality is not None
    assert quality.sentence == "largest error of a fitted curve 20.0%"


def test_a_large_error_names_the_operator_its_share_and_a_remedy() -> None:
    quality = fit_quality(table({"a": 0.522, "b": 0.1}), (8, 1, 2))
    assert quality is not None
    assert quality.sentence == (
        "largest error of a fitted curve 52.2% (operator 'a', 20.0% of all seconds): its times are not on a "
        "convex curve. Profile again at the micro-batch sizes that you will use, such as --samples 2,8"
    )
    fewer = fit_quality(table({"a": 0.522, "b": 0.1}), (2, 8))
    assert fewer is not None
    assert fewer.sentence.endswith("--samples 8")


def test_nothing_was_measured() -> None:
    assert fit_quality(table({"a": None}), (1,)) is None
