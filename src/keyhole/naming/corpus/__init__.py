"""Where do signals fire? Texts, and one pass over them with little memory."""
