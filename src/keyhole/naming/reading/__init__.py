"""Where do texts come from, and how are they cut?"""
