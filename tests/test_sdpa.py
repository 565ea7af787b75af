"""Which attention kernel a GPU takes, and the memory law under each of them."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from interlock.engine.compute.encoder import computed_tokens
from interlock.engine.gpu.memory import GRAIN
from interlock.engine.gpu.meter import Counter
from interlock.engine.models.sdpa import GpuMeter, Kernel, Sdpa, sdpa_for
from interlock.engine.models.trace import law_of
from tests.architectures import ARCHITECTURES, BERT_BASE, QWEN3_06B
from tests.oracle import Oracle

HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32
F, E, M = Sdpa.FLASH, Sdpa.EFFICIENT, Sdpa.MATH
# What `sdp::select_sdp_backend` of torch 2.13 (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp) returns with
# cuDNN's attention off: `can_use_flash_attention` (check_flash_attention_hardware_support: 8.0 to 12.1,
# check_dtypes_low_precision, check_for_attn_mask, check_head_dim_size_flash: 256), `can_use_mem_efficient_attention`
# (check_head_dim_size_mem_efficient with minimum_gemm_alignment, less_than_sm80_mem_efficient_dtypes, no grouped
# heads), and math for what is left. By capability: 7.5, 8.0, 9.0, 10.0.
CHOSEN = {
    # dtype, head, masked, grouped
    (HALF, 64, False, False): (E, F, F, F),
    (HALF, 64, True, False): (E, E, E, E),
    (HALF, 128, False, True): (M, F, F, F),
    (HALF, 128, True, True): (M, M, M, M),
    (BRAIN, 64, False, False): (M, F, F, F),
    (BRAIN, 64, True, False): (M, E, E, E),
    (BRAIN, 128, False, True): (M, F, F, F),
    (BRAIN, 128, True, True): (M, M, M, M),
    (SINGLE, 64, False, False): (E, E, E, E),
    (SINGLE, 64, True, False): (E, E, E, E),
    (SINGLE, 128, False, True): (M, M, M, M),
    (SINGLE, 128, True, True): (M, M, M, M),
    (HALF, 26, False, False): (M, F, F, F),
    (HALF, 26, True, False): (M, M, M, M),
    (SINGLE, 26, False, False): (E, M, M, M),
    (HALF, 512, False, False): (E, E, E, E),
}
GEMMA = {**ARCHITECTURES["EmbeddingGemma-300M"], "num_hidden_layers": 6, "vocab_size": 32000}
NARROW = {**BERT_BASE, "hidden_size": 312, "intermediate_size": 600, "num_hidden_layers": 3}
"""Heads of 26 values, as small Russian and Chinese encoders have."""
SMALL = {"num_hidden_layers": 4, "vocab_size": 32000}
CASES = [
    ({**QWEN3_06B, **SMALL}, True, Kernel.FLASH, [[32766], [32], [8192, 8000], [1024] * 16]),
    ({**QWEN3_06B, **SMALL}, True, Kernel.EFFICIENT, [[32766], [32], [8192, 8000], [1024] * 16]),
    ({**QWEN3_06B, **SMALL}, True, Kernel.RUNS, [[8192], [256] * 16, [8192, 700, 31], [900, 800, 700] * 9]),
    (
        {**ARCHITECTURES["ModernBERT-base"], "num_hidden_layers": 4},
        True,
        Kernel.EFFICIENT,
        [[8190], [512] * 32, [4000, 60, 50], [60, 50]],
    ),
    ({**GEMMA, "sliding_window": 4096}, True, Kernel.EFFICIENT, [[2046], [500] * 30, [600, 500, 400] * 9]),
    (GEMMA, True, Kernel.EFFICIENT, [[2046], [500] * 30, [600, 500, 400] * 9, [250] * 60, [270] * 60]),
    (GEMMA, False, Kernel.EFFICIENT, [[500] * 60, [600, 500, 400] * 9]),
    (NARROW, True, Kernel.FLASH, [[510] * 30, [510], [510, 300, 20]]),
    (NARROW, True, Kernel.EFFICIENT, [[510] * 30, [510], [510, 300, 20]]),
    (ARCHITECTURES["MPNet-base"], True, Kernel.RUNS, [[510] * 30, [97] * 40, [510, 300, 20], [32]]),
    ({**BERT_BASE, **SMALL}, False, Kernel.EFFICIENT, [[509] * 30, [509] * 29 + [300], [97] * 40 + [96]]),
    ({**BERT_BASE, **SMALL}, False, Kernel.MATH, [[510] * 30, [510] * 29 + [300], [97] * 40 + [96]]),
    (NARROW, False, Kernel.RUNS, [[510] * 30, [510] * 29 + [300]]),
]


def named(case):
    config, packed, kernel, _ = case
    return f"{config['model_type']}-{'packed' if packed else 'padded'}-{kernel.name}-{config['hidden_size']}"


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (9, 0), (10, 0)], ids=lambda found: f"sm_{found[0]}{found[1]}")
@pytest.mark.parametrize("about", CHOSEN, ids=str)
def test_a_gpu_takes_the_kernel_that_torch_chooses_there(about, capability):
    dtype, head, masked, grouped = about
    column = ((7, 5), (8, 0), (9, 0), (10, 0)).index(capability)
    assert sdpa_for(dtype, head, capability, masked=masked, grouped=grouped) is CHOSEN[about][column]


def test_a_mask_whose_rows_are_not_aligned_is_copied_as_wide_as_the_next_that_are():
    def peak(width):
        counter = Counter()
        with FakeTensorMode(), torch.inference_mode(), GpuMeter(counter, Sdpa.EFFICIENT, narrow=False):
            query, key, mask = (torch.empty(1, 1, *shape, dtype=HALF) for shape in ((512, 8), (width, 8), (512, width)))
            counter.start_peak()
            before = counter.peak
            torch.nn.functional.scaled_dot_product_attention(query, key, key, mask)
        return counter.peak - before

    assert peak(33) - peak(48) == 2 * 512 * 48


@pytest.mark.parametrize(("config", "packed", "kernel", "batches"), CASES, ids=map(named, CASES))
def test_the_law_is_within_two_percent_of_what_the_kernel_allocates(config, packed, kernel, batches):
    law = law_of(config, packed=packed, dtype=HALF, kernel=kernel)
    oracle, errors = Oracle(config, packed=packed, kernel=kernel), []
    for lengths in batches:
        peak = oracle.peak(lengths)
        off = law.for_rows(lengths).activations(computed_tokens(lengths, padded=not packed), max(lengths)) - peak
        errors.append(max(0, abs(off) - GRAIN) / (peak + oracle.weights))
    assert max(errors) <= 0.02
    assert np.median(errors) <= 0.01
