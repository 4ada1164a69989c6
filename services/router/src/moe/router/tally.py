"""The engine's figures since the start."""

from collections import Counter
from dataclasses import dataclass, field

from moe.router.jobs import GenerationJob, Job
from moe.router.scheduler import Work


@dataclass
class Tally:
    """finished: requests by finish reason or status name. degradations: layer calls by kind."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    degradations: Counter[str] = field(default_factory=Counter)

    def count_tokens(self, work: Work, job: Job, drawn: int) -> None:
        """Counts a work's tokens. drawn: tokens that the step drew after it."""
        prompt = len(job.request.prompt) if isinstance(job, GenerationJob) else len(job.tokens)
        self.prompt_tokens += max(0, min(prompt, work.start + work.count) - work.start)
        self.generated_tokens += drawn
