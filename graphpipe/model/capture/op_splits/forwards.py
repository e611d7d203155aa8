"""What the forwards of small modules do: whether one only concatenates, or uses its input only in a linear layer."""

from torch import fx, nn

_CONCATENATIONS = frozenset({"cat", "concat", "concatenate"})


def concatenates_last(module: nn.Module) -> bool:
    """True if a module's forward returns its inputs, in order, concatenated along their last dimension."""
    graph = _traced(module)
    if graph is None:
        return False
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    rest = [node for node in graph.nodes if node.op != "placeholder"]
    if len(rest) != 2 or rest[0].op != "call_function" or rest[1].args != (rest[0],):
        return False
    call = rest[0]
    tensors = call.args[0] if call.args else call.kwargs.get("tensors")
    listed = [*tensors] if isinstance(tensors, list | tuple) else [tensors]
    dimension = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim", 0)
    in_order = listed == placeholders and (isinstance(tensors, list | tuple) or _takes_any_number(placeholders))
    return in_order and getattr(call.target, "__name__", "") in _CONCATENATIONS and dimension == -1


def only_linear(module: nn.Module) -> str | None:
    """Return the linear layer that alone uses the input of a module's forward.

    Returns:
        The name of the child, which is called once. None if the input is used anywhere else, if the forward reads the
        layer's weight itself, or if it depends on the module's own mode (training or evaluation).
    """
    was = module.training
    graphs: list[fx.Graph | None] = []
    for module.training in (not was, was):  # of this module alone: its children follow their own modes
        graphs.append(_traced(module))
    return _user_of_input(module, graphs[1]) if str(graphs[0]) == str(graphs[1]) else None


def _user_of_input(module: nn.Module, graph: fx.Graph | None) -> str | None:
    placeholders = [node for node in graph.nodes if node.op == "placeholder"] if graph is not None else []
    if graph is None or len(placeholders) != 1:
        return None
    users = list(placeholders[0].users)
    if len(users) != 1 or users[0].op != "call_module" or users[0].args != (placeholders[0],) or users[0].kwargs:
        return None
    name = str(users[0].target)
    child = module.get_submodule(name)
    others = [node for node in graph.nodes if node is not users[0] and node.op in ("call_module", "get_attr")]
    again = any(str(node.target) == name or str(node.target).startswith(f"{name}.") for node in others)
    return name if isinstance(child, nn.Linear) and "." not in name and not again else None


def _traced(module: nn.Module) -> fx.Graph | None:
    try:
        return fx.Tracer().trace(module)
    except Exception:  # a forward may do anything
        return None


def _takes_any_number(placeholders: list[fx.Node]) -> bool:
    return len(placeholders) == 1 and str(placeholders[0].target).startswith("*")
