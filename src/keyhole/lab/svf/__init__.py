"""Do singular vectors become features? The superposition toy with an attention head, its alignment, and theorems."""
