"""Second derivatives, by torch's own ops, of modules that are one step of autograd."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from ..autograd import of_batch


def differentiated_by(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Make the `backward` of a function of autograd differentiable by means of `forward`.

    The function is applied to ``ctx.call``, which has no tensors, and to the tensors that are saved
    first. `forward` computes the same from these by torch's own ops. It is called where gradients
    need gradients, and inside transforms of torch.func.
    """

    def decorate(backward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(backward)
        def recorded(ctx: Any, *incoming: Any) -> Any:
            create, needed = torch.is_grad_enabled(), ctx.needs_input_grad[1:]
            if not (create or torch._C._are_functorch_transforms_active()):
                return of_batch(lambda *each: backward(ctx, *each), *incoming)
            with torch.enable_grad():
                # These are new tensors, as a saved one may depend on another.
                saved = ctx.saved_tensors[: len(needed)]
                given: list[Any] = [None if t is None else t.view_as(t) for t in saved]
                results = forward(ctx.call, *given)

            def gradients(*each: Any) -> Any:
                wanted = [t for t, needs in zip(given, needed, strict=True) if needs]
                options = {"create_graph": create, "retain_graph": True, "allow_unused": True}
                found = iter(torch.autograd.grad(results, wanted, each, **options))
                return None, *(next(found) if needs else None for needs in needed)

            return of_batch(gradients, *incoming)

        return recorded

    return decorate
