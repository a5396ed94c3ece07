"""A torch device without a solver, for tests: "elsewhere", whose operations the CPU does.

It is a real device as far as torch knows: tensors say so, dispatch and autograd treat them as such, and they must not
be mixed with those of the CPU. Like Apple's MPS, it has no float64. Importing this registers it for the rest of the
process.
"""

import functools

import torch
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "elsewhere"
_hosts = {}  # storage of a tensor of the device: the tensor of the CPU that has its values


def _key(tensor):
    return tensor.untyped_storage()._cdata


def _to_device(host):
    if host.dtype == torch.float64:
        raise TypeError(f"{NAME} has no float64.")
    tensor = torch._C._acc.create_empty_tensor(host.shape, host.dtype)
    _hosts[_key(tensor)] = host, tensor.untyped_storage()  # which keeps the storage's address from being used again
    return tensor


def _is_there(tensor):
    return isinstance(tensor, torch.Tensor) and tensor.device.type == NAME


def _on_host(argument):
    if isinstance(argument, torch.device):
        return torch.device("cpu") if argument.type == NAME else argument
    return _hosts[_key(argument)][0] if _is_there(argument) else argument


def _run(function, *arguments, **options):
    """Any operator, on the CPU."""
    name = function._schema.name
    tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
    # To every device, 0-d tensors of the CPU are numbers. Others are an error.
    if name != "aten::_copy_from" and len({each.device for each in tensors if each.ndim}) > 1:
        raise RuntimeError(f"{name} got tensors of {NAME} and of the CPU.")
    if name == "aten::_copy_from":
        _on_host(arguments[1]).copy_(_on_host(arguments[0]))
        return arguments[1]
    result = function(*tree_map(_on_host, arguments), **tree_map(_on_host, options))
    if function._schema.is_mutable:
        assert arguments[0].shape == _on_host(arguments[0]).shape, f"{name} changed the shape of a tensor"
        return arguments[0]
    if torch.device(options.get("device") or NAME).type != NAME:
        return result
    return tree_map(lambda each: _to_device(each) if isinstance(each, torch.Tensor) else each, result)


_setup_privateuseone_for_python_backend(NAME)
_library = torch.library.Library("_", "IMPL")
_library.fallback(_run, "PrivateUse1")
# What torch does for all devices alike may use variants that change the shape of a result, which ours cannot.
_aten = torch.library.Library("aten", "IMPL")
for _name in torch._C._dispatch_get_registrations_for_dispatch_key("CompositeExplicitAutograd"):
    if _name.startswith("aten::"):
        _packet, _, _overload = _name.removeprefix("aten::").partition(".")
        _function = getattr(getattr(torch.ops.aten, _packet), _overload or "default")
        if not _function._schema.is_mutable:
            _aten.impl(_function, functools.partial(_run, _function), "PrivateUse1")
