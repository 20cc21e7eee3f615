"""Answering the broker's questions: a long poll to each broker, the truth from the barrier."""
