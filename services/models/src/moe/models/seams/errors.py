"""What goes wrong with a backbone, as one tree of exceptions.

ModelsError
└── BackboneError
    ├── UnsupportedBackboneError  the model is sound, but this engine can't serve it (gives the reason)
    ├── BackboneWeightsError      tensors are missing, unknown or of another shape (names them)
    └── StepError                 a step was asked for something impossible (names the field, value and bound)
"""

from moe.models.errors import ModelsError


class BackboneError(ModelsError):
    """A backbone can't be loaded or run."""


class UnsupportedBackboneError(BackboneError):
    """The model can't be served; the message gives the reason."""


class BackboneWeightsError(BackboneError):
    """The tensors in the directory aren't those that the configuration asks for."""


class StepError(BackboneError, ValueError):
    """A step's input breaks the contract; nothing was computed."""
