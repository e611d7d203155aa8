"""Remarks of compilers: `graphpipe place` printed pages of them, ten lines for each region."""

import logging
import warnings
from collections.abc import Generator

import pytest

from graphpipe.model.quiet import quiet_compiler

LOG = logging.getLogger("another.compiler")


@pytest.fixture
def logged() -> Generator[list[str]]:
    """Return the messages that are logged. Pytest's own `caplog` costs a millisecond at each of some thousand tests."""
    messages: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    LOG.addHandler(handler := Handler())
    yield messages
    LOG.removeHandler(handler)


def test_warnings_are_hidden_and_errors_are_not(logged: list[str]) -> None:
    with warnings.catch_warnings(record=True) as seen, quiet_compiler():
        warnings.warn("this will change", FutureWarning, stacklevel=1)
        LOG.warning("a package is not installed")
        LOG.error("the compiler is broken")
    assert not seen
    assert logged == ["the compiler is broken"]


@pytest.mark.parametrize("before", [logging.NOTSET, logging.ERROR])
def test_what_was_hidden_before_stays_so(before: int, logged: list[str]) -> None:
    logging.disable(before)
    try:
        with quiet_compiler():
            LOG.error("within")
        with pytest.raises(RuntimeError), quiet_compiler():
            raise RuntimeError("cannot compile")
        LOG.warning("after")
    finally:
        logging.disable(logging.NOTSET)
    assert logged == (["within", "after"] if before == logging.NOTSET else [])
