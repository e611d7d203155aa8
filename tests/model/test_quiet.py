"""Remarks of compilers: `graphpipe place` printed pages of them, ten lines for each region."""

import logging
import warnings

import pytest

from graphpipe.model.quiet import quiet_compiler

LOG = logging.getLogger("another.compiler")


def test_warnings_are_hidden_and_errors_are_not(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings(record=True) as seen, quiet_compiler():
        warnings.warn("this will change", FutureWarning, stacklevel=1)
        LOG.warning("a package is not installed")
        LOG.error("the compiler is broken")
    assert not seen
    assert caplog.messages == ["the compiler is broken"]


@pytest.mark.parametrize("before", [logging.NOTSET, logging.ERROR])
def test_what_was_hidden_before_stays_so(before: int, caplog: pytest.LogCaptureFixture) -> None:
    logging.disable(before)
    try:
        with quiet_compiler():
            LOG.error("within")
        with pytest.raises(RuntimeError), quiet_compiler():
            raise RuntimeError("cannot compile")
        LOG.warning("after")
    finally:
        logging.disable(logging.NOTSET)
    assert caplog.messages == (["within", "after"] if before == logging.NOTSET else [])
