"""How many experts the gates take, as it is wished now: heeded between steps, so that a step is of one kind."""

import logging
from dataclasses import dataclass
from typing import cast

from moe.discovery.directory import NO_WISHES, RoutingWishes
from moe.models.contract import Backbone, Strategy
from moe.models.errors import ModelsError

logger = logging.getLogger("moe.router")


@dataclass(frozen=True)
class GateSettings:
    """topk: experts per token, 0 for the checkpoint's own. strategy: see moe.models.contract.Strategy."""

    topk: int = 0
    strategy: Strategy = "family"


OWN_GATES = GateSettings()
"""As the checkpoint has them."""


class Gating:
    """Applies settings to a backbone's gates. Used from the engine's thread."""

    def __init__(self, backbone: Backbone, started_with: GateSettings) -> None:
        """Raises ModelsError for what the family can't do."""
        self._backbone = backbone
        self._started_with = self.settings = started_with
        self._wishes = NO_WISHES
        if started_with != OWN_GATES:
            backbone.route(started_with.topk, started_with.strategy)

    def heed(self, wishes: RoutingWishes) -> None:
        """Takes over what is wished. What can't be done is logged once, and all stays as it was."""
        if wishes is self._wishes:
            return
        self._wishes = wishes
        topk = self._started_with.topk if wishes.topk is None else wishes.topk
        strategy = self._started_with.strategy if wishes.strategy is None else cast(Strategy, wishes.strategy)
        wished = GateSettings(topk, strategy)
        if wished == self.settings:
            return
        try:
            self._backbone.route(topk, strategy)
        except ModelsError as error:
            logger.error("wishes are not heeded, going on with %s: %s", self.settings, error)
            return
        self.settings = wished
        logger.info("gates from now on: %s", wished)
