"""A language model in two phases, without a real model: caches of prompts, token streams, prefix affinity."""
