"""Commands that find features of heads: contrast, discover."""
