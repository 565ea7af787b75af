"""The published configurations of seven encoders, as their `config.json` on the Hugging Face hub says them.

Only what a configuration says counts here: no weights are to be had, and what a forward pass takes follows from these
numbers alone. `LIMITS` are the longest inputs in tokens, special tokens included.
"""

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]

MINILM: Config = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_act": "gelu",
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_attention_heads": 12,
    "num_hidden_layers": 6,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "vocab_size": 30522,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
BERT_BASE: Config = {
    **MINILM,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
}
MPNET_BASE: Config = {
    "model_type": "mpnet",
    "architectures": ["MPNetForMaskedLM"],
    "hidden_act": "gelu",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "max_position_embeddings": 514,
    "relative_attention_num_buckets": 32,
    "vocab_size": 30527,
    "layer_norm_eps": 1e-05,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
XLM_R_LARGE: Config = {
    "model_type": "xlm-roberta",
    "architectures": ["XLMRobertaModel"],
    "hidden_act": "gelu",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "max_position_embeddings": 8194,
    "type_vocab_size": 1,
    "vocab_size": 250002,
    "layer_norm_eps": 1e-05,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
MODERNBERT_BASE: Config = {
    "model_type": "modernbert",
    "architectures": ["ModernBertForMaskedLM"],
    "hidden_activation": "gelu",
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_attention_heads": 12,
    "num_hidden_layers": 22,
    "max_position_embeddings": 8192,
    "vocab_size": 50368,
    "global_attn_every_n_layers": 3,
    "local_attention": 128,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "norm_eps": 1e-05,
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "pad_token_id": 50283,
    "bos_token_id": 50281,
    "eos_token_id": 50282,
    "cls_token_id": 50281,
    "sep_token_id": 50282,
    "tie_word_embeddings": True,
}
QWEN3_06B: Config = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "head_dim": 128,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_hidden_layers": 28,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000,
    "sliding_window": None,
    "use_sliding_window": False,
    "attention_bias": False,
    "tie_word_embeddings": True,
    "use_cache": True,
    "vocab_size": 151669,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
}
QWEN2_15B: Config = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "num_hidden_layers": 28,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
    "use_cache": True,
    "vocab_size": 151936,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}

ARCHITECTURES: Mapping[str, Config] = {
    "MiniLM-L6": MINILM,
    "BERT-base": BERT_BASE,
    "MPNet-base": MPNET_BASE,
    "XLM-R-large": XLM_R_LARGE,
    "ModernBERT-base": MODERNBERT_BASE,
    "Qwen3-0.6B": QWEN3_06B,
    "Qwen2-1.5B": QWEN2_15B,
}
LIMITS: Mapping[str, int] = {
    "MiniLM-L6": 512,
    "BERT-base": 512,
    "MPNet-base": 512,
    "XLM-R-large": 8192,
    "ModernBERT-base": 8192,
    "Qwen3-0.6B": 8192,
    "Qwen2-1.5B": 8192,
}
