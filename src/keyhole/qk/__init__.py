"""Query-key forms: singular channels and how scores split over them."""
