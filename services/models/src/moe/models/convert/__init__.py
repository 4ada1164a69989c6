"""Makes model packages out of Hugging Face checkpoints."""

from moe.models.convert.checkpoint import DEFAULT_SHARD_BYTES, check_name, convert_checkpoint, package_name

__all__ = ["DEFAULT_SHARD_BYTES", "check_name", "convert_checkpoint", "package_name"]
