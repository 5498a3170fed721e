"""The sizes of well-known models, as their published config.json files give them."""

from typing import Any


def _config(
    model_type: str, width: int, hidden: int, layers: int, heads: int, kv_heads: int, vocabulary: int, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        **more,
    }


TIED = {"tie_word_embeddings": True}

CONFIGS: dict[str, dict[str, Any]] = {
    "Llama-3-8B": _config("llama", 4096, 14336, 32, 32, 8, 128256),
    "Granite-3.1-8B": _config("granite", 4096, 12800, 40, 32, 8, 49155, **TIED),
    "Mistral-7B-v0.1": _config("mistral", 4096, 14336, 32, 32, 8, 32000, sliding_window=4096),
    "Phi-3-mini": _config("phi3", 3072, 8192, 32, 32, 32, 32064, sliding_window=2047),
    "Qwen2.5-0.5B": _config("qwen2", 896, 4864, 24, 14, 2, 151936, **TIED),
    "Qwen3-8B": _config("qwen3", 4096, 12288, 36, 32, 8, 151936, head_dim=128),
    "OLMo-2-7B": _config("olmo2", 4096, 11008, 32, 32, 32, 100352),
    "OLMo-3-7B": _config("olmo3", 4096, 11008, 32, 32, 32, 100278, sliding_window=4096),
    "Gemma-3-1B": _config("gemma3_text", 1152, 6912, 26, 4, 1, 262144, head_dim=256, sliding_window=512),
    "Mixtral-8x7B": _config("mixtral", 4096, 14336, 32, 32, 8, 32000, num_local_experts=8, num_experts_per_tok=2),
    "OLMoE-1B-7B": _config("olmoe", 2048, 1024, 16, 16, 16, 50304, num_experts=64, num_experts_per_tok=8),
    "Qwen1.5-MoE-A2.7B": _config(
        "qwen2_moe", 2048, 5632, 24, 16, 16, 151936, moe_intermediate_size=1408, num_experts=60,
        num_experts_per_tok=4, shared_expert_intermediate_size=5632,
    ),
    "Qwen3-30B-A3B": _config(
        "qwen3_moe", 2048, 6144, 48, 32, 4, 151936, head_dim=128, moe_intermediate_size=768, num_experts=128,
        num_experts_per_tok=8, mlp_only_layers=[], decoder_sparse_step=1,
    ),
    "gpt-oss-20b": _config(
        "gpt_oss", 2880, 2880, 24, 64, 8, 201088, head_dim=64, num_local_experts=32, num_experts_per_tok=4,
        sliding_window=128, attention_bias=True,
    ),
    "DeepSeek-V3": _config(
        "deepseek_v3", 7168, 18432, 61, 128, 128, 129280, moe_intermediate_size=2048, n_routed_experts=256,
        num_experts_per_tok=8, n_shared_experts=1, first_k_dense_replace=3, moe_layer_freq=1, q_lora_rank=1536,
        kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
    ),
    "Ouro-1.4B": _config("ouro", 2048, 5632, 24, 16, 16, 49152, head_dim=128, total_ut_steps=4),
    "Ouro-2.6B": _config("ouro", 2048, 5632, 48, 16, 16, 49152, head_dim=128, total_ut_steps=4),
    "LoopMoE-A0.3B-1.3B": {  # the paper's case study
        "model_type": "looped_moe", "vocab_size": 202_048, "hidden_size": 768, "prelude_layers": 2, "loop_layers": 16,
        "coda_layers": 2, "recurrence": 5, "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64,
        "intermediate_size": 3072, "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 1536,
    },
    "Huginn-0125": {
        "model_type": "huginn_raven", "n_embd": 5280, "n_heads": 55, "intermediate_size": 17920, "vocab_size": 65536,
        "n_layers_in_prelude": 2, "n_layers_in_recurrent_block": 4, "n_layers_in_coda": 2, "mean_recurrence": 32,
        "injection_type": "linear", "qk_bias": True, "bias": False, "tie_embeddings": True,
    },
}  # fmt: skip
