"""The distillation loss and its gradient without keeping a vocabulary-sized graph.

KL(teacher || student) over the whole vocabulary. Only the last hidden states enter autograd; the gradient of the
loss in the student's logits, softmax(student) - softmax(teacher), is known in closed form (Hinton, Vinyals and Dean,
"Distilling the Knowledge in a Neural Network", 2015, section 2.1, temperature 1), and is carried through the frozen
head chunk by chunk.
"""

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

CHUNK = 256  # rows of logits held at once: 256 x 49152 x 4 bytes = 50 MB


@torch.no_grad()
def kl_and_gradient(teacher: Tensor, student: Tensor, head: Tensor) -> tuple[float, Tensor]:
    """Mean KL in nats and its gradient in `student`; hidden states [tokens, hidden], head [vocabulary, hidden]."""
    gradient = torch.empty_like(student)
    total = 0.0
    for start in range(0, len(student), CHUNK):
        rows = slice(start, start + CHUNK)
        expected = F.log_softmax(F.linear(teacher[rows], head).float(), -1)
        actual = F.log_softmax(F.linear(student[rows], head).float(), -1)
        probability = expected.exp()
        total += float(torch.dot(probability.flatten(), expected.sub_(actual).flatten()))
        gradient[rows] = actual.exp_().sub_(probability).to(head.dtype) @ head
    return total / len(student), gradient / len(student)


def distil_step(teacher: PreTrainedModel, student: PreTrainedModel, tokens: Tensor) -> float:
    """Add the gradients of one batch [rows, length] to the student's parameters; returns the mean KL in nats."""
    with torch.no_grad():
        expected = teacher.model(tokens, use_cache=False).last_hidden_state
    actual = student.model(tokens, use_cache=False).last_hidden_state
    width = actual.shape[-1]
    loss, gradient = kl_and_gradient(
        expected.reshape(-1, width), actual.detach().reshape(-1, width), student.lm_head.weight
    )
    actual.backward(gradient.view_as(actual))
    return loss
