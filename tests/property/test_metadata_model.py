"""The machine against a plain model, and against what it is for: acknowledged records stay."""

from hypothesis import HealthCheck, settings

from tests.property.metadata_machine import MetadataMachine

MetadataMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestMetadataMachine = MetadataMachine.TestCase
