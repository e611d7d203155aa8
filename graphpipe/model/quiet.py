"""Keeps the remarks of exporters and compilers from the user's screen."""

import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO

_NOISY = ("torch.fx", "torch.export", "torch._export", "torch._dynamo", "torch._subclasses")
"""Loggers that repeat at length, some with a traceback, what the exception contains."""


@contextmanager
def quiet_export() -> Generator[None]:
    """Stop torch from logging and printing: the exception contains what matters."""
    loggers = [logging.getLogger(name) for name in _NOISY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


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
