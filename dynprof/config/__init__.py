"""The config file: bytes in, a frozen :class:`ProfilerConfig` or a sentence for each problem."""

from dynprof.config.experimental import ExperimentalConfig
from dynprof.config.model import Limits, ProfilerConfig
from dynprof.config.parse import Parsed, parse_config
from dynprof.config.ranks import RankSet
from dynprof.config.schema import config_schema, schema_text, template_text
from dynprof.config.reading import Source, read_source

__all__ = [
    "ExperimentalConfig",
    "Limits",
    "Parsed",
    "ProfilerConfig",
    "RankSet",
    "Source",
    "config_schema",
    "parse_config",
    "read_source",
    "schema_text",
    "template_text",
]
