"""Plans in which all nodes lose their power at once, and everything is flushed always.

Then nothing that was acknowledged may be lost, and nothing excuses it. Few of the other seeds show
that: where all lose power, most have a log with a weak flush policy, or an unclean election. They
stay as they are; these are drawn beside them.
"""

import random
from dataclasses import replace
from itertools import count

from tests.simulation.fleet.data_plan import DataPlan, draw_data, with_racks
from tests.simulation.fleet.plan import FleetPlan, draw
from tests.simulation.plan import Fault

EXCUSING_ACTIONS = ("flush-policy", "unclean")
EXCUSING_CONFIGS = ("flush.policy", "unclean.leader.election.enable")


def draw_blackouts(seed: int) -> FleetPlan:
    """Return the plan of a seed with one to three losses of all power more."""
    plan = draw(seed)
    rng = random.Random(f"{seed}/fleet/blackouts")
    cuts = tuple(
        Fault(
            rng.randrange(int(900 * plan.pace), plan.active_ms),
            "power-all",
            int(rng.choice((20, 200, 700)) * plan.pace),
            0.0,
            "any",
        )
        for _ in range(rng.choice((1, 2, 3)))
    )
    return replace(
        plan,
        config=plan.config | {"flush.policy": "always"},
        data=_flushed(_with_data(plan)),
        faults=tuple(sorted((*plan.faults, *cuts), key=lambda fault: fault.at_ms)),
    )


def _with_data(plan: FleetPlan) -> DataPlan:
    """Return what clients do with data; some seeds have none."""
    if plan.data.topics:
        return plan.data
    others = (draw_data(plan.seed + number, plan.nodes, plan.pace) for number in count(1))
    return with_racks(next(each for each in others if each.topics), plan.seed, plan.racks)


def _flushed(data: DataPlan) -> DataPlan:
    topics = tuple(
        replace(
            topic,
            configs={
                name: value for name, value in topic.configs.items() if name not in EXCUSING_CONFIGS
            },
        )
        for topic in data.topics
    )
    actions = tuple(each for each in data.actions if each not in EXCUSING_ACTIONS)
    return replace(data, topics=topics, actions=actions)
