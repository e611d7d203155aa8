"""What forwards that capture follows do besides computing values: a backward by hand, and data that are replaced.

Such a submodule stays whole, because its own code then runs in training. The model itself cannot stay whole.
"""

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from graphpipe.model.capture.module_graph.failures import CannotExpress, first_argument
from graphpipe.model.hidden.attribute_uses import attribute_uses
from graphpipe.model.hidden.watched_tensors import TensorUse, using_tensors, watched_tensors
from graphpipe.model.kept_attributes import module_key
from graphpipe.model.recorders import is_recorder
from graphpipe.model.torch_private import own_hooks
from graphpipe.user_frames import warn_user

CHANGE = (
    "Move that part into a submodule, and name it in `whole_batch`: it then runs once for each mini-batch. Or change "
    "the weight between steps."
)
"""What a user can do whose forward changes a weight."""
_REENTRANT = "Checkpoint with use_reentrant=False, whose backward is that of the forward."


@contextmanager
def effects_refused(fake: nn.Module, followed: Mapping[nn.Module, str]) -> Generator[None]:
    """While inside, a forward that is followed may not do what leaves no operator in a trace.

    Args:
        fake: the model that is traced.
        followed: the modules whose forwards become glue, with their paths.

    Raises:
        CannotExpress: a forward does, or a module has a hook that would not run.
    """
    for module, path in followed.items():
        check_hooks(module, path)
    faults: list[CannotExpress] = []
    names = {id(each): name for name, each in fake.named_parameters()}

    def refuse(reason: str, remedy: str = "") -> None:
        faults.append(CannotExpress(_path(followed), reason, remedy))
        raise faults[-1]

    def own_backward(name: str) -> None:
        if name == "CheckpointFunction":
            refuse("calls a reentrant checkpoint, which has a backward of its own", _REENTRANT)
        refuse(f"has a backward of its own ({name}), which a trace of the forward does not see")

    def new_data(tensor: Tensor) -> None:
        name = f"'{names[id(tensor)]}'" if id(tensor) in names else "a tensor"
        refuse(f"replaces the data of {name}, which a trace does not see", CHANGE)

    def new_parameter(module: nn.Module, name: str) -> None:
        if (path := paths.get(module_key(module))) is not None:
            refuse(f"replaces the weight '{f'{path}.{name}'.removeprefix('.')}'", CHANGE)

    def other_weights(path: str) -> None:
        refuse(f"calls '{path}' with other weights than its own (functional_call)")

    paths = {module_key(module): path for path, module in fake.named_modules()}
    use = TensorUse(
        own_backward=own_backward, new_data=new_data, new_parameter=new_parameter, other_weights=other_weights
    )
    with watched_tensors(), using_tensors(use):
        yield
    if faults:  # the forward has caught it
        raise faults[0]


def warn_of_counters(followed: Mapping[nn.Module, str]) -> None:
    """Warn of the first number or flag among the attributes of modules that their own forwards change and read."""
    # torch.export undoes what a forward does to attributes, so the code is read: a number that it sets and reads.
    for module, path in followed.items():
        uses = attribute_uses(type(module))
        for name, value in vars(module).items():
            if type(value) in (int, float, bool) and name in uses.stored & uses.read:
                whose = f"'{path}'" if path else "the model itself"
                warn_user(
                    f"the forward of {whose} changes '{name}' and reads it. A "
                    "pipeline follows this forward, and computes with the value that it had. Change it between steps, "
                    "and build a new pipeline; or do so in a submodule that stays whole (opaque=[...])."
                )
                return


def check_hooks(module: nn.Module, path: str) -> None:
    """Check that a module whose forward is followed has no hook that would not run.

    Raises:
        CannotExpress: it has one.
    """
    if own_hooks(module, backward=True):
        raise CannotExpress(path, "has a hook on its backward, which is run only for a whole submodule")
    if not path and any(not is_recorder(hook) for hook in own_hooks(module, backward=False)):
        raise CannotExpress(path, "has a hook, and a pipeline never calls the model itself")


def _path(followed: Mapping[nn.Module, str]) -> str:
    # The path of the innermost module whose forward is running, which is the first argument of the forward.
    paths = {module_key(module): path for module, path in followed.items()}
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        given = first_argument(frame)
        if isinstance(given, nn.Module) and module_key(given) in paths:
            return paths[module_key(given)]
        frame = frame.f_back
    return ""
