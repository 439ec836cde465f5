"""Unsupervised skill discovery by behavior contrastive learning."""
