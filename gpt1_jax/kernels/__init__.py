"""What causal attention is computed with, one kernel a file; `gpt1_jax.attention` chooses among them."""
