"""What can go wrong on a simulated device, as plain data: `KIND[@DEVICE]:ARGUMENT[:...]`, several with commas between.

    oom:K            the K-th allocation fails once, out of memory
    cublas:K         the same in the words of cuBLAS on a full card, an internal error
    nvml:K           the same in the words of torch where NVML cannot answer, a failed assertion
    oom-over:SIZE    every allocation of more than SIZE fails, out of memory
    fragment:SIZE    while anything is allocated, SIZE of the device is reserved and useless
    leak:SIZE        SIZE stays allocated for good from the first clean-up (`reclaim`) after something was computed
    other:SIZE:K[:M][:PID][:USER]
                     another process holds SIZE, or what is free of it, from the K-th to the M-th allocation
    lose:K           the device is lost at its K-th allocation: from then on every operation on it fails
    assert:K         the same by an assertion in a kernel: the work is to blame, or so it seems
    attach:N         the first N allocations fail, out of memory: so do the first N tries to attach weights, which come
                     before anything else
    nan:K            what the K-th allocation holds is filled with NaN, if it is of a floating type
    skew:N           during the first N canaries the device computes wrongly
    lag:SECONDS      a clean-up takes that long, as if the driver noticed late what was given back

DEVICE is `cuda:1` or `1`; without it the fault strikes every device, each on its own count. Allocations are counted
from 1, failed ones too, but not those of canaries, which only `skew` strikes. A SIZE is that of the device (`800MiB`),
where float32 of the host counts half.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from interlock.engine.errors import UsageError
from interlock.engine.record.facts import Tenant
from interlock.engine.record.words import parse_bytes

MENU = {
    "oom": "K",
    "cublas": "K",
    "nvml": "K",
    "oom-over": "SIZE",
    "fragment": "SIZE",
    "leak": "SIZE",
    "other": "SIZE:K[:M][:PID][:USER]",
    "lose": "K",
    "assert": "K",
    "attach": "N",
    "nan": "K",
    "skew": "N",
    "lag": "SECONDS",
}


@dataclass(frozen=True)
class Fault:
    """One of the menu: `size` is SIZE, `first` is K or N, `last` is M, as far as its kind has them."""

    kind: str
    device: str | None = None
    size: int = 0
    first: int = 0
    last: float = math.inf
    seconds: float = 0.0
    pid: int = 0
    user: str = ""


def parse(text: str) -> list[Fault]:
    """Read the faults that a text names, in its order. Raises UsageError for one that is not on the menu."""
    return [_fault(item.strip()) for item in text.split(",") if item.strip()]


class DeviceFaults:
    """The faults that strike one device. Pure: answers by an allocation's number and size."""

    def __init__(self, faults: Sequence[Fault], device: str) -> None:
        own = [fault for fault in faults if fault.device in (None, device)]
        self._by_kind = {kind: [fault for fault in own if fault.kind == kind] for kind in MENU}
        self.scattered = sum(fault.size for fault in self._by_kind["fragment"])
        self.leaked = sum(fault.size for fault in self._by_kind["leak"])
        self.lag = max((fault.seconds for fault in self._by_kind["lag"]), default=0.0)

    def short(self, number: int, size: int) -> str:
        """In whose words this allocation is refused, whatever is free: `oom`, `cublas`, `nvml`; empty if it is not."""
        if any(size > fault.size for fault in self._by_kind["oom-over"]):
            return "oom"
        if any(number <= fault.first for fault in self._by_kind["attach"]):
            return "oom"
        kinds = ("oom", "cublas", "nvml")
        return next((kind for kind in kinds if any(number == fault.first for fault in self._by_kind[kind])), "")

    def loses(self, number: int) -> str:
        """Name the fault by which the device is lost: `lose` or `assert`; empty while it is there."""
        kinds = ("lose", "assert")
        return next((kind for kind in kinds if any(number >= fault.first for fault in self._by_kind[kind])), "")

    def skews(self, canary: int) -> bool:
        return any(canary <= fault.first for fault in self._by_kind["skew"])

    @property
    def any(self) -> bool:
        return any(self._by_kind.values())

    def spoils(self, number: int) -> bool:
        return any(number == fault.first for fault in self._by_kind["nan"])

    @property
    def crowded(self) -> bool:
        """Whether another process is there at all."""
        return bool(self._by_kind["other"])

    def others(self, number: int) -> int:
        """Bytes that other processes want to hold at this allocation."""
        return sum(fault.size for fault in self._others(number))

    def holders(self, number: int, most: int) -> tuple[Tenant, ...]:
        """Name the other processes that have a number, which hold `most` bytes each."""
        named = [fault for fault in self._others(number) if fault.pid]
        return tuple(Tenant(each.pid, bytes=min(most, each.size), user=each.user) for each in named)

    def _others(self, number: int) -> list[Fault]:
        return [fault for fault in self._by_kind["other"] if fault.first <= number <= fault.last]


def _fault(item: str) -> Fault:
    match = re.fullmatch(r"([a-z-]+)(?:@(?:cuda:)?([0-9]+))?:(.+)", item)
    if not match or match[1] not in MENU:
        raise _unknown(item, "unknown kind")
    kind, device, arguments = match[1], match[2], match[3].split(":")
    try:
        values = _values(MENU[kind], arguments)
    except ValueError as error:
        raise _unknown(item, str(error)) from None
    return Fault(kind, None if device is None else f"cuda:{int(device)}", **values)


def _values(pattern: str, arguments: Sequence[str]) -> dict[str, Any]:
    names = re.findall(r"\w+", pattern)
    if not len(names) - pattern.count("[") <= len(arguments) <= len(names):
        raise ValueError(f"expected {pattern}")
    values = dict(_value(name, text) for name, text in zip(names, arguments, strict=False))
    if float(values.get("last", math.inf)) < float(values.get("first", 0)):
        raise ValueError("expected M of K or more")
    return values


def _value(name: str, text: str) -> tuple[str, int | float | str]:
    fields = {"SIZE": "size", "K": "first", "N": "first", "M": "last", "SECONDS": "seconds"}
    field = fields.get(name, name.lower())
    if name == "SIZE":
        value: int | float | str = parse_bytes(text)
    elif name == "USER":
        value = text
    elif re.fullmatch(r"[0-9]+" if name != "SECONDS" else r"[0-9]+(\.[0-9]+)?", text):
        value = float(text) if name == "SECONDS" else int(text)
    else:
        raise ValueError(f"expected a number for {name}, got {text!r}")
    if not value:
        raise ValueError(f"expected {name} above 0")
    return field, value


def _unknown(item: str, why: str) -> UsageError:
    menu = ", ".join(f"{kind}:{arguments}" for kind, arguments in MENU.items())
    return UsageError(f"fault {item!r}: {why}; available: {menu}; KIND@cuda:1:... affects one device")
