"""States of a followed partition: a table of what happens in which state, and what then is done.

Pure. `dlogd.replication.follower.subscriptions` carries out what is to be done. A cut may outlast
the epoch in which it began: `Partition.is_cutting` says so to whoever follows next.
"""

from collections.abc import Mapping
from enum import Enum, auto


class State(Enum):
    """What a followed partition does."""

    DETACHED = auto()
    """The leader sends nothing; it is asked as soon as there is a connection."""
    SUBSCRIBED = auto()
    HELD = auto()
    """Subscribed; a frame waits until there is append memory for its records."""
    BEGINNING = auto()
    """Subscribed; a frame waits until the log begins with its records."""
    RESTING = auto()
    """It failed, and is asked for again after a while or over the next connection."""
    CUTTING = auto()
    """Its log is being cut, or begins anew elsewhere."""
    ENDED = auto()
    """Another leader or epoch, or no replica any more."""


class Event(Enum):
    """What happens to it."""

    ASKED = auto()
    """The leader was sent a subscription."""
    NO_MEMORY = auto()
    """There is no append memory for its records now."""
    MEMORY = auto()
    """There is."""
    HANGS = auto()
    """Its directory has given no append memory back for long: others shall not wait for it."""
    BEGINS_WITHIN = auto()
    """The leader's log begins within the batch that came; this one has to begin with it."""
    NOT_TAKEN = auto()
    """Its log refuses what came."""
    PARTED = auto()
    """The leader's history is another one: the log has to be cut."""
    REFUSED = auto()
    """The leader sends nothing, and there is nothing to cut."""
    BEHIND = auto()
    """The leader has deleted all that is here, and a full disk lets nothing be trimmed."""
    CUT = auto()
    CUT_FAILED = auto()
    RESTED = auto()
    LOST = auto()
    """The connection has ended."""
    LEFT = auto()
    """Another leader or epoch, or no replica any more."""


class Effect(Enum):
    """What is to be done, in this order."""

    UNSUBSCRIBE = auto()
    STOP_RESTING = auto()
    WAIT_LONGER = auto()
    """Next time a frame is held for twice as long."""
    REST = auto()
    REST_AFTER_APPEND = auto()
    """As long as what its log says about the append wants."""
    CUT = auto()
    SUBSCRIBE = auto()
    """As soon as the connection takes it."""


IS_SUBSCRIBED = frozenset({State.SUBSCRIBED, State.HELD, State.BEGINNING})
"""In these the leader knows a handle for it."""
MAY_ASK = frozenset({State.DETACHED, State.RESTING})

Step = tuple[State, tuple[Effect, ...]]

_GIVE_UP_AND_REST: Step = (State.RESTING, (Effect.UNSUBSCRIBE, Effect.REST))
_GIVE_UP_AND_CUT: Step = (State.CUTTING, (Effect.UNSUBSCRIBE, Effect.CUT))
_GIVE_UP_AND_END: Step = (State.ENDED, (Effect.UNSUBSCRIBE,))

TABLE: Mapping[Event, Mapping[State, Step]] = {
    Event.ASKED: {
        State.DETACHED: (State.SUBSCRIBED, ()),
        State.RESTING: (State.SUBSCRIBED, (Effect.STOP_RESTING,)),
    },
    Event.NO_MEMORY: {State.SUBSCRIBED: (State.HELD, ())},
    Event.MEMORY: {State.HELD: (State.SUBSCRIBED, ())},
    Event.HANGS: {
        State.SUBSCRIBED: _GIVE_UP_AND_REST,
        State.HELD: _GIVE_UP_AND_REST,
        State.BEGINNING: (State.CUTTING, (Effect.UNSUBSCRIBE, Effect.WAIT_LONGER)),
    },
    Event.BEGINS_WITHIN: {State.SUBSCRIBED: (State.BEGINNING, (Effect.CUT,))},
    Event.NOT_TAKEN: {
        State.SUBSCRIBED: (State.RESTING, (Effect.UNSUBSCRIBE, Effect.REST_AFTER_APPEND)),
    },
    Event.PARTED: {State.SUBSCRIBED: (State.CUTTING, (Effect.CUT,))},
    Event.REFUSED: {State.SUBSCRIBED: (State.RESTING, (Effect.REST,))},
    Event.BEHIND: {
        State.DETACHED: (State.CUTTING, (Effect.CUT,)),
        State.RESTING: (State.CUTTING, (Effect.STOP_RESTING, Effect.CUT)),
        State.SUBSCRIBED: _GIVE_UP_AND_CUT,
        State.HELD: _GIVE_UP_AND_CUT,
    },
    Event.CUT: {
        State.BEGINNING: (State.SUBSCRIBED, ()),
        State.CUTTING: (State.DETACHED, (Effect.SUBSCRIBE,)),
    },
    Event.CUT_FAILED: {
        State.BEGINNING: _GIVE_UP_AND_REST,
        State.CUTTING: (State.RESTING, (Effect.REST,)),
    },
    Event.RESTED: {State.RESTING: (State.DETACHED, (Effect.SUBSCRIBE,))},
    Event.LOST: {
        State.SUBSCRIBED: (State.DETACHED, ()),
        State.HELD: (State.DETACHED, ()),
        State.BEGINNING: (State.CUTTING, (Effect.WAIT_LONGER,)),
    },
    Event.LEFT: {
        State.DETACHED: (State.ENDED, ()),
        State.SUBSCRIBED: _GIVE_UP_AND_END,
        State.HELD: _GIVE_UP_AND_END,
        State.BEGINNING: _GIVE_UP_AND_END,
        State.RESTING: (State.ENDED, (Effect.STOP_RESTING,)),
        State.CUTTING: (State.ENDED, ()),
    },
}


def step(state: State, event: Event) -> Step:
    """Return the next state and what is to be done; what comes too late changes nothing."""
    return TABLE[event].get(state, (state, ()))
