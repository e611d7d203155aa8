"""One rank of `graphpipe infer`: reads all requests, and writes the answers if it hosts the output stage."""

from contextlib import nullcontext
from itertools import islice
from pathlib import Path

from graphpipe.inference.job import InferenceJob
from graphpipe.inference.journal import Journal, count_answers, title_of
from graphpipe.inference.load_model import load_model, source_of
from graphpipe.inference.read_requests import read_requests
from graphpipe.model.capture.capture import Captured
from graphpipe.model.capture_file.capture_file import load_capture
from graphpipe.plans import Plan
from graphpipe.run.comm.collective_calls import wait_for_ranks
from graphpipe.run.faults.fault import parse_faults
from graphpipe.run.inference.inference_pipeline import InferencePipeline
from graphpipe.run.step.pipeline_options import PipelineOptions
from graphpipe.waiting import waiting

JOB, PLAN, CAPTURE, FAULTS = "job.json", "plan.json", "capture.json", "faults.jsonl"
"""The files of the folder that local ranks start from."""


def answer_from_folder(directory: str) -> None:
    """Answer on this rank by the files of a folder. Local ranks start here."""
    folder = Path(directory)
    job, plan = InferenceJob.load(folder / JOB), Plan.load(folder / PLAN)
    answer_on_rank(job, plan, load_capture(folder / CAPTURE, plan.graph), fault_log=folder / FAULTS)


def title(job: InferenceJob, plan: Plan) -> str:
    """Return the title of a job's journal."""
    return title_of(job.model, job.data, job.weights or "", str(_samples(job, plan)), plan.graph.fingerprint)


def answer_on_rank(job: InferenceJob, plan: Plan, captured: Captured | None, *, fault_log: Path | None = None) -> bool:
    """Answer the requests that have no answer in the journal, and return whether the answers are written here.

    Every rank calls this.

    Raises:
        InvalidInput: the plan does not fit the model or the number of ranks, or the requests cannot be read.
        PeerLost, PeerStalled: another rank is gone.
    """
    with waiting("loading the model"):
        module = load_model(job.model, job.folder, job.weights).module
    options = PipelineOptions(
        captured=captured,
        timeout_seconds=job.timeout_seconds,
        faults=parse_faults(job.faults),
        fault_log=fault_log,
        initial_weights=source_of(module, job.folder, job.weights),
    )
    with InferencePipeline(plan, module, options=options) as pipeline:
        # One rank counts for all, because the journal may grow while another rank still reads it.
        main = pipeline.world.rank == 0
        done = wait_for_ranks(pipeline.world, lambda: count_answers(job.journal_path, title(job, plan)) if main else 0)[
            0
        ]
        requests = read_requests(job.data, Path(job.folder), plan.graph.inputs, _samples(job, plan))
        journal = Journal(job.journal_path, title(job, plan)) if pipeline.answers else nullcontext()
        with journal:
            for answer in pipeline.map(islice(requests, done, None)):
                if isinstance(journal, Journal):
                    assert answer is not None, "this rank answers"
                    journal.append(answer)
    return pipeline.answers


def _samples(job: InferenceJob, plan: Plan) -> int:
    return job.request_samples or plan.batch_size
