"""The config file: bytes in, a frozen :class:`ProfilerConfig` or one error message per problem out.

The model is the only source of keys, defaults and descriptions. The schema, the template and the
table of settings are generated from it. Only ``editing`` writes: new files, and a command's
changes. Nothing here depends on the running process. Other packages use the names below, ``model``,
``sections``, ``parse``, ``editing``, ``file_reading`` and ``jsontext``.
"""

from dynprof.config.file_reading import Source, read_source
from dynprof.config.model import ProfilerConfig, RankSet, config_schema, schema_text, template_text
from dynprof.config.parse import Parsed, parse_config
from dynprof.config.sections import (
    AgreementConfig,
    Every,
    ExperimentalConfig,
    Limits,
    StorageConfig,
    ThenConfig,
    WatchConfig,
)

__all__ = [
    "AgreementConfig",
    "Every",
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
