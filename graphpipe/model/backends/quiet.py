"""Keeps the remarks of compilers from the user's screen."""

import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def quiet_compiler() -> Generator[None]:
    """Hide warnings and log lines up to level WARNING in here.

    Exporters to ONNX and OpenVINO write about ten lines for each region, about their own future and about packages they
    do not need. A search compiles hundreds of regions. Errors are still logged. What cannot be compiled still raises.
    """
    level = logging.root.manager.disable
    logging.disable(max(level, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
