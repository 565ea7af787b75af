"""Which errors are a shortage of memory, which the loss of a device, and which are neither and must not be hidden."""

import errno

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interlock.engine.gpu.device_errors import Trouble, classify

HINT = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
)
CUDA_FULL = (
    "CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has a total capacity of 14.57 GiB of which 1.58 GiB is "
    "free. Process 2493055 has 12.02 GiB memory in use. Including non-PyTorch memory, this process has 966.00 MiB "
    "memory in use. Of the allocated memory 734.07 MiB is allocated by PyTorch, and 33.93 MiB is reserved by PyTorch "
    "but unallocated."
)
SHORT = [
    torch.OutOfMemoryError(CUDA_FULL),
    torch.OutOfMemoryError("Allocation on device 0 would exceed allowed memory."),
    getattr(torch, "AcceleratorError", RuntimeError)("CUDA error: out of memory" + HINT),
    RuntimeError("CUDA error: out of memory" + HINT),
    RuntimeError("CUDA driver error: out of memory"),
    RuntimeError("CUDA driver error: device not ready"),
    RuntimeError("HIP out of memory. Tried to allocate 20.00 MiB."),
    RuntimeError("MPS backend out of memory (MPS allocated: 5.05 GB)"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous"),
    RuntimeError("CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasGemmEx( handle, opa, opb, m, n, ...)`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasLtMatmul( ltHandle, ...)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN Frontend error: [cudnn_frontend] Error: No valid execution plans built."),
    RuntimeError(
        'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":830, please report a bug '
        "to PyTorch. "
    ),
    RuntimeError(
        "NVML_SUCCESS == DriverAPI::get()->nvmlDeviceGetHandleByPciBusId_v2_( pci_id, &nvml_device) INTERNAL ASSERT "
        'FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":1123, please report a bug to PyTorch. '
    ),
    RuntimeError('!handles_.at(i) INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":430'),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:83] . DefaultCPUAllocator: not enough memory: you tried to allocate 8"
    ),
    RuntimeError("unable to mmap 1024 bytes from file </x>: Cannot allocate memory (12)"),
    MemoryError(),
    (np._core if hasattr(np, "_core") else np.core)._exceptions._ArrayMemoryError((1 << 40,), np.dtype("u1")),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
]
GONE = [
    "unspecified launch failure",
    "an illegal memory access was encountered",
    "device-side assert triggered",
    "misaligned address",
    "an illegal instruction was encountered",
    "the launch timed out and was terminated",
    "uncorrectable ECC error encountered",
    "uncorrectable NVLink error detected during the execution",
    "no CUDA-capable device is detected",
    "all CUDA-capable devices are busy or unavailable",
    "unknown error",
    "CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle, opa, opb, m, n, k, ...)`",
]
NEITHER = [
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x3 and 4x5)"),
    RuntimeError("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"),
    RuntimeError("CUDA error: no kernel image is available for execution on the device" + HINT),
    RuntimeError("CUDA error: device kernel image is invalid" + HINT),
    RuntimeError("CUDA error: invalid device ordinal" + HINT),
    RuntimeError("CUDA error: invalid argument" + HINT),
    RuntimeError("CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm`"),
    RuntimeError('block->prev INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":830'),
    RuntimeError('NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/pytorch/torch/csrc/distributed/c10d/symm_mem.cpp":3'),
    RuntimeError("misaligned address in the file"),
    ValueError("out of memory"),
    IndexError("index out of range in self"),
    OSError(errno.ENOSPC, "No space left on device"),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize("error", SHORT, ids=lambda error: f"{type(error).__name__}-{str(error)[:40]}")
def test_full_memory_in_the_words_of_torch_or_cuda_is_memory(error):
    assert classify(error) is Trouble.MEMORY


@pytest.mark.parametrize("kind", [RuntimeError, getattr(torch, "AcceleratorError", RuntimeError)])
@pytest.mark.parametrize("text", GONE)
def test_an_error_after_which_cuda_is_dead_is_a_lost_device(kind, text):
    assert classify(kind(f"CUDA error: {text}{HINT}")) is Trouble.LOST


@pytest.mark.parametrize("error", NEITHER, ids=lambda error: f"{type(error).__name__}-{str(error)[:40]}")
def test_a_mistake_of_another_kind_is_not_hidden(error):
    assert classify(error) is None


def test_the_error_that_torch_raises_when_the_host_is_full_is_memory():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 46, dtype=torch.uint8)
    assert classify(caught.value) is Trouble.MEMORY


@given(st.text())
def test_reading_any_error_text_never_fails(text):
    assert classify(ValueError(text)) is None
    classify(RuntimeError(text))
