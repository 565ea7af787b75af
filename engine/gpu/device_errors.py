"""What an error of a computation means: memory was short, the device is lost, or (None) it is a mistake like any other.

Only what torch and the CUDA libraries are known to say is taken for a shortage. A `RuntimeError` that says something
else is a bug, and less memory would only hide it. Pure: it looks at the error's type and text, and touches no device.
"""

import errno
import re
from enum import StrEnum

import torch


class Trouble(StrEnum):
    """What somebody can do something about: give the device less work, or work elsewhere."""

    MEMORY = "memory"
    LOST = "lost"


_MEMORY = (
    "out of memory",  # torch's allocators for CUDA, HIP, XPU and MPS; "CUDA error:", "CUDA driver error:"; Triton
    "CUBLAS_STATUS_ALLOC_FAILED",  # the workspace of a GEMM (pytorch#128601)
    "CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate",  # what a full card says to a new handle
    "CUBLAS_STATUS_INTERNAL_ERROR when calling `cublas",  # of a GEMM on a full card; "a copy failed", says its manual
    "CUDNN_STATUS_ALLOC_FAILED",
    "No valid execution plans built",  # cuDNN's frontend, where no plan finds its workspace
    "CUDNN_STATUS_NOT_SUPPORTED",  # no engine whose workspace fits
    "handles_.at(",  # an expandable segment that could not grow (pytorch#188008)
    "CUDA driver error: device not ready",  # the same moment, in the driver's words (torch-max-mem#45)
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",  # on Windows
    "Cannot allocate memory",  # ENOMEM, of a mapping
)

# After these CUDA gives every later call of the process the same error ("the process must be terminated and
# relaunched", CUDA Runtime API, cudaError_t, whose numbers stand here), or there is no device any more. That no kernel
# fits the card ("no kernel image is available", "device kernel image is invalid") is a wrong build of torch, and an
# "invalid device ordinal" a wrong call: neither is a loss.
_LOST = (
    "unspecified launch failure",  # 719
    "an illegal memory access was encountered",  # 700
    "the launch timed out and was terminated",  # 702
    "device-side assert triggered",  # 710
    "hardware stack error",  # 714
    "an illegal instruction was encountered",  # 715
    "misaligned address",  # 716
    "operation not supported on global/shared address space",  # 717
    "invalid program counter",  # 718
    "uncorrectable ECC error",  # 214
    "uncorrectable NVLink error",  # 220
    "Invalid access of peer GPU memory over nvlink or a hardware error",  # 226
    "context is destroyed",  # 709
    "no CUDA-capable device is detected",  # 100
    "all CUDA-capable devices are busy or unavailable",  # 46
    "STATUS_EXECUTION_FAILED",  # cuBLAS and cuDNN: their kernel's launch failed
    "unknown error",  # 999: a card that fell off its bus
    "GPU is lost",
)

# What torch's allocator says instead of "out of memory" where NVML does not answer it: it asks only to tell who holds
# the card (`reportProcessMemoryInfo`). So on MIG slices, in some containers and on a Jetson (pytorch#112377, #185240).
_UNTOLD = r"NVML_SUCCESS == .*INTERNAL ASSERT FAILED at .*Allocator"
# Those of _LOST that a kernel brings about: what it was given may do so again on the next GPU.
_OWN_DOING = (
    "an illegal memory access was encountered",
    "device-side assert triggered",
    "hardware stack error",
    "an illegal instruction was encountered",
    "misaligned address",
    "operation not supported on global/shared address space",
    "invalid program counter",
)

_MEMORY_TEXT = re.compile("|".join([_UNTOLD, *map(re.escape, _MEMORY)]))
_LOST_TEXT = re.compile(rf"(?:CUDA|HIP|CUDNN)\b.*?(?:{'|'.join(map(re.escape, _LOST))})", re.IGNORECASE | re.DOTALL)


def classify(error: BaseException) -> Trouble | None:
    """Say what `error` means for a device; None: neither less memory nor another device would mend it."""
    if isinstance(error, OSError):
        return Trouble.MEMORY if error.errno == errno.ENOMEM else None
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return Trouble.MEMORY
    if not isinstance(error, RuntimeError):
        return None
    if _MEMORY_TEXT.search(str(error)):
        return Trouble.MEMORY
    return Trouble.LOST if _LOST_TEXT.search(str(error)) else None


def may_recur(message: str) -> bool:
    """Tell whether what a GPU said when it was lost may come of what it computed, and befall the next one too."""
    return any(words in message for words in _OWN_DOING)


def summed_up(error: BaseException) -> str:
    """Return what a device said, as far as it concerns one forward: torch goes on with advice and the sizes of its
    pools."""
    return ". ".join(str(error).partition("\n")[0].split(". ")[:2]).rstrip(".")
