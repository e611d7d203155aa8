"""The pictures of the planners' and schedules' pages, drawn while the site is built: a hook of mkdocs."""

from pathlib import Path
from tempfile import TemporaryDirectory

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import graphpipe as gp
from graphpipe.model.zoo.registry import load
from graphpipe.plan.registry import PLANNERS
from graphpipe.report.still import write_still
from graphpipe.report.subject import Subject
from graphpipe.schedule.registry import SCHEDULERS
