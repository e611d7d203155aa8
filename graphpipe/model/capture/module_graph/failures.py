"""Why a module cannot be captured, and what the user can change."""

import re
from collections.abc import Sequence
from traceback import walk_tb
from types import FrameType

from torch import nn

from graphpipe.errors import InvalidInput
from graphpipe.model.kept_attributes import module_key
from graphpipe.model.sample_rows import OnePart, OneSample
from graphpipe.model.torch_private import is_data_dependent
from graphpipe.user_frames import describe_error, shown_place

_UNKNOWN_TYPE = re.compile(r"Found <class '(.+?)'> in output, which is not a known type")
_SAMPLES = re.compile(r"\bs\d+\b")
"""How torch.export writes the number of samples, which is variable."""
_FIXED = "Constraints violated (batch)"
"""What torch.export says if a forward made a plain number of it."""

_CALL = "Trying to backward through graphpipe.call"
"""What torch says if a forward asks autograd for gradients through a submodule that is called as one operator."""

_DIFFERENTIATES = "computes gradients through its submodules"


class CannotExpress(Exception):
    """A forward does something that glue operators cannot express; its module must be opaque.

    Args:
        path: of the submodule, "" for the model itself.
        reason: completes the sentence "the forward of ...".
        remedy: what the user can do, if that is not to move this part into a submodule.
        follow: whether glue could express it if the forward were followed. The submodule is whole so far.
    """

    def __init__(self, path: str, reason: str, remedy: str = "", *, follow: bool = False) -> None:
        super().__init__(path, reason)
        self.follow = follow
        self.path = path
        self.reason = reason
        self.remedy = remedy


class ExportFailed(Exception):
    """torch.export failed."""


class OtherOperators(ValueError):
    """A submodule runs other operators for another number of samples."""


def fixes_samples(error: Exception) -> bool:
    """Whether a forward made a plain number of the number of samples."""
    return _FIXED in str(error)


def failing_submodule(error: Exception, fake: nn.Module, opaque: Sequence[str]) -> str:
    """Return the innermost submodule whose forward failed, "" if none or an opaque one did.

    Args:
        error: of tracing.
        fake: the model that was traced.
        opaque: the submodules that were called whole.
    """
    known = {module_key(module): path for path, module in fake.named_modules()}
    frames = [first_argument(frame) for frame, _ in walk_tb(error.__traceback__)]
    keys = [module_key(each) for each in reversed(frames) if isinstance(each, nn.Module)]
    paths = [known[key] for key in keys if key in known]
    whole = [path for path in paths if any(path == each or path.startswith(each + ".") for each in opaque)]
    if _CALL in str(error):  # That is no fault of what was called.
        paths = [path for path in paths if path not in whole]
    return paths[0] if paths and paths[0] not in whole else ""


def why_untraced(error: Exception) -> str:
    """Return why the forward of a submodule cannot be traced."""
    return f"it {_DIFFERENTIATES}" if _CALL in str(error) else describe_error(error)


def returned_type(error: Exception) -> str:
    """Return the name of the type that a model returned and that PyTorch cannot look into; else nothing."""
    found = _UNKNOWN_TYPE.search(str(error))
    return found[1].rpartition(".")[2] if found else ""


def first_argument(frame: FrameType) -> object:
    """Return the first argument of a function that is running, which is the module if it is a forward."""
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    return frame.f_locals.get(names[0]) if names else None


def cannot_express(module: nn.Module, fault: CannotExpress) -> InvalidInput:
    """Return the error for a forward that glue cannot express and that cannot be made opaque."""
    where = f"'{fault.path}'" if fault.path else f"{type(module).__name__}, the model itself,"
    remedy = "Move that part into a submodule (nn.Dropout instead of F.dropout): submodules are kept whole."
    if fault.path:
        remedy = f"Do not split '{fault.path}', or keep a submodule around it whole (opaque=[...])."
    what = f"the forward of {where} {fault.reason}{shown_place(fault)}"
    return InvalidInput(what, where="capture", remedy=fault.remedy or remedy)


def cannot_trace(module: nn.Module, error: Exception) -> InvalidInput:
    """Return the error for a model that does not run on fake tensors."""
    what, place = f"{type(module).__name__} cannot be traced", shown_place(error)
    if is_data_dependent(error):
        return InvalidInput(
            f"{what}: its forward decides by the values in a tensor{place}, which do not exist before it runs",
            where="capture",
            remedy="Use torch.where instead of `if`, and tensors instead of .item(), int() and .numpy(), or move this "
            "part into a submodule: submodules are kept whole.",
        )
    if name := returned_type(error):
        if name in (OneSample.__name__, OnePart.__name__):
            return InvalidInput(
                f"{what}: it returns a list with an entry for each sample, whose number is not known before it runs",
                where="capture",
                remedy="Return one tensor for all samples.",
            )
        return InvalidInput(
            f"{what}: it returns a {name}, a type that PyTorch cannot look into",
            where="capture",
            remedy="Return tensors, tuples, lists, dicts or a dataclass.",
        )
    if fixes_samples(error):
        return InvalidInput(
            f"{what}: its forward makes a plain number of the number of samples, which is variable",
            where="capture",
            remedy="Do not loop over range(x.shape[0]), and use x.shape[0] instead of int(x.shape[0]).",
        )
    if _CALL in str(error):
        return InvalidInput(
            f"{what}: its forward {_DIFFERENTIATES}{place}",
            where="capture",
            remedy="Move that part into a submodule: submodules are kept whole.",
        )
    if isinstance(error, OtherOperators):
        return InvalidInput(
            f"{what}: {error}{place}",
            where="capture",
            remedy="Do not branch on the number of samples. If it keeps values of earlier samples, capture the model "
            "before its first forward. Or declare the graph with a DagModule.",
        )
    remedy = (
        "If plain PyTorch runs it, keep the submodule at fault whole (opaque=[...]), or declare the graph with a "
        "DagModule."
    )
    reason = _SAMPLES.sub("samples", describe_error(error).removeprefix("RuntimeError: "))
    return InvalidInput(f"{what}: {reason}", where="capture", remedy=remedy)
