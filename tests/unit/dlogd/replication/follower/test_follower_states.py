"""The table of a followed partition's states: nothing is left hanging, nothing is done twice."""

import itertools

import pytest

from dlogd.replication.follower.follower_states import (
    IS_SUBSCRIBED,
    MAY_ASK,
    TABLE,
    Effect,
    Event,
    State,
    step,
)

STEPS = [
    pytest.param(state, event, *TABLE[event][state], id=f"{state.name}-{event.name}")
    for event in Event
    for state in TABLE[event]
]
ENDED_BY_THE_LEADER = {Event.LOST, Event.PARTED, Event.REFUSED}
RESTS = {Effect.REST, Effect.REST_AFTER_APPEND}


@pytest.mark.parametrize(("state", "event", "after", "effects"), STEPS)
def test_the_leader_hears_of_each_subscription_that_is_given_up_and_of_no_other(
    state: State, event: Event, after: State, effects: tuple[Effect, ...]
) -> None:
    is_given_up = state in IS_SUBSCRIBED and after not in IS_SUBSCRIBED
    is_said = is_given_up and event not in ENDED_BY_THE_LEADER
    assert (Effect.UNSUBSCRIBE in effects) is is_said


@pytest.mark.parametrize(("state", "event", "after", "effects"), STEPS)
def test_a_rest_begins_with_its_state_and_ends_with_it(
    state: State, event: Event, after: State, effects: tuple[Effect, ...]
) -> None:
    assert len(RESTS & set(effects)) == (after is State.RESTING)
    is_cut_short = state is State.RESTING and event is not Event.RESTED
    assert (Effect.STOP_RESTING in effects) is is_cut_short


@pytest.mark.parametrize(("state", "event", "after", "effects"), STEPS)
def test_one_cut_at_a_time_and_none_without_its_state(
    state: State, event: Event, after: State, effects: tuple[Effect, ...]
) -> None:
    cutting = {State.CUTTING, State.BEGINNING}
    assert (Effect.CUT in effects) is (after in cutting and state not in cutting)


@pytest.mark.parametrize(("state", "event", "after", "effects"), STEPS)
def test_who_is_detached_asks_again_by_itself_unless_the_next_connection_does(
    state: State, event: Event, after: State, effects: tuple[Effect, ...]
) -> None:
    assert (Effect.SUBSCRIBE in effects) is (after is State.DETACHED and event is not Event.LOST)


@pytest.mark.parametrize(("state", "event", "after", "effects"), STEPS)
def test_effects_come_in_their_order(
    state: State, event: Event, after: State, effects: tuple[Effect, ...]
) -> None:
    order = list(Effect)
    places = [order.index(each) for each in effects]
    assert places == sorted(set(places))


def test_from_everywhere_a_way_leads_to_records_and_to_the_end() -> None:
    ways = {state: {step(state, event)[0] for event in Event} for state in State}
    for state in State:
        reached = {state}
        for _ in State:
            reached |= set(itertools.chain.from_iterable(ways[each] for each in reached))
        wanted = {State.ENDED} if state is State.ENDED else set(State)
        assert reached == wanted, state


def test_only_who_is_not_subscribed_may_ask() -> None:
    asking = {state for state in State if step(state, Event.ASKED)[0] is not state}
    assert asking == set(MAY_ASK) and not MAY_ASK & IS_SUBSCRIBED


def test_a_lost_connection_leaves_nobody_subscribed() -> None:
    assert not {step(state, Event.LOST)[0] for state in State} & IS_SUBSCRIBED


@pytest.mark.parametrize("event", [each for each in Event if each is not Event.LEFT])
def test_what_comes_too_late_changes_nothing(event: Event) -> None:
    """A cut, a rest or append memory that ends when the partition follows another leader."""
    assert step(State.ENDED, event) == (State.ENDED, ())
