"""Rules about leaders, each taken away from the machine of the metadata."""

from collections.abc import Callable
from typing import Any

from dlog.types import NO_NODE
from dlogd.metadata.machine import alter_partition, cluster, maintenance, node, topic
from dlogd.metadata.machine.election import _Draft, candidates

EXAMPLES_MAX = 300
"""A mutant must be caught within so many runs of the test."""


def _keep_the_lost_eligible(draft: Any) -> None:
    was = (*draft.old.elr, *draft.old.isr)
    small = len(draft.isr) < draft.rules.min_isr
    draft.elr = tuple(n for n in draft.replicas if small and n in was and n not in draft.isr)


def _keep_all_eligible(draft: Any) -> None:
    was = (*draft.old.elr, *draft.old.isr)
    draft.elr = tuple(
        n for n in draft.replicas if n in was and n not in draft.isr and n not in draft.gone
    )


def _keep_nobody_eligible(draft: Any) -> None:
    draft.elr = ()


def _drop_old_replicas_early(draft: Any) -> None:
    draft.replicas = tuple(n for n in draft.replicas if n not in draft.removing)
    draft.isr = tuple(n for n in draft.isr if n in draft.replicas)
    draft.offline = tuple(n for n in draft.offline if n in draft.replicas)
    draft.adding = draft.removing = ()


def _elect_anybody(draft: Any, elect: Callable[[Any], bool] = _Draft.elect) -> bool:
    unclean = elect(draft)
    able = candidates(draft.rules.nodes, draft.replicas, draft.offline)
    if draft.leader == NO_NODE and able:
        draft._lead_alone(able[0])
    return unclean


def _believe_any_proof(image: Any, command: Any, known: Any) -> bool:
    return known is not None and command.proof != 0


MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "let who lost its data stay eligible": (_Draft, "keep_eligible", _keep_the_lost_eligible),
    "keep an ELR beside a whole ISR": (_Draft, "keep_eligible", _keep_all_eligible),
    "have no ELR": (_Draft, "keep_eligible", _keep_nobody_eligible),
    "remove replicas before others are in sync": (
        _Draft,
        "end_reassignment",
        _drop_old_replicas_early,
    ),
    "elect whoever is up (H3)": (_Draft, "elect", _elect_anybody),
    "forget the last leader (L2)": (_Draft, "note_last_leader", lambda draft: None),
    "compare no epochs (H11)": (alter_partition, "_check_epochs", lambda *_: None),
    "let who has no replica join an ISR (H9)": (alter_partition, "_check_members", lambda *_: None),
    "let the fenced join an ISR (KIP-841)": (alter_partition, "_check_newcomer", lambda *_: None),
    "believe old directories": (node, "_is_proved", _believe_any_proof),
    "believe flushes that never were": (
        node._Exceptions,
        "_flushes_always",
        lambda *_: True,
    ),
    "keep the ELR when the minimum falls": (topic, "_resettled", lambda image, _: image),
    "begin again at the first epoch": (
        topic,
        "_floor_above",
        lambda image, doomed: image.epoch_floor,
    ),
    "drain whoever holds the lock": (maintenance, "expect_permitted", lambda *_: None),
    "obey former controllers": (cluster, "check_guard", lambda *_: None),
}
