"""The families that are held to exactness: their answers are compared with transformers' own in every test run.

Others that the seams carry may be converted and served as well; conversion proves their experts' formula, but nobody
has compared their logits.
"""

EXACT_FAMILIES: dict[str, str] = {
    "mixtral": "Mixtral",
    "qwen2_moe": "Qwen2-MoE",
    "qwen3_moe": "Qwen3-MoE",
    "olmoe": "OLMoE",
    "deepseek_v2": "DeepSeek-V2",
    "deepseek_v3": "DeepSeek-V3",
    "granitemoe": "GraniteMoE",
    "phimoe": "PhiMoE",
    "glm4_moe": "GLM4-MoE",
    "gpt_oss": "GPT-OSS",
    "qwen3_next": "Qwen3-Next",
    "qwen3_5_moe_text": "Qwen3.5-MoE text",
    "llama4_text": "Llama4 text",
}
"""Model type of transformers -> the name that people know."""
