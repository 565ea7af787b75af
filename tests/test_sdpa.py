"""Which attention kernel a GPU takes, by its capability, precision and heads."""

import pytest
import torch

from interlock.engine.models.networks.kernels import Sdpa, sdpa_for

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


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (9, 0), (10, 0)], ids=lambda found: f"sm_{found[0]}{found[1]}")
@pytest.mark.parametrize("about", CHOSEN, ids=str)
def test_a_gpu_takes_the_kernel_that_torch_chooses_there(about, capability):
    dtype, head, masked, grouped = about
    column = ((7, 5), (8, 0), (9, 0), (10, 0)).index(capability)
    assert sdpa_for(dtype, head, capability, masked=masked, grouped=grouped) is CHOSEN[about][column]
