"""Config entries of topics and nodes as bytes, encoded once for equal configs.

One topic has some forty configs, and tools ask for those of all topics at once: most topics differ
in nothing but their name. One `ConfigEntries` serves one response, so that it never goes stale.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from dlog.wire.apis import ApiKey, is_flexible
from dlogd.metadata.state.effective_configs import ConfigEntry
from dlogd.server import response_builder
from dlogd.server.response_builder import Fields

Describe = Callable[[], Sequence[ConfigEntry]]
FieldsOf = Callable[[ConfigEntry], Fields]


class ConfigEntries:
    """Results of one response, each an entity whose last field is the array `configs`."""

    def __init__(self, api_key: ApiKey, version: int, results: str, fields_of: FieldsOf) -> None:
        self._result = response_builder.response_builder(api_key, version).nested[results]
        self._whole = response_builder.response_builder(api_key, version)
        self._flexible = is_flexible(api_key, version)
        self._tail_bytes = 1 if self._flexible else 0  # tagged fields, of which there are none
        self._fields_of = fields_of
        self._described: dict[object, Sequence[ConfigEntry]] = {}
        self._encoded: dict[object, dict[str, bytes]] = {}
        self._results: list[bytes] = []
        self.encoded_count = 0
        """How many configs were encoded; each takes some ten microseconds."""

    def add(
        self,
        fields: Fields,
        key: object,
        describe: Describe,
        wanted: Collection[str] | None = None,
    ) -> None:
        """Add a result with the configs that `describe` gives; the same for the same `key`.

        Of these only the `wanted` ones; None: all.
        """
        entries = self._described.get(key)
        if entries is None:
            entries = self._described[key] = describe()
        encoded = self._encoded.setdefault(key, {})
        configs: list[bytes] = []
        for entry in entries:
            if wanted is not None and entry.name not in wanted:
                continue
            config = encoded.get(entry.name)
            if config is None:
                builder = self._result.nested["configs"]
                config = encoded[entry.name] = builder.encode(self._fields_of(entry))
                self.encoded_count += 1
            configs.append(config)
        result = self._result.encode({**fields, "configs": ()})
        self._results.append(
            response_builder.splice(result, self._tail_bytes, configs, flexible=self._flexible)
        )

    def add_failed(self, fields: Fields) -> None:
        """Add a result without configs."""
        self._results.append(self._result.encode({**fields, "configs": ()}))

    def body(self) -> bytes:
        """Return the body of the response: no throttling, and the results as its last field."""
        return response_builder.splice(
            self._whole.encode({}), self._tail_bytes, self._results, flexible=self._flexible
        )


def key_of(configs: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return what topics with the same configs have in common."""
    return tuple(sorted(configs.items()))
