"""Which device is meant? One that torch knows and this machine has, or a reason why not."""

import torch

from keyhole.errors import KeyholeError


def require_device(device: str | torch.device) -> torch.device:
    """The device of that name, refused here rather than in the middle of long work."""
    try:
        place = torch.device(device)
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        unknown = str(error).startswith("Expected one of")  # followed by two lines of names
        reason = "torch knows no such device" if unknown else str(error).splitlines()[0].rstrip(".")
        raise KeyholeError(f"cannot compute on {str(device)!r}: {reason}. Leave it out to use the CPU.") from error
    if place.type == "meta":
        raise KeyholeError("cannot compute on 'meta': it holds no numbers. Leave it out to use the CPU.")
    return place
