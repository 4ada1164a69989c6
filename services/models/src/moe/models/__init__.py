"""The only place that touches Hugging Face internals: model packages, conversion, and the seams of the backbone."""
