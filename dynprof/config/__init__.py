"""The config file: bytes in, a frozen :class:`ProfilerConfig` or one error message per problem out.

The model is the only source of keys, defaults and descriptions. The schema, the template and the
table of settings are generated from it. Only ``editing`` writes: new files, and a command's
changes. Nothing here depends on the running process. Other packages use the names below, ``model``,
``experimental``, ``effects``, ``editing``, ``file_reading``, ``jsontext`` and ``messages``.
"""

from dynprof.config.experimental import ExperimentalConfig
from dynprof.config.file_reading import Source, read_source
from dynprof.config.model import ProfilerConfig
from dynprof.config.parse import Parsed, parse_config
from dynprof.config.ranks import RankSet
from dynprof.config.schema import config_schema, schema_text, template_text
from dynprof.config.sections import AgreementConfig, Limits, StorageConfig, ThenConfig, WatchConfig

__all__ = [
    "AgreementConfig",
    "ExperimentalConfig",
    "Limits",
    "Parsed",
    "ProfilerConfig",
    "RankSet",
    "Source",
    "StorageConfig",
    "ThenConfig",
    "WatchConfig",
    "config_schema",
    "parse_config",
    "read_source",
    "schema_text",
    "template_text",
]
