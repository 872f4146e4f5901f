"""Makes the tiny Qwen3.5-MoE checkpoint of the reference engine: corpus, tokenizer, model, training, evaluation.

Offline work: nothing here is imported when the product runs. `python -m backend.reference.training --out DIR`
reproduces `assets/tiny-qwen3.5-moe`.
"""
