"""What a model answers, so that no engine is measured that computes something else: a broken conversion is fast too.

    python -m benchmarks.end_to_end.answers CHECKPOINT FILE      # writes a reference; a float32 copy of the weights

The reference is transformers in float32, greedy. At each place it keeps the tokens whose logits lie within TOLERANCE of
the best: an engine in bfloat16 or with eight-bit weights may take any of them, and from there on its answer is its own
and not compared. Rounding also swaps experts that a gate finds nearly alike, which can move a logit further than that;
so a few answers may leave with another token. Pure but for `ensure_reference`.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.places import CHECKOUT

LENGTHS = (3, 5, 8, 13, 21, 34, 55, 89)
NEW = 8
TOLERANCE = 0.5
_AGREEING = 0.6
_FAR = 2


@dataclass(frozen=True)
class Place:
    """best: the reference's token. near: how far below the best's logit each token within TOLERANCE lies."""

    best: int
    near: dict[int, float]


@dataclass(frozen=True)
class Reference:
    """prompts: ids. answers: the places of each prompt's answer."""

    prompts: tuple[tuple[int, ...], ...]
    answers: tuple[tuple[Place, ...], ...]


@dataclass(frozen=True)
class Agreement:
    """compared: places up to and with the first where an answer left the reference; same: those with its token; far:
    answers that left with a token out of TOLERANCE, the first of them in words."""

    compared: int
    same: int
    far: int = 0
    first: str = ""

    @property
    def wrong(self) -> str:
        """What can't be rounding, if anything: of the eight answers three leave far, or most tokens differ."""
        if self.far > _FAR:
            return f"{self.far} of {len(LENGTHS)} answers leave the reference by more than rounding; {self.first}"
        if self.same < _AGREEING * self.compared:
            return f"only {self.same} of {self.compared} tokens are the reference's, want {_AGREEING:.0%}"
        return ""

    def __str__(self) -> str:
        return f"{self.same} of {self.compared}"


def prompts(vocabulary: int) -> tuple[tuple[int, ...], ...]:
    """The same ones in every run."""
    draw = random.Random(0)
    return tuple(tuple(draw.randrange(3, vocabulary) for _ in range(length)) for length in LENGTHS)


def agreement(reference: Reference, answers: Sequence[Sequence[int]]) -> Agreement:
    """Compares greedy answers to the reference's prompts."""
    compared = same = far = 0
    first = ""
    for prompt, places, answer in zip(reference.prompts, reference.answers, answers, strict=True):
        for number, (place, token) in enumerate(zip(places, answer, strict=True)):
            compared += 1
            same += token == place.best
            if token not in place.near:
                far += 1
                first = first or (
                    f"token {number + 1} after {len(prompt)} ids is {token}, whose logit lies more than {TOLERANCE} "
                    f"below that of {place.best}"
                )
            if token != place.best:
                break
    return Agreement(compared, same, far, first)


def write_reference(checkpoint: Path, target: Path) -> None:
    """Writes it in one step. Takes four bytes of memory a weight while it runs."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    asked = prompts(model.config.vocab_size)
    answers = []
    with torch.inference_mode():
        for prompt in asked:
            ids, cache, places = list(prompt), None, []
            for _ in range(NEW):
                out = model(torch.tensor([ids]), cache=cache, use_cache=True, logits_to_keep=1)
                cache, logits = out.cache, out.logits[0, -1]
                short = logits.max() - logits
                near = {int(token): float(short[token]) for token in torch.nonzero(short <= TOLERANCE).flatten()}
                places.append(Place(int(logits.argmax()), near))
                ids = [places[-1].best]
            answers.append(places)
    part = target.with_suffix(".part")
    found = [[{"best": place.best, "near": place.near} for place in places] for places in answers]
    part.write_text(json.dumps({"prompts": asked, "answers": found}) + "\n", encoding="utf-8")
    part.replace(target)


def read_reference(file: Path) -> Reference:
    """What `write_reference` wrote."""
    fields = json.loads(file.read_bytes())
    answers = tuple(
        tuple(Place(each["best"], {int(token): short for token, short in each["near"].items()}) for each in places)
        for places in fields["answers"]
    )
    return Reference(tuple(tuple(prompt) for prompt in fields["prompts"]), answers)


def ensure_reference(checkpoint: Path) -> Reference:
    """Lies beside the checkpoint; made once, by a process of its own, whose memory is free before anything runs."""
    target = checkpoint / "answers.json"
    if not target.exists():
        print(f"models: computing what {checkpoint.name} answers, in float32", file=sys.stderr)
        words = [sys.executable, "-m", "benchmarks.end_to_end.answers", str(checkpoint), str(target)]
        environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
        subprocess.run(words, cwd=CHECKOUT, env=environment, check=True)
    return read_reference(target)


if __name__ == "__main__":
    write_reference(Path(sys.argv[1]), Path(sys.argv[2]))
