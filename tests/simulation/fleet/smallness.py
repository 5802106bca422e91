"""Everything that a plan makes small and that is not in the configuration, for one run."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from dlogd.controller.planner import PlannerSettings
from dlogd.metadata.raft.settings import RaftConfig
from dlogd.node import cluster_node
from tests.simulation.fleet.bounds import bounded
from tests.simulation.fleet.plan import FleetPlan


@contextmanager
def bounds_of(plan: FleetPlan) -> Iterator[None]:
    """Make the bounds of a plan small for a while."""
    with ExitStack() as stack:
        stack.enter_context(bounded(plan.bounds))
        defaults: Any = RaftConfig.__init__.__kwdefaults__
        missing = plan.raft.keys() - defaults.keys()
        assert not missing, f"RaftConfig has no {missing}"
        stack.enter_context(mock.patch.dict(defaults, plan.raft))
        settings = PlannerSettings(**plan.planner)
        make = mock.Mock(return_value=settings)
        stack.enter_context(mock.patch.object(cluster_node, "planner_settings", make))
        yield
