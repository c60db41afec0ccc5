"""Base models and adapters as files: where they are, what they are made of, and how much memory they take. No torch."""
